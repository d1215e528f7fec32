"""Control of Python's garbage collection, and return of freed memory to the operating system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_BYTES_MIN = 32 << 20
"""Freed memory is returned to the operating system once it is at least this many bytes."""
QUIET_BYTES = 64 << 10
"""A realm that writes at least this many bytes between two checks counts as busy."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch off Python's search for unreachable cycles within the context.

    Use it for work that creates many objects and frees few, such as importing modules or recovering
    a realm. During such work each search would visit all objects and free none.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def age_all() -> None:
    """Move all objects to the oldest generation without visiting them.

    Called after an import within :func:`uncollected`. Otherwise the next collection of the youngest
    generation would visit everything that was loaded (21 ms for an embedded realm). Objects that
    the program has frozen itself stay frozen.
    """
    # CPython moves whole lists of objects here: to the frozen ones, and back as the oldest ones.
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


class FreedMemory:
    """Freed memory that was not returned to the system yet.

    By itself, the heap of the C library shrinks only at its end. A long-lived object after a
    hundred megabytes of freed events prevents the return of all of them.
    """

    def __init__(self, trim_bytes_min: int = TRIM_BYTES_MIN) -> None:
        self.trim_bytes_min = trim_bytes_min
        """Number of freed bytes from which on memory is returned to the operating system."""
        self.bytes = 0
        """Estimated bytes freed since memory was last returned to the operating system."""
        self._written = 0
        """Bytes that the realm had written at the last check."""

    def is_worth_it(self, written: int) -> bool:
        """Whether much memory was freed and little was ``written`` since the last check. Returning
        memory may block other threads that allocate for some milliseconds, so a busy realm
        postpones it."""
        before, self._written = self._written, written
        return self.bytes >= self.trim_bytes_min and abs(written - before) < QUIET_BYTES

    def give_back(self) -> None:
        """Return to the operating system all memory that the C library knows to be free."""
        self.bytes = 0
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)
