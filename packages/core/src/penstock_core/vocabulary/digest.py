"""Figures of a batch that the rules need."""

from __future__ import annotations

from msgspec import Struct, field

from penstock_core.ids.ids import Spans


class Digest(Struct, frozen=True):
    """Figures of a batch that the rules need, computed from its columns in one pass.

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
    """Events with an event TTL, by TTL in ms (SEM T2)."""
    matched: dict[str, Spans] = field(default_factory=dict)
    """Matching events by selector in use on the channel; a selector that is left out matches
    none."""
    superseded: bytes = b""
    """Ids (a list of ``penstock_core.ids.id_lists``) of stored events and of this batch that newer
    events with the same publish key replace (SEM K1). These are ids instead of offsets, because the
    shell knows the first id of the batch."""
