"""Linger: keeps the event loop awake for a moment, for a client that waits for each answer.

Such a client sends its next request within a fraction of a millisecond. A processor that sleeps by
then needs as long to wake up as the realm needs for the whole publish. So after several lone
publishes in quick succession the loop polls for the next one instead of sleeping, for a limited
time. The first publish that is late, or not alone, ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Sized
from typing import Final

SOON_MIN: Final = 4
"""Lone publishes in quick succession after which the loop stays awake."""
SMALL_BYTES: Final = 16 << 10
"""Larger publishes do not count: their cost is not the wake-up."""


class Linger:
    """Decides whether an idle shard keeps its event loop awake."""

    def __init__(self, longest_s: float, now_s: Callable[[], float]) -> None:
        """``longest_s`` is the longest time to stay awake; ``now_s`` returns the time in
        seconds."""
        self._longest_s = longest_s
        self._now_s = now_s
        self._since_s = 0.0
        """Time in seconds at which the shard last became idle."""
        self._quick_publishes = 0
        """Number of lone publishes in quick succession so far."""

    def stay(self, idle: asyncio.Future[None]) -> None:
        """Keep the loop awake until ``idle`` is done or the longest time is over, if the last
        publishes came alone and in quick succession. Called when the shard has no work."""
        self._since_s = self._now_s()
        if self._quick_publishes >= SOON_MIN:
            self._poll_until(idle, self._since_s + self._longest_s)

    def _poll_until(self, idle: asyncio.Future[None], until_s: float) -> None:
        if not idle.done() and self._now_s() < until_s:
            # A pending callback makes the loop poll its sockets without sleeping.
            asyncio.get_running_loop().call_soon(self._poll_until, idle, until_s)

    def forget_after_idling(self) -> None:
        """Forget the quick publishes if the shard was idle for too long. Called when the shard has
        work again."""
        if self._now_s() - self._since_s > self._longest_s:
            self._quick_publishes = 0

    def count_group(self, requests: int, bodies: Sequence[Sized]) -> None:
        """Count a lone publish. Called after a group of ``requests`` requests with these published
        ``bodies``. A group without a publish, for example an acknowledgement, changes nothing."""
        if requests > 1 or sum(map(len, bodies)) > SMALL_BYTES:
            self._quick_publishes = 0
        elif bodies:
            self._quick_publishes += 1
