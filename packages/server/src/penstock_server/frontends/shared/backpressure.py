"""Back-pressure: a connection is not read while it, or the realm, is too busy, and it takes in only
a piece of what has come before other connections have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LOOK_AGAIN_S: Final = 0.01
"""Seconds that a paused connection waits before it checks again whether it may be read."""


def _nothing() -> bool:
    return False


def _ignore(_: float) -> None:
    """Take a time that interests nobody any more."""


class ReadThrottle:
    """Pauses and resumes the reading of one connection."""

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
        take: Callable[[], bool] = _nothing,
    ) -> None:
        """``may_read`` says whether there is room for more. ``resumed`` is called when reading
        resumes, with the loop's time in seconds: the peer's silence counts from then. ``take``
        takes in a piece of what has come, and returns whether there may be more of it."""
        self._may_read = may_read
        self._resumed = resumed
        self._take = take
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._has_more = False
        """Whether some of what has come is taken in in a later turn of the loop."""
        self._is_read = True
        self.is_paused = False
        """Whether the connection is not read now because there is no room."""

    def begin(self, transport: asyncio.Transport) -> None:
        """Start with the transport of a connection that was made."""
        self._transport = transport

    def end(self) -> None:
        """Stop, because the connection is lost, and let go of it."""
        self._transport = None
        self._may_read, self._resumed, self._take = _nothing, _ignore, _nothing

    def came(self) -> None:
        """Take in a piece of what has come, and the rest in later turns of the loop: the other
        connections have their turn in between."""
        if self._has_more:
            return  # the rest has its turn anyway
        self._has_more = self._take()
        if self._has_more:
            self._loop.call_soon(self._take_more)
            self._pause_or_resume()
        self.check()

    def _take_more(self) -> None:
        if self._transport is None or self._transport.is_closing() or self.is_paused:
            return
        self._has_more = self._take()
        if self._has_more:
            self._loop.call_soon(self._take_more)
        self.check()
        self._pause_or_resume()

    def check(self) -> None:
        """Pause reading if there is no room; called after reads, and when the peer does not
        read."""
        transport = self._transport
        if transport is None or self.is_paused or self._may_read() or transport.is_closing():
            return
        self.is_paused = True
        self._pause_or_resume()
        self._loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not self._may_read():
            self._loop.call_later(LOOK_AGAIN_S, self._look_again)
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
