"""How long something took, how often: counts by length, for a histogram."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

BOUNDS_US: Final = (
    *(50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000),
    *(100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000),
)
"""The longest that counts to each class, in microseconds; one more class has no end."""


class Timings:
    """Cheap enough for every write: a search in a short tuple, and two additions."""

    __slots__ = ("counts", "recent_us", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_US) + 1)
        self.total_us = 0
        self.recent_us = 0.0
        """About how long it takes lately."""

    def note(self, us: int) -> None:
        """Count one more duration."""
        self.counts[bisect_left(BOUNDS_US, us)] += 1
        self.total_us += us
        self.recent_us += (us - self.recent_us) / 8

    def cumulative(self) -> list[int]:
        """Numbers of durations up to each bound; the last one is their total."""
        return list(accumulate(self.counts))
