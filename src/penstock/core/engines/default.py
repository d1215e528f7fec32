"""Default: events stay until TTL, capacity, purge or consumption by all durables; subscribers
replay from any id (SEM J1)."""

from __future__ import annotations

from penstock.core.engine import Engine


class Default:
    name = "default"

    def first_id(self, asked: int, next_id: int) -> int:
        return asked


ENGINE: Engine = Default()
