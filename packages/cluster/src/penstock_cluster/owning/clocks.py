"""Compare the clocks of a cluster's members by the times they show when they renew.

Leases do not depend on these clocks. But events get the time of their owner, which never goes back,
so a wrong clock would affect events permanently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

SECOND_US: Final = 1_000_000
APART_US_MAX: Final = 5 * SECOND_US
"""A node whose clock is off by more than this (microseconds) claims no shard."""
WRONG_US_MAX: Final = 60 * SECOND_US
"""A node whose clock is off by more than this (microseconds) hands over the shards that it owns."""

Incarnation = tuple[str, str]
"""A node, and the nonce of one start of its process."""


class _OffsetBounds(NamedTuple):
    """Bounds for how far a clock is ahead of this node's. The exact value is unknown because the
    record was read some time after it was written."""

    min_us: int
    max_us: int

    @property
    def us(self) -> int:
        """Smallest possible difference; 0 if both clocks may show the same."""
        return nearest_to_zero(self.min_us, self.max_us)


class MemberClocks:
    """The offsets of other processes' clocks from this one's."""

    def __init__(self) -> None:
        self._by_process: dict[Incarnation, _OffsetBounds] = {}

    def compare(self, process: Incarnation, shown_us: int, own_us: int, age_us: int) -> None:
        """Record the time ``shown_us`` that a process wrote at most ``age_us`` ago; the own clock
        shows ``own_us`` now. A time of 0 is unknown, and the comparison is skipped."""
        if shown_us and own_us:
            ahead_us = shown_us - own_us
            self._by_process[process] = _OffsetBounds(ahead_us, ahead_us + age_us)

    def ahead_us(self, processes: Iterable[Incarnation]) -> list[int]:
        """Return how far the known clocks of these processes are ahead of the own clock, in
        microseconds; negative if behind."""
        differences = self._by_process
        return [differences[process].us for process in processes if process in differences]


def farthest_offset(ahead_us: Iterable[int]) -> int:
    """Return how far the most distant clock is ahead of this node's; negative if behind."""
    return max(ahead_us, key=abs, default=0)


def median_offset(ahead_us: Iterable[int]) -> int:
    """Return how far the median clock is ahead of this node's; negative if behind; 0 if this node's
    clock is one of the middle ones.

    The median counts, so that one wrong clock does not stop the others, and at least one node may
    always own a shard.
    """
    offsets = sorted([0, *ahead_us])
    return nearest_to_zero(offsets[(len(offsets) - 1) // 2], offsets[len(offsets) // 2])


def nearest_to_zero(minimum: int, maximum: int) -> int:
    """Return the number from ``minimum`` to ``maximum`` that is nearest to 0."""
    return max(minimum, min(maximum, 0))
