"""Figures about the columns of a batch that the rules need."""

from __future__ import annotations

from msgspec import Struct, field

from penstock_core.ids.ids import Spans


class Digest(Struct, frozen=True):
    """The facts about a batch that the rules need, computed from its columns at once.

    Spans here are offsets inside the batch: 0 is its first event.
    """

    count: int
    """Events in the batch."""
    size: int
    """Bytes of the batch."""
    largest: int
    """Upper bound of the bytes of its largest event (SEM E7)."""
    volatile: Spans = ()
    """Events whose ``persistent`` flag is false (SEM C1b)."""
    transient: Spans = ()
    """Events flagged transient (SEM E8)."""
    ttls: tuple[tuple[int, Spans], ...] = ()
    """Events with a TTL of their own, by TTL in ms (SEM T2)."""
    matched: dict[str, Spans] = field(default_factory=dict)
    """By selector in use on the channel: the events it matches. Others match none."""
    superseded: bytes = b""
    """The ids (``penstock_core.ids.id_lists``), of stored events and of this batch, that newer
    values of a publish key replace (SEM K1). Ids, not offsets: the shell knows where the batch
    begins."""
