"""No hang, no memory without end: limits around code that reads what others have written."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

EXAMPLE_S: Final = 5.0
"""Processor time one input may take; what is right takes milliseconds."""


class Hangs(AssertionError):
    """Reading one input takes for ever, as far as anybody can tell."""


@contextlib.contextmanager
def in_time(seconds: float = EXAMPLE_S) -> Iterator[None]:
    """Raises :class:`Hangs` when the block takes more processor time. For the main thread."""

    def over(_number: int, _frame: FrameType | None) -> None:
        raise Hangs(f"more than {seconds:g} s of processor time for one input")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def resident_bytes() -> int:
    """Memory of the machine that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def limit_memory(more_bytes: int) -> None:
    """From now on this process gets no more than so much beyond what it has; then ``MemoryError``
    and its like are raised where it is asked for."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
