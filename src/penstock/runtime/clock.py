"""The one place that asks the machine for the time."""

from __future__ import annotations

import time
from collections.abc import Callable


class SystemClock:
    """Wall-clock time that never goes back while the process lives.

    Ids and times of events grow together; a clock set back by an hour must not undo that.
    """

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        """``now_ns``: what the machine shows, in nanoseconds since 1970; it may jump."""
        self._now_ns = now_ns
        self._latest_us = 0

    def now_us(self) -> int:
        self._latest_us = max(self._latest_us, self._now_ns() // 1_000)
        return self._latest_us
