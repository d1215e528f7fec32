"""Counts of durations by length, for histograms."""

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
"""Upper bound of each class in microseconds; a last class has no bound."""


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
"""Upper bounds for the time from the publish of an event to its delivery, which may be hours."""


def quantile_us(bounds_us: Sequence[int], counts: Sequence[int], share: float) -> float | None:
    """Return the time that ``share`` of the durations did not exceed; None without durations.

    Durations are assumed to be evenly distributed within a class. For the class without upper bound
    the result is its lower bound.
    """
    wanted_count = sum(counts) * share
    if not wanted_count:
        return None
    count_below, lower_bound_us = 0, 0
    for bound_us, count in zip(bounds_us, counts, strict=False):
        if count and count_below + count >= wanted_count:
            return (
                lower_bound_us + (bound_us - lower_bound_us) * (wanted_count - count_below) / count
            )
        count_below, lower_bound_us = count_below + count, bound_us
    return float(lower_bound_us)


class Timings:
    """A histogram of durations. To note a duration costs a search in a short tuple and three
    additions, which is cheap enough for every write."""

    __slots__ = ("bounds_us", "counts", "recent_us", "total_us")

    def __init__(self, bounds_us: Sequence[int] = BOUNDS_US) -> None:
        self.bounds_us = bounds_us
        self.counts = [0] * (len(bounds_us) + 1)
        self.total_us = 0
        self.recent_us = 0.0
        """Moving average of recent durations, in microseconds."""

    def note(self, us: int) -> None:
        """Count a duration of ``us`` microseconds, and add it to the moving average."""
        self.counts[bisect_left(self.bounds_us, us)] += 1
        self.total_us += us
        self.recent_us += (us - self.recent_us) / 8  # follows a change within about ten durations

    def note_many(self, us: int, count: int) -> None:
        """Count ``count`` durations of ``us`` each, without effect on ``recent_us``."""
        self.counts[bisect_left(self.bounds_us, us)] += count
        self.total_us += us * count

    def add(self, counts: Sequence[int], total_us: int) -> None:
        """Add the counts of another histogram with the same bounds. ``total_us`` is the sum of its
        durations."""
        for index, count in enumerate(counts):
            self.counts[index] += count
        self.total_us += total_us

    def cumulative(self) -> list[int]:
        """Return the number of durations up to each bound; the last number is the total."""
        return list(accumulate(self.counts))
