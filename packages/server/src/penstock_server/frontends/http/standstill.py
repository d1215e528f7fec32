"""Detects a standstill: publishers are not read, and no backlog shrinks."""

from __future__ import annotations

from typing import Final

STANDSTILL_S: Final = 5.0
"""Seconds of standstill after which the realm reports that it should get no more clients."""


class Standstill:
    """Watches the backlogs; asked regularly."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._backlog: tuple[int, ...] = ()

    def look(self, now_s: float, backlog: tuple[int, ...], *, is_congested: bool) -> None:
        """Note the present state. ``backlog`` has the waiting bytes of each kind; less of any is
        progress."""
        went_on = any(
            now < before for now, before in zip(backlog, self._backlog, strict=bool(self._backlog))
        )
        self._backlog = backlog
        if not is_congested or went_on:
            self._since_s = None
        if is_congested and self._since_s is None:
            self._since_s = now_s

    def lasts_s(self, now_s: float) -> float:
        """Seconds that the standstill has lasted; 0: there is none."""
        return 0.0 if self._since_s is None else now_s - self._since_s
