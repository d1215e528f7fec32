"""The clocks of a cluster's members, compared by what they show when they renew.

Leases do not depend on them. But events get the time of their owner, which never goes back: one
that is wrong would stay with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

SECOND_US: Final = 1_000_000
APART_US_MAX: Final = 5 * SECOND_US
"""A node whose clock is further off claims nothing ..."""
WRONG_US_MAX: Final = 60 * SECOND_US
"""... and one whose clock is so far off gives up what it owns."""

Incarnation = tuple[str, str]
"""A node, and the nonce of one start of its process."""


class _Apart(NamedTuple):
    """How far a clock is ahead of this node's: no less than one, no more than the other, for the
    record was read some time after it was written."""

    least_us: int
    most_us: int

    @property
    def us(self) -> int:
        """As little as it can be; 0: they may show the same."""
        return nearest_to_zero(self.least_us, self.most_us)


class MemberClocks:
    """How far the clocks of other processes are ahead of this one's."""

    def __init__(self) -> None:
        self._by_process: dict[Incarnation, _Apart] = {}

    def compared(self, process: Incarnation, shown_us: int, own_us: int, age_us: int) -> None:
        """``process`` has shown ``shown_us`` no longer than ``age_us`` ago, and this one shows
        ``own_us`` now. 0: it does not tell."""
        if shown_us and own_us:
            ahead_us = shown_us - own_us
            self._by_process[process] = _Apart(ahead_us, ahead_us + age_us)

    def of(self, processes: Iterable[Incarnation]) -> list[int]:
        """How far each is ahead, in microseconds, as far as they are known; negative: behind."""
        known = self._by_process
        return [known[process].us for process in processes if process in known]


def farthest(ahead_us: Iterable[int]) -> int:
    """How far the clock is ahead that is farthest from this node's; negative: behind."""
    return max(ahead_us, key=abs, default=0)


def off_by(ahead_us: Iterable[int]) -> int:
    """How far others are ahead of this node; negative: behind; 0: it is one of the middle ones.

    What most of them show counts, so that one wrong clock does not stop the others, and there is
    always a node that may own a shard.
    """
    shown = sorted([0, *ahead_us])
    return nearest_to_zero(shown[(len(shown) - 1) // 2], shown[len(shown) // 2])


def nearest_to_zero(least: int, most: int) -> int:
    """The number from ``least`` to ``most`` that is nearest to 0."""
    return max(least, min(most, 0))
