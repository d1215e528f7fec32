"""When Python looks for garbage that refers to itself, and when memory goes back to the system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

GIVEN_BACK_MIN = 32 << 20
"""Bytes worth giving back."""
QUIET_BYTES = 64 << 10
"""Bytes written between two looks, above which somebody is at work."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Within it, Python does not look for unreachable cycles.

    It is for work that makes much and lets go of little, such as the import of modules and the
    recovery of a realm: each look would go through all there is, and find nothing.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def age_all() -> None:
    """Move all objects to the oldest generation without looking at them.

    Called after an import within :func:`uncollected`: the next collection of the youngest
    generation would go through everything that was loaded (21 ms for an embedded realm). Objects
    that the program has frozen itself stay frozen.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


class FreedMemory:
    """What was freed, and is not the system's yet.

    The heap of the C library only shrinks from its end by itself: a long-lived object behind a
    hundred megabytes of events keeps all of these.
    """

    def __init__(self) -> None:
        self.bytes = 0
        """About how much was freed since memory was given back."""
        self._written = 0

    def is_worth_it(self, written: int) -> bool:
        """Whether it is much, and little was ``written`` since the last look: giving it back may
        hold up for some milliseconds whoever needs memory."""
        before, self._written = self._written, written
        return self.bytes >= GIVEN_BACK_MIN and abs(written - before) < QUIET_BYTES

    def give_back(self) -> None:
        """Give back all that the C library knows to be free."""
        self.bytes = 0
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)
