"""What a peer that sends much has sent: taken together, for each batch costs more than its
messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

MANY_BYTES: Final = 4 << 10
"""As much in one read comes from somebody who sends many messages at once."""
GATHER_S: Final = 0.001
GATHERED_BYTES_MAX: Final = 128 << 10
"""How long more of it may be waited for, and how much of it."""


class Gathering:
    """Bytes that have come and are not looked at yet."""

    __slots__ = ("_bytes", "_loop", "_pieces", "_take", "_timer")

    def __init__(self, take: Callable[[bytes], None]) -> None:
        """``take`` gets what was gathered, in the order in which it has come."""
        self._take = take
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, data: bytes) -> None:
        """More has come: a little is taken at once, much a moment later."""
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
        """Nothing more is waited for: take what is here."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pieces:
            return
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._bytes = 0
        self._take(data)
