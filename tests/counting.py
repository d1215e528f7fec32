"""Work is counted, not timed: a count is the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_during(work: Callable[[], object], *names: str) -> int:
    """How often functions are called meanwhile, of Python's or built in; only those of ``names``,
    where some are given. What happens inside of a compiled function is not seen."""
    calls = 0

    def count(frame: FrameType, event: str, called: Any) -> None:
        nonlocal calls
        if event == "call":
            calls += not names or frame.f_code.co_name in names
        elif event == "c_call":
            calls += not names or getattr(called, "__name__", "") in names

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
