"""Moving a durable to another place (SEM D20)."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.kinds import Command


class Seek(Command, frozen=True):
    """A durable is to go on from ``start_id``."""

    durable: str
    start_id: int
    matched: Spans = ()
    """With a selector: the stored events from there on that it matches."""
    is_exact: bool = False
    """Whether it was named by its id: then it has to be stored, or to be the next id."""
    key: str = ""
    """What the client calls this seek, so that it may ask again; empty: it will not."""


class Sought(Struct, frozen=True, tag=True, array_like=True):
    """A durable goes on from another place: what is stored from there on is outstanding, and
    nothing else. Nobody has anything in hand, and no event counts as delivered."""

    durable: str
    start_id: int
    matched: tuple[Span, ...] | bytes = ()
    """With a selector: the stored events from ``start_id`` on that it matches."""
    key: str = ""
    again: int = 0
    skipped: int = 0
    taken_back: int = 0
