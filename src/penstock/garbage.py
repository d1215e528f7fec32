"""When Python looks for garbage that refers to itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
