"""How long something took, how often: counts by length, for a histogram."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

BOUNDS_US: Final = (
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
)
"""The longest that counts to each class, in microseconds; one more class has no end."""


DELIVERY_BOUNDS_US: Final = (
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    1_800_000_000,
    3_600_000_000,
)
"""Likewise for the time from the publish of an event to its delivery, which may be hours."""


def quantile_us(bounds_us: Sequence[int], counts: Sequence[int], share: float) -> float | None:
    """The time that ``share`` of the durations did not exceed, as if those of a class lay evenly
    between its bounds; of the class without an end, its beginning. None: there were none."""
    wanted = sum(counts) * share
    if not wanted:
        return None
    below, since_us = 0, 0
    for bound_us, count in zip(bounds_us, counts, strict=False):
        if count and below + count >= wanted:
            return since_us + (bound_us - since_us) * (wanted - below) / count
        below, since_us = below + count, bound_us
    return float(since_us)


class Timings:
    """Cheap enough for every write: a search in a short tuple, and two additions."""

    __slots__ = ("bounds_us", "counts", "recent_us", "total_us")

    def __init__(self, bounds_us: Sequence[int] = BOUNDS_US) -> None:
        self.bounds_us = bounds_us
        self.counts = [0] * (len(bounds_us) + 1)
        self.total_us = 0
        self.recent_us = 0.0
        """About how long it takes lately."""

    def note(self, us: int) -> None:
        """Count one more duration."""
        self.counts[bisect_left(self.bounds_us, us)] += 1
        self.total_us += us
        self.recent_us += (us - self.recent_us) / 8

    def note_many(self, us: int, count: int) -> None:
        """Count ``count`` durations of ``us`` each; what is recent does not look at them."""
        self.counts[bisect_left(self.bounds_us, us)] += count
        self.total_us += us * count

    def add(self, counts: Sequence[int], total_us: int) -> None:
        """Count durations that were sorted into the classes elsewhere."""
        for index, count in enumerate(counts):
            self.counts[index] += count
        self.total_us += total_us

    def cumulative(self) -> list[int]:
        """Numbers of durations up to each bound; the last one is their total."""
        return list(accumulate(self.counts))
