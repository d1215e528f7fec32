"""Whether a connection is read: not while it, or the realm, has enough to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LOOK_AGAIN_S: Final = 0.01
"""Seconds that a paused connection waits before it checks again whether it may be read."""


class Reading:
    """Pauses the reading of one connection, and takes it up again."""

    __slots__ = ("_loop", "_may_read", "_resumed", "_transport", "is_paused")

    def __init__(self, may_read: Callable[[], bool], resumed: Callable[[float], None]) -> None:
        """``may_read`` is asked whether there is room for more; ``resumed`` is told that reading
        goes on, and the loop's time in seconds: until then it was this side that did not listen.
        """
        self._may_read = may_read
        self._resumed = resumed
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.is_paused = False
        """Nothing the peer says is heard for now."""

    def begin(self, transport: asyncio.Transport) -> None:
        """The connection is made, and read."""
        self._transport = transport

    def end(self) -> None:
        """The connection is lost: there is nothing to read any more."""
        self._transport = None

    def check(self) -> None:
        """Called when something has come in, or the peer takes nothing: read no further if there
        is no room."""
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
