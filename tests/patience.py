"""Waits for an effect in another thread or process, with a limit that even a slow machine meets."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

PATIENCE_S = 120.0


def until(happened: Callable[[], object]) -> None:
    """Call ``happened`` until its result is true. A condition that is true only for a moment may be
    missed.

    There is no pause between the calls, so each call should be a request to the thread or process
    that causes the effect, which can continue meanwhile.
    """
    end_s = perf_counter() + PATIENCE_S
    while not happened():
        assert perf_counter() < end_s, f"the condition was not true within {PATIENCE_S:g} s"
