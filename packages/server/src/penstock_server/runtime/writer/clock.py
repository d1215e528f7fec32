"""The system clock, the only reader of the machine's time, and the clock of a shard's new owner."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from penstock_core.vocabulary.ports import Clock

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that cannot be set. On Linux it also runs while the machine is suspended."""


class SystemClock:
    """Wall-clock time that never goes back while the process lives.

    Ids and times of events grow together; a clock set back by an hour must not undo that.
    """

    def __init__(
        self,
        now_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = lambda: time.clock_gettime_ns(_STEADY),
    ) -> None:
        """``now_ns`` is the machine's time in nanoseconds since 1970, which may jump. ``steady_ns``
        counts nanoseconds since the machine started, and cannot be set."""
        self.now_ns = now_ns
        self._steady_ns = steady_ns
        self._latest_us = 0

    def now_us(self) -> int:
        self._latest_us = max(self._latest_us, self.now_ns() // 1_000)
        return self._latest_us

    def steady_us(self) -> int:
        return self._steady_ns() // 1_000


class OwnerClock:
    """The clock of a shard's owner, which begins at the last time of the previous owner.

    The clocks of machines differ. If this machine's clock is behind, time stands still until it has
    caught up, so that a later event never has an earlier time.
    """

    def __init__(self, clock: Clock, newest_us: int) -> None:
        """``newest_us`` is the time of the newest stored block."""
        self._clock = clock
        self._latest_us = newest_us

    def now_us(self) -> int:
        self._latest_us = max(self._latest_us, self._clock.now_us())
        return self._latest_us

    def steady_us(self) -> int:
        return self._clock.steady_us()
