"""Back-pressure: a connection is not read while it, or the realm, is too busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LOOK_AGAIN_S: Final = 0.01
"""Seconds that a paused connection waits before it checks again whether it may be read."""


class Reading:
    """Pauses and resumes the reading of one connection."""

    __slots__ = ("_loop", "_may_read", "_resumed", "_transport", "is_paused")

    def __init__(self, may_read: Callable[[], bool], resumed: Callable[[float], None]) -> None:
        """``may_read`` says whether there is room for more. ``resumed`` is called when reading
        resumes, with the loop's time in seconds: the peer's silence counts from then."""
        self._may_read = may_read
        self._resumed = resumed
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.is_paused = False
        """Whether the connection is not read now."""

    def begin(self, transport: asyncio.Transport) -> None:
        """Start with the transport of a connection that was made."""
        self._transport = transport

    def end(self) -> None:
        """Stop, because the connection is lost."""
        self._transport = None

    def check(self) -> None:
        """Pause reading if there is no room; called after reads, and when the peer does not
        read."""
        transport = self._transport
        if transport is None or self.is_paused or self._may_read() or transport.is_closing():
            return
        self.is_paused = True
        transport.pause_reading()
        self._loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not self._may_read():
            self._loop.call_later(LOOK_AGAIN_S, self._look_again)
            return
        self.is_paused = False
        transport.resume_reading()
        self._resumed(self._loop.time())
