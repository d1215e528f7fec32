"""Log lines that any number of clients or events could cause: one a minute of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Final

EVERY_S: Final = 60.0
KINDS_MAX: Final = 256
"""Kinds that are remembered; a kind that is forgotten may be written once more."""


class RareLines:
    """Decides whether a line is written, by its kind: the event and what caused it, as far as
    clients do not make that up."""

    def __init__(self) -> None:
        self._written_s: dict[Hashable, float] = {}
        self._left_out: dict[Hashable, int] = {}

    def is_due(self, *kind: Hashable) -> bool:
        """Whether a line of this kind is to be written now; if not, it is counted."""
        now_s = _now_s()
        written_s = self._written_s.get(kind)
        if written_s is not None and now_s - written_s < EVERY_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        if written_s is None and len(self._written_s) >= KINDS_MAX:
            self._written_s.clear()
            self._left_out.clear()
        self._written_s[kind] = now_s
        return True

    def left_out(self, *kind: Hashable) -> int:
        """How many lines of this kind were left out since the last one that was written."""
        return self._left_out.pop(kind, 0)


def _now_s() -> float:
    """The time of the loop; 0 where none runs, as in tools, so that each kind has one line."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0
