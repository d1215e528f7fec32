"""Which objects Python's garbage collector visits while a test runs.

All that existed when the tests had been collected is frozen (``tests/plugin.py``).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_new_objects_tracked() -> Iterator[None]:
    """Switch off collections within the context, and freeze all objects that exist at its start.
    They stay frozen afterwards, as unfreezing them would unfreeze those of all tests."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def nothing_frozen() -> Iterator[None]:
    """Unfreeze all objects within the context, and freeze those that are left at its end."""
    gc.unfreeze()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
