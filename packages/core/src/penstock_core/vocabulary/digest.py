"""The digest of a batch: all that the rules read of a publish, instead of its columns."""

from __future__ import annotations

from msgspec import Struct, field

from penstock_core.ids.ids import Spans


class Digest(Struct, frozen=True):
    """Figures of a batch that the rules need, computed from its columns in one pass.

    Spans here are offsets inside the batch: 0 is its first event.
    """

    count: int
    """Number of events in the batch."""
    size: int
    """Size of the batch, in bytes."""
    largest: int
    """Upper bound of the size of the largest event, in bytes (SEM E7)."""
    volatile: Spans = ()
    """Offsets of events whose ``persistent`` flag is false (SEM C1b)."""
    transient: Spans = ()
    """Offsets of events flagged transient (SEM E8)."""
    ttls: tuple[tuple[int, Spans], ...] = ()
    """Event TTLs in ms, each with the offsets of the events that have it (SEM T2)."""
    matched: dict[str, Spans] = field(default_factory=dict)
    """Offsets of the events that each selector in use on the channel matches. A selector without
    entry matches no event."""
    superseded: bytes = b""
    """Ids (a list of ``penstock_core.ids.id_lists``) of stored events and of this batch that newer
    events with the same publish key replace (SEM K1). These are ids instead of offsets, because the
    shell knows the first id of the batch."""
