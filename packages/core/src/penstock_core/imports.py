"""Modules that others import where they are installed, and that a process has no use for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Absent:
    """Finds that some modules are not there."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._names:
            raise ModuleNotFoundError(f"{name} is left out on purpose", name=name)


@contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Within it, packages that are not loaded yet seem not to be installed.

    It is for what other packages import at their own import if it is there, such as ``pandas`` by
    Arrow and ``rich`` by structlog. Whoever needs them later imports them as always.
    """
    absent = _Absent(names)
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)
