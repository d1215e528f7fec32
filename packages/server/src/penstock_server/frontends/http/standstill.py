"""Detects a standstill, in which publishers are not read and no backlog shrinks."""

from __future__ import annotations

from typing import Final

STANDSTILL_S: Final = 5.0
"""Seconds of standstill after which the realm reports that it is not ready for more clients."""


class Standstill:
    """Watches the backlogs, whose sizes it gets at regular intervals."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._backlog: tuple[int, ...] = ()

    def update(self, now_s: float, backlog: tuple[int, ...], *, is_congested: bool) -> None:
        """Record the current state. ``backlog`` has the waiting bytes of each kind; if any has
        shrunk, the realm makes progress."""
        has_progress = any(
            now < before for now, before in zip(backlog, self._backlog, strict=bool(self._backlog))
        )
        self._backlog = backlog
        if not is_congested or has_progress:
            self._since_s = None
        if is_congested and self._since_s is None:
            self._since_s = now_s

    def lasts_s(self, now_s: float) -> float:
        """Return for how many seconds the standstill has lasted; 0 without a standstill."""
        return 0.0 if self._since_s is None else now_s - self._since_s
