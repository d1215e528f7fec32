"""A transport that behaves as the test determines."""

from __future__ import annotations

import asyncio
from typing import Any


class Scripted(asyncio.Transport):
    """A transport that records its calls."""

    def __init__(self, peername: Any = None) -> None:
        super().__init__({"peername": peername})
        self.is_read = True
        self.is_aborted = False
        self.unsent = 0
        """Number of bytes that the peer has not received yet."""
        self._is_closing = False

    def pause_reading(self) -> None:
        assert self.is_read, "paused once"
        assert not self._is_closing, "a loop may refuse this"
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read, "it was paused"
        self.is_read = True

    def close(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unsent
