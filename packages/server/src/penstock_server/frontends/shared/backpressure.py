"""Backpressure: reading from a connection stops while the connection or the realm is too busy. A
connection processes its received data in pieces, so that others are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

RECHECK_S: Final = 0.01
"""Seconds after which a paused connection checks again whether it may be read."""


def _false() -> bool:
    return False


def _ignore(_: float) -> None:
    """Do nothing: the connection has ended."""


class ReadThrottle:
    """Pauses and resumes reading from one connection."""

    __slots__ = (
        "_has_more",
        "_is_read",
        "_loop",
        "_may_read",
        "_resumed",
        "_take",
        "_transport",
        "is_paused",
    )

    def __init__(
        self,
        may_read: Callable[[], bool],
        resumed: Callable[[float], None],
        take: Callable[[], bool] = _false,
    ) -> None:
        """``may_read`` returns whether more data may be read. ``resumed`` is called when reading
        resumes, with the loop's time in seconds, from which the peer's silence then counts.
        ``take`` processes a piece of the received data, and returns whether more may follow."""
        self._may_read = may_read
        self._resumed = resumed
        self._take = take
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._has_more = False
        """Whether received data is processed in a later turn of the loop."""
        self._is_read = True
        """Whether reading from the transport is enabled."""
        self.is_paused = False
        """Whether reading is paused because ``may_read`` returned False."""

    def begin(self, transport: asyncio.Transport) -> None:
        """Set the transport, once the connection is made."""
        self._transport = transport

    def end(self) -> None:
        """Stop because the connection is lost, and drop the references to it, which would be a
        cycle."""
        self._transport = None
        self._may_read, self._resumed, self._take = _false, _ignore, _false

    def data_arrived(self) -> None:
        """Process a piece of the received data, and the rest in later turns of the loop, so that
        other connections are served in between."""
        if self._has_more:
            return  # a later turn is scheduled already
        self._has_more = self._take()
        if self._has_more:
            self._loop.call_soon(self._take_more)
            self._pause_or_resume()
        self.check()

    def _take_more(self) -> None:
        # `_recheck` continues when reading may resume.
        if self._transport is None or self._transport.is_closing() or self.is_paused:
            return
        self._has_more = self._take()
        if self._has_more:
            self._loop.call_soon(self._take_more)
        self.check()
        self._pause_or_resume()

    def check(self) -> None:
        """Pause reading if ``may_read`` returns False; called after reads, and when the peer does
        not read."""
        transport = self._transport
        if transport is None or self.is_paused or self._may_read() or transport.is_closing():
            return
        self.is_paused = True
        self._pause_or_resume()
        self._loop.call_later(RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        """Resume reading if that is allowed again; otherwise try again later."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not self._may_read():
            self._loop.call_later(RECHECK_S, self._recheck)
            return
        self.is_paused = False
        self._pause_or_resume()
        self._resumed(self._loop.time())
        if self._has_more:
            self._take_more()

    def _pause_or_resume(self) -> None:
        transport = self._transport
        is_read = not (self.is_paused or self._has_more)
        if transport is None or transport.is_closing() or is_read == self._is_read:
            return
        self._is_read = is_read
        if is_read:
            transport.resume_reading()
        else:
            transport.pause_reading()
