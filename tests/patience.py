"""Waiting for what another thread or process does, with a limit that no machine comes near."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

PATIENCE_S = 120.0


def until(happened: Callable[[], object]) -> None:
    """Ask until it has happened and stays so: what is true for a moment only may be missed.

    Each look is to be a request to whoever makes it happen, so that they go on meanwhile.
    """
    end_s = perf_counter() + PATIENCE_S
    while not happened():
        assert perf_counter() < end_s, "it never happened"
