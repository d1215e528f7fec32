"""Linger: the event loop stays awake a moment for a client that waits for each of its answers.

Such a client is back within a fraction of a millisecond. A processor that has gone to sleep by then
needs as long to wake up as the realm needs for the whole publish. So where several lone publishes
came soon one after the other, the loop looks for the next one instead of sleeping, for no longer
than a set time. It is given up with the first that comes late, or not alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Sized
from typing import Final

SOON_MIN: Final = 4
"""So many lone publishes have to come soon, each after the last, before the loop stays awake."""
SMALL_BYTES: Final = 16 << 10
"""A publish of more is not a lone event: what it costs is not the waking."""


class Linger:
    """Whether a shard that has nothing to do keeps its event loop awake."""

    def __init__(self, longest_s: float, now_s: Callable[[], float]) -> None:
        """``longest_s``: how long for, at most; ``now_s`` tells the time, to the microsecond."""
        self._longest_s = longest_s
        self._now_s = now_s
        self._since_s = 0.0
        self._soon = 0

    def stay(self, idle: asyncio.Future[None]) -> None:
        """There is nothing to do until ``idle`` is done."""
        self._since_s = self._now_s()
        if self._soon >= SOON_MIN:
            self._look_again(idle, self._since_s + self._longest_s)

    def _look_again(self, idle: asyncio.Future[None], until_s: float) -> None:
        if not idle.done() and self._now_s() < until_s:
            # the loop looks what has come before it makes the next call, and does not wait
            asyncio.get_running_loop().call_soon(self._look_again, idle, until_s)

    def woken(self) -> None:
        """Something to do has come."""
        if self._now_s() - self._since_s > self._longest_s:
            self._soon = 0

    def served(self, requests: int, bodies: Sequence[Sized]) -> None:
        """A group of so many requests is done, which published these ``bodies``. One that published
        nothing, for example an acknowledgement, says nothing about the next."""
        if requests > 1 or sum(map(len, bodies)) > SMALL_BYTES:
            self._soon = 0
        elif bodies:
            self._soon += 1
