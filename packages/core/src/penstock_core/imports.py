"""Suppression of optional imports that a process does not need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Absent:
    """A finder that reports some modules as not installed."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ``ModuleNotFoundError`` for a suppressed module. Other finders look for all other
        modules."""
        if name in self._names:
            raise ModuleNotFoundError(
                f"{name} is suppressed while another package loads", name=name
            )


@contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Make packages that are not loaded yet appear as not installed within the context.

    Use it for packages that others import optionally, such as ``pandas`` by Arrow and ``rich`` by
    structlog. Later imports work as usual.
    """
    absent = _Absent(names)
    # The finder must precede all others, which would find an installed package.
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)
