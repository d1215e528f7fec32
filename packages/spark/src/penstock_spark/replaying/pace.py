"""The pace of a replay: events keep their original distances, divided by the speed."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from penstock_core.columns.events.batch import Int64s

FLAT_OUT = 0.0
"""The speed of a replay without waits."""


class Timer(Protocol):
    """The clock of a replay; tests control it."""

    def now_us(self) -> int:
        """Microseconds since 1970; never goes back."""
        ...

    def wait(self, us: int) -> bool:
        """Wait ``us`` microseconds, or until the replay is stopped; return whether it is
        stopped."""
        ...


class ReplayPace:
    """Maps original times to due times, beginning with the first event."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._original_us: int | None = None
        self._now_us = 0

    @property
    def is_flat_out(self) -> bool:
        """Whether the replay runs at full speed."""
        return self._speed == FLAT_OUT

    def start(self, original_us: int, now_us: int) -> None:
        """Make the event published at ``original_us`` due at ``now_us``; later calls have no
        effect."""
        if self._original_us is None:
            self._original_us, self._now_us = original_us, now_us

    def due_us(self, original_us: int) -> int:
        """Return the time at which an event is due; at full speed, the start time."""
        if self._original_us is None or self.is_flat_out:
            return self._now_us
        return self._now_us + int((original_us - self._original_us) / self._speed)

    def reached_us(self, now_us: int) -> int:
        """Return the original time of events that are due now."""
        if self._original_us is None or self.is_flat_out:
            return np.iinfo(np.int64).max
        return self._original_us + int((now_us - self._now_us) * self._speed)


def late_us(pace: ReplayPace, originals: Int64s, now_us: int) -> int:
    """Return the delay of the first event in microseconds; 0 at full speed."""
    if pace.is_flat_out or not len(originals):
        return 0
    return max(0, now_us - pace.due_us(int(originals[0])))
