"""Moving a durable to another position (SEM D20)."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.kinds import Command


class Seek(Command, frozen=True):
    """Let a durable continue from ``start_id``."""

    durable: str
    start_id: int
    matched: Spans = ()
    """With a selector: the stored events from ``start_id`` on that it matches."""
    is_exact: bool = False
    """Whether the client named an event id, which must be stored or be the next id."""
    key: str = ""
    """The client's name for this seek, which identifies repetitions; empty: it does not repeat
    it."""


class Sought(Struct, frozen=True, tag=True, array_like=True):
    """A durable continues from another position: exactly the stored events from there on are
    outstanding. No client holds events, and redelivery counts are dropped."""

    durable: str
    start_id: int
    matched: tuple[Span, ...] | bytes = ()
    """With a selector: the stored events from ``start_id`` on that it matches."""
    key: str = ""
    again: int = 0
    skipped: int = 0
    taken_back: int = 0
