"""What tells one fan-out engine from another (SEM J, K). Each engine is one file in
``core.engines``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    def first_id(self, asked: int, next_id: int) -> int:
        """Where a plain subscription that asks to start at ``asked`` really starts."""
        ...


Engines = Mapping[str, Engine]
