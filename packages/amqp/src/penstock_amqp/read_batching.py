"""Merges the reads from a busy peer into larger batches, because the fixed cost of a batch exceeds
the cost of the few messages in one read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

MANY_BYTES: Final = 4 << 10
"""A read of this size comes from a peer that sends many messages at once."""
GATHER_S: Final = 0.001
"""Time in seconds to wait for more bytes after a large read."""
GATHERED_BYTES_MAX: Final = 128 << 10
"""Maximum collected bytes; from this size on, the batch is processed without waiting."""


def _drop(_: bytes) -> None:
    """Drop bytes of a connection that is over."""


def _do_nothing() -> None:
    """Do nothing for a connection that is over."""


class ReadBatch:
    """Received bytes that are not yet processed."""

    __slots__ = ("_bytes", "_chunks", "_loop", "_ready", "_take", "_timer")

    def __init__(self, take: Callable[[bytes], None], ready: Callable[[], None]) -> None:
        """``take`` processes bytes, in order. ``ready`` is called when the batch may be processed;
        the callee then calls :meth:`take_some`, in one turn or in several."""
        self._take = take
        self._ready = ready
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, data: bytes) -> None:
        """Add received bytes. A small read is processed immediately, a large one a moment later."""
        # A small read after large ones ends the peer's burst, so it does not wait either.
        is_large = len(data) >= MANY_BYTES
        if not is_large and not self._chunks:
            self._take(data)
            return
        self._chunks.append(data)
        self._bytes += len(data)
        if not is_large or self._bytes >= GATHERED_BYTES_MAX:
            self._ready()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_S, self._ready)

    def flush(self) -> None:
        """Process all collected bytes without waiting for more."""
        self.take_some(self._bytes)

    def end(self) -> None:
        """Process all collected bytes of a lost connection, and drop the references to it."""
        self.flush()
        self._take, self._ready = _drop, _do_nothing

    def take_some(self, size: int) -> bool:
        """Process the first ``size`` collected bytes. Return True if more bytes wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._chunks:
            return False
        chunks: list[bytes] = []
        remaining = size
        while self._chunks and remaining > 0:
            chunk = self._chunks.popleft()
            if len(chunk) > remaining:
                self._chunks.appendleft(chunk[remaining:])
                chunk = chunk[:remaining]
            chunks.append(chunk)
            remaining -= len(chunk)
        self._bytes -= size - remaining
        self._take(b"".join(chunks) if len(chunks) > 1 else chunks[0])
        return bool(self._chunks)
