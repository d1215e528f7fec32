"""The pace of a replay: an event is due as long after the first one as it was then, or a fraction
of that."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from penstock_core.columns.events.batch import Int64s

FLAT_OUT = 0.0
"""The speed at which nothing waits."""


class Timer(Protocol):
    """Time as a replay sees it; tests control it."""

    def now_us(self) -> int:
        """Microseconds since 1970; never goes back."""
        ...

    def wait(self, us: int) -> bool:
        """Let ``us`` microseconds pass, or fewer when it is told to stop; whether it was."""
        ...


class ReplayPace:
    """Ties original times to times now, from the first event that is asked about."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._original_us: int | None = None
        self._now_us = 0

    @property
    def is_flat_out(self) -> bool:
        """Whether nothing ever waits."""
        return self._speed == FLAT_OUT

    def start(self, original_us: int, now_us: int) -> None:
        """Let the event published at ``original_us`` be due at ``now_us``; later calls change
        nothing."""
        if self._original_us is None:
            self._original_us, self._now_us = original_us, now_us

    def due_us(self, original_us: int) -> int:
        """The time at which the event is due; at once when the replay does not wait."""
        if self._original_us is None or self.is_flat_out:
            return self._now_us
        return self._now_us + int((original_us - self._original_us) / self._speed)

    def reached_us(self, now_us: int) -> int:
        """The original time that is due now."""
        if self._original_us is None or self.is_flat_out:
            return np.iinfo(np.int64).max
        return self._original_us + int((now_us - self._now_us) * self._speed)


def late_us(pace: ReplayPace, originals: Int64s, now_us: int) -> int:
    """The delay of the first of these events in microseconds; 0 when the replay does not wait."""
    if pace.is_flat_out or not len(originals):
        return 0
    return max(0, now_us - pace.due_us(int(originals[0])))
