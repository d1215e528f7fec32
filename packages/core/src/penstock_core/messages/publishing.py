"""Publishing to a channel, and the facts of a publish."""

from __future__ import annotations

from msgspec import field

from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.kinds import Command, Fact, RealmFact
from penstock_core.vocabulary.digest import Digest


class Publish(Command, frozen=True):
    """Append a batch of events to a channel."""

    digest: Digest
    producer: str = ""
    """Name of the producer, by which retries are recognized (SEM X3); empty if retries of this
    publish need not be recognized."""
    sequence: int = 0
    """The producer's number for this publish; a retry has the same number."""
    overshoot: bool = False
    """Whether the publish may exceed the capacity, because it is part of a transaction that began
    below the capacity (SEM T4)."""
    memory_left: int = 1 << 62
    """Free bytes of the realm's limit for events in this channel's place of storage (SEM C6)."""
    index_growth: int = 0
    """Memory for new values of publish keys and new states of a merge channel, in bytes."""
    index_left: int = 1 << 62
    """Free bytes of the realm's limit for such values and states (SEM C6)."""
    forced: bool = False
    """Whether the realm itself publishes events that have already been accepted. Such a publish is
    not refused for lack of space."""
    evicts: bool = True
    """Whether the publish may evict events on an evicting channel (SEM T3); otherwise it is refused
    at the capacity."""
    evicts_later: bool = False
    """Whether the publish leaves events above the capacity to later sweeps, because the events to
    be evicted cannot move to their dead event store yet."""


class Appended(Fact, frozen=True):
    """A batch of events was appended to a channel."""

    span: Span
    """The ids of the batch."""
    at_us: int
    size: int
    """Size of the batch, in bytes."""
    producer: str = ""
    sequence: int = 0
    volatile: Spans = ()
    """Ids kept in memory only."""
    absent: Spans = ()
    """Ids of ``span`` that were volatile and did not survive the restart."""
    ttls: tuple[tuple[int, Spans], ...] = ()
    """Event TTLs in ms, each with the ids of the events that have it."""
    matched: dict[str, Spans] = field(default_factory=dict)
    """Ids that each durable with a selector wants, by its name. Such a durable without entry wants
    none of them."""
    relayed: Spans = ()
    """Ids of events that are never stored (SEM E8)."""
    passing: Spans = ()
    """Ids kept in memory only, whatever the type, until connected clients have received them
    (SEM J4)."""
    dropped: Spans = ()
    """Ids of events without interest, which are not kept (SEM J2)."""


class IdsReserved(Fact, frozen=True):
    """Ids below ``through`` may have been assigned to events in memory (SEM E4, C1c)."""

    through: int


class PublishingPauseSet(RealmFact, frozen=True, tag="PublishingPaused"):
    paused: bool
