"""Counts function calls. Unlike times, counts are the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Calls:
    """The number of calls."""

    count = 0


@contextmanager
def counted_calls(*names: str) -> Iterator[Calls]:
    """Count the calls of Python and built-in functions in the ``with`` block; with ``names`` only
    those of functions with these names. Calls that a compiled function makes are not counted."""
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
    """Return how many calls ``work`` makes: see :func:`counted_calls`."""
    with counted_calls(*names) as calls:
        work()
    return calls.count
