"""Collects the reads of a peer that sends much, because each batch costs more than its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

MANY_BYTES: Final = 4 << 10
"""A read of this size comes from a peer that sends many messages at once."""
GATHER_S: Final = 0.001
GATHERED_BYTES_MAX: Final = 128 << 10
"""Most bytes that are collected, and above it how long more is waited for."""


class ReadBatch:
    """Bytes that have come and are not processed yet."""

    __slots__ = ("_bytes", "_loop", "_pieces", "_take", "_timer")

    def __init__(self, take: Callable[[bytes], None]) -> None:
        """``take`` gets the collected bytes, in order."""
        self._take = take
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, data: bytes) -> None:
        """Take bytes that have come: a few are passed on at once, many a moment later."""
        is_much = len(data) >= MANY_BYTES
        if not is_much and not self._pieces:
            self._take(data)
            return
        self._pieces.append(data)
        self._bytes += len(data)
        if not is_much or self._bytes >= GATHERED_BYTES_MAX:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_S, self.flush)

    def flush(self) -> None:
        """Pass on everything collected, without waiting for more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pieces:
            return
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._bytes = 0
        self._take(data)
