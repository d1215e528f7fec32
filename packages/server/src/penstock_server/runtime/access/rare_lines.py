"""Limit on log lines that clients or events can cause: one line a minute of each kind.

Without this limit, a single client could fill the log and the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Final

EVERY_S: Final = 60.0
"""Smallest time in seconds between two lines of a kind."""
KINDS_MAX: Final = 256
"""Largest number of kinds that are remembered. At the limit all kinds are forgotten, and a line of
a forgotten kind may be written a second time within its minute."""


class RareLines:
    """Decides whether a line is written, by its kind: the log event and its cause, without parts
    that clients can choose freely."""

    def __init__(self) -> None:
        self._written_s: dict[Hashable, float] = {}
        self._left_out: dict[Hashable, int] = {}

    def is_due(self, *kind: Hashable) -> bool:
        """Whether to write a line of this kind now; a line that is not written is counted."""
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
        """Return the number of lines of this kind that were left out since the last written line,
        and reset it."""
        return self._left_out.pop(kind, 0)


def _now_s() -> float:
    """Return the time of the loop; 0 without a loop, as in tools, so that each kind is written
    once."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0
