"""Collects the reads of a peer that sends much, because each batch costs more than its messages,
and gives them on a piece at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

MANY_BYTES: Final = 4 << 10
"""A read of this size comes from a peer that sends many messages at once."""
GATHER_S: Final = 0.001
GATHERED_BYTES_MAX: Final = 128 << 10
"""Most bytes that are collected, and above it how long more is waited for."""


def _ignore(_: bytes) -> None:
    """Take bytes of a connection that is over."""


def _nothing() -> None:
    """Do nothing for a connection that is over."""


class ReadBatch:
    """Bytes that have come and are not processed yet."""

    __slots__ = ("_bytes", "_loop", "_pieces", "_ready", "_take", "_timer")

    def __init__(self, take: Callable[[bytes], None], ready: Callable[[], None]) -> None:
        """``take`` gets the bytes, in order. ``ready`` is called when what was collected may be
        taken: by :meth:`take_some`, in one turn or in several."""
        self._take = take
        self._ready = ready
        self._pieces: deque[bytes] = deque()
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
            self._ready()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_S, self._ready)

    def flush(self) -> None:
        """Pass on everything collected, without waiting for more."""
        self.take_some(self._bytes)

    def end(self) -> None:
        """Pass on everything collected, and let go of the connection, which is lost."""
        self.flush()
        self._take, self._ready = _ignore, _nothing

    def take_some(self, size: int) -> bool:
        """Pass on the first ``size`` bytes of what was collected; gives whether there is more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pieces:
            return False
        some: list[bytes] = []
        left = size
        while self._pieces and left > 0:
            piece = self._pieces.popleft()
            if len(piece) > left:
                self._pieces.appendleft(piece[left:])
                piece = piece[:left]
            some.append(piece)
            left -= len(piece)
        self._bytes -= size - left
        self._take(b"".join(some) if len(some) > 1 else some[0])
        return bool(self._pieces)
