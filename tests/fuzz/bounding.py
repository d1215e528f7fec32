"""Limits on processor time and memory for code that reads bytes of others."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

EXAMPLE_S: Final = 5.0
"""Processor time for one input; a valid one takes milliseconds."""


class InputTimeout(AssertionError):
    """An input took more processor time than allowed."""


@contextlib.contextmanager
def in_time(seconds: float = EXAMPLE_S) -> Iterator[None]:
    """Raise :class:`InputTimeout` if the block takes more processor time. Works in the main thread
    only."""

    def time_out(_number: int, _frame: FrameType | None) -> None:
        raise InputTimeout(f"more than {seconds:g} s of processor time for one input")

    earlier_handler = signal.signal(signal.SIGPROF, time_out)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, earlier_handler)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def limit_memory(more_bytes: int) -> None:
    """Limit this process to this much more memory than it has; further requests raise
    ``MemoryError`` or a similar error."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
