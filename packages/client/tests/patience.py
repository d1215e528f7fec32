"""Helpers that wait for asynchronous results, and their timeouts."""

from __future__ import annotations

import threading
from collections.abc import Callable


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until ``is_so()`` is true, long enough for a busy machine."""
    pause = threading.Event()
    for _ in range(12_000):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come about")
