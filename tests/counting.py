"""Work is counted, not timed: a count is the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Calls:
    """How many there were."""

    count = 0


@contextmanager
def counted_calls(*names: str) -> Iterator[Calls]:
    """Counts the calls of functions within it, of Python's or built in; only those of ``names``,
    where some are given. What happens inside of a compiled function is not seen."""
    calls = Calls()

    def count(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            calls.count += not names or frame.f_code.co_name in names
        elif event == "c_call":
            calls.count += not names or getattr(called, "__name__", "") in names

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def calls_during(work: Callable[[], object], *names: str) -> int:
    """How often functions are called meanwhile: see :func:`counted_calls`."""
    with counted_calls(*names) as calls:
        work()
    return calls.count
