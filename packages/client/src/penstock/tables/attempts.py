"""Repeated attempts of a commit, with pauses."""

from __future__ import annotations

import time
from typing import Final, Protocol

from penstock.tables.log import CommitConflict, CommitUnconfirmed
from penstock_core.backoff import backoff_s

ATTEMPTS_MAX: Final = 50
"""Maximum number of attempts of a commit."""
ATTEMPTS_US_MAX: Final = 60_000_000
"""Microseconds after which a commit is not attempted again."""
CONFLICT_PAUSE_US_MAX: Final = 500_000
"""Longest pause after a conflict with a commit of another program, in microseconds. Such a commit
takes milliseconds."""
FAILURE_PAUSE_US_MAX: Final = 5_000_000
"""Longest pause after a failure of the catalog, which may be overloaded, in microseconds."""
_PAUSE_FIRST_US: Final = 10_000
"""Pause after the first failed attempt, in microseconds; it doubles with each attempt."""


class PausingClock(Protocol):
    """A clock by which a thread also pauses."""

    @property
    def is_stopped(self) -> bool:
        """Whether the program should end, so that pauses are over at once."""
        ...

    def steady_us(self) -> int:
        """Microseconds since some moment in the past; never goes back."""
        ...

    def pause(self, us: int) -> None:
        """Return after ``us`` microseconds."""
        ...


class MachineClock:
    """The clock of the machine."""

    @property
    def is_stopped(self) -> bool:
        return False

    def steady_us(self) -> int:
        return time.monotonic_ns() // 1_000

    def pause(self, us: int) -> None:
        time.sleep(us / 1e6)


class Attempts:
    """The attempts of one commit."""

    def __init__(self, clock: PausingClock, seed: str) -> None:
        """``seed`` decides half of each pause, so that writers with different seeds do not try
        again at the same moments."""
        self._clock = clock
        self._seed = seed
        self._end_us = clock.steady_us() + ATTEMPTS_US_MAX
        self.count = 0
        """Number of attempts that have failed."""
        self.unconfirmed: CommitUnconfirmed | None = None
        """The last failure that leaves open whether its attempt is stored; None without one."""

    @property
    def are_over(self) -> bool:
        """Whether no further attempt may be made."""
        return (
            self.count >= ATTEMPTS_MAX
            or self._clock.steady_us() >= self._end_us
            or self._clock.is_stopped
        )

    def pause_after(self, failure: CommitConflict | CommitUnconfirmed | None) -> None:
        """Count a failed attempt, and pause: twice as long as after the one before, up to a limit
        that depends on ``failure``, the last failure of a commit."""
        if isinstance(failure, CommitUnconfirmed):
            self.unconfirmed = failure
        is_conflict = isinstance(failure, CommitConflict)
        us_max = CONFLICT_PAUSE_US_MAX if is_conflict else FAILURE_PAUSE_US_MAX
        pause_s = backoff_s(
            self.count, first_s=_PAUSE_FIRST_US / 1e6, longest_s=us_max / 1e6, seed=self._seed
        )
        self.count += 1
        self._clock.pause(int(pause_s * 1e6))
