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
    """Stored events from ``start_id`` on that match the durable's selector; empty if it has
    none."""
    is_exact: bool = False
    """Whether the client named an event id, which must be stored or be the next id."""
    key: str = ""
    """The client's name for this seek, which identifies repetitions; empty if the client never
    repeats it."""


class Sought(Struct, frozen=True, tag=True, array_like=True):
    """A durable continues from another position: exactly the stored events from there on are
    outstanding. No client holds events, and redelivery counts are dropped."""

    durable: str
    start_id: int
    matched: tuple[Span, ...] | bytes = ()
    """Stored events from ``start_id`` on that match the durable's selector, packed if they are
    scattered; empty if it has none."""
    key: str = ""
    again: int = 0
    """Number of events that became outstanding."""
    skipped: int = 0
    """Number of events that are not outstanding any more."""
    taken_back: int = 0
    """Number of events that were taken back from clients."""
