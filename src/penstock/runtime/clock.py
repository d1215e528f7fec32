"""The one place that asks the machine for the time."""

from __future__ import annotations

import time


class SystemClock:
    """Wall-clock time that never goes back while the process lives.

    Ids and times of events grow together; a clock set back by an hour must not undo that.
    """

    def __init__(self) -> None:
        self._latest_us = 0

    def now_us(self) -> int:
        self._latest_us = max(self._latest_us, time.time_ns() // 1_000)
        return self._latest_us
