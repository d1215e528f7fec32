"""The pace of a replay: the time between two events is the original time divided by the speed."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from penstock_core.columns.events.batch import Int64s

FLAT_OUT = 0.0
"""The speed value of a replay that publishes as fast as possible."""


class Timer(Protocol):
    """The clock of a replay; tests control it."""

    def now_us(self) -> int:
        """Return the current time in microseconds since 1970; it never decreases."""
        ...

    def wait(self, us: int) -> bool:
        """Wait ``us`` microseconds, or until the replay is stopped; return whether the replay is
        stopped."""
        ...


class ReplayPace:
    """Converts the times at which events were published first to times at which they are due in the
    replay. All times are in microseconds since 1970."""

    def __init__(self, speed: float) -> None:
        """With a ``speed`` of 2, a replay takes half of the original time."""
        self._speed = speed
        self._start_original_us: int | None = None
        """Original time of the first event; None before :meth:`start`."""
        self._start_us = 0
        """Time at which the first event is due."""

    @property
    def is_flat_out(self) -> bool:
        """Whether the replay runs at full speed."""
        return self._speed == FLAT_OUT

    def start(self, original_us: int, now_us: int) -> None:
        """Make the event published at ``original_us`` due at ``now_us``; later calls have no
        effect."""
        if self._start_original_us is None:
            self._start_original_us, self._start_us = original_us, now_us

    def due_us(self, original_us: int) -> int:
        """Return the time at which an event published at ``original_us`` is due; at full speed, the
        start of the replay."""
        if self._start_original_us is None or self.is_flat_out:
            return self._start_us
        return self._start_us + int((original_us - self._start_original_us) / self._speed)

    def reached_us(self, now_us: int) -> int:
        """Return the latest original time of events that are due at ``now_us``; at full speed, the
        largest integer, because all events are due."""
        if self._start_original_us is None or self.is_flat_out:
            return np.iinfo(np.int64).max
        return self._start_original_us + int((now_us - self._start_us) * self._speed)


def late_us(pace: ReplayPace, originals: Int64s, now_us: int) -> int:
    """Return how long the first event is overdue, in microseconds; 0 at full speed.

    ``originals`` are the original times of the events that are about to be published.
    """
    if pace.is_flat_out or not len(originals):
        return 0
    return max(0, now_us - pace.due_us(int(originals[0])))
