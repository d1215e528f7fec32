"""The fact that a durable was moved to another place (SEM D20), and what is kept of it."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.ids.ids import Span


class LastSeek(Struct, frozen=True, array_like=True):
    """What a durable remembers of the last seek: whoever asks for it again, because the answer was
    lost, gets the same answer, and nothing is moved twice."""

    key: str = ""
    """What the client called it; empty: there was none that could be asked for again."""
    start_id: int = 0
    """The id from which the durable went on."""
    again: int = 0
    """Events that are outstanding because of it."""
    skipped: int = 0
    """Events that are not outstanding any more because of it."""
    taken_back: int = 0
    """Events that were in clients' hands."""


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
