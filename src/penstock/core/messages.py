"""The vocabulary of the core: what is asked, what happened, what must be done.

Commands are imperative, facts are past tense, effects are orders to the shell. Bytes travel
beside a command, never through it: the core sees a :class:`Digest`. Times are microseconds
since the epoch (``_us``) or milliseconds (``_ms``), as named.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from penstock.core.ids import Span

Spans = tuple[Span, ...]


class Digest(Struct, frozen=True):
    """What the rules need to know about a batch, computed from its columns at once.

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
    """Per selector text in use on the channel: the events it matches."""


class Cause(StrEnum):
    """Why an event left a channel. Every removal has exactly one (SEM T8)."""

    CONSUMED = "consumed"
    EXPIRED = "expired"
    EVICTED = "evicted"
    PURGED = "purged"
    QUARANTINED = "quarantined"


# --- attributes ---------------------------------------------------------------------------


class Storage(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Storage properties of a channel (SEM S)."""

    honour_capacity: bool = False
    """Refuse a publish to a full channel instead of evicting the oldest event (SEM T4)."""
    sync: Literal["group", "each", "none"] = "group"
    """When an acknowledged event is on disk: one sync a group, one a publish, or left to the
    operating system (``none``: survives a crash of the process, not of the machine)."""
    events_per_spindle: int = 50_000
    """Events in a sealed segment file."""


class Definition(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Attributes of a channel (SEM C3)."""

    type: str = "mixed"
    engine: str = "default"
    ttl: int = 0
    """Milliseconds an event stays, from its publish; 0 = for ever (SEM T1)."""
    capacity: int = 0
    """Most events on the channel; 0 = no limit (SEM T3)."""
    retain_consumed: bool = False
    """Keep events that all durables have acknowledged (SEM D6)."""
    event_ttl: bool = False
    """Honour an event's own TTL on every type, not on mixed only (SEM T2, extension)."""
    start_event_id: int = 0
    """Id of the channel's first event (SEM E4)."""
    storage: Storage = Storage()


class Start(Struct, frozen=True, tag=True):
    """Where a subscription or durable begins (SEM E6)."""


class FromId(Start, frozen=True):
    event_id: int


class FromEarliest(Start, frozen=True):
    """The oldest stored event."""


class FromLatest(Start, frozen=True):
    """Only events published from now on."""


class FromTime(Start, frozen=True):
    at_us: int


AnyStart = FromId | FromEarliest | FromLatest | FromTime


# --- commands -----------------------------------------------------------------------------


class Command(Struct, frozen=True):
    """Something a client, an administrator or the clock asks of a channel."""


class Publish(Command, frozen=True):
    digest: Digest
    producer: str = ""
    """Who publishes, for idempotence (SEM X3); empty: nobody in particular."""
    sequence: int = 0
    overshoot: bool = False
    """A transaction begun below capacity may overshoot it as a whole (SEM T4)."""
    memory_left: int = 1 << 62
    """Bytes the realm still grants to memory-backed events (SEM C6)."""


class CreateDurable(Command, frozen=True):
    name: str
    kind: str
    start_id: int = 0
    """First id of interest; the shell has resolved earliest, latest and times."""
    selector: str = ""
    matched: Spans = ()
    """With a selector: the stored events at or after ``start_id`` it matches."""
    persistent: bool | None = None
    """None: true where the channel's events survive a restart (SEM D3)."""


class DeleteDurable(Command, frozen=True):
    name: str


class Attach(Command, frozen=True):
    """A session takes a seat at a durable."""

    durable: str
    subscription: int
    session: str
    window: int | None = None
    """Most events sent and not settled; None: the type's default (SEM D9)."""
    pull: bool = False
    """Synchronous consumption: events go out on :class:`Demand` only (SEM D5)."""


class Demand(Command, frozen=True):
    """A synchronous consumer wants ``count`` events from now on; 0 cancels."""

    subscription: int
    count: int


class Subscribe(Command, frozen=True):
    """A session reads the channel itself, from ``start_id`` on, up to ``stop_id`` if given."""

    subscription: int
    session: str
    start_id: int
    stop_id: int | None = None
    """A browse: ends before this id, or at the end of what is stored."""
    credit: int = 0
    only: Spans | None = None
    """A browse of a durable: these ids and no others."""


class Credit(Command, frozen=True):
    """A plain subscriber can take ``count`` more events."""

    subscription: int
    count: int


class Ack(Command, frozen=True):
    subscription: int
    spans: Spans


class AckPrevious(Command, frozen=True):
    """Acknowledge ``event_id`` and every earlier event this subscription holds."""

    subscription: int
    event_id: int


class RollBack(Command, frozen=True):
    subscription: int
    spans: Spans


class Skip(Command, frozen=True):
    """The shell did not send these of a grant: the subscription's own selector has no use for
    them, or they are unreadable. They take no credit."""

    subscription: int
    spans: Spans


class Detach(Command, frozen=True):
    """A subscription ends: closed, or its session is gone (SEM D13)."""

    subscription: int


class Purge(Command, frozen=True):
    """Remove what is stored of ``spans`` (SEM T9)."""

    spans: Spans


class Edit(Command, frozen=True):
    definition: Definition


class Sweep(Command, frozen=True):
    """Time has passed; remove what has expired (SEM T1) and what all have consumed (SEM D6)."""


class Quarantine(Command, frozen=True):
    """The store cannot read these any more (SEM S1)."""

    spans: Spans


# --- facts --------------------------------------------------------------------------------


class Fact(Struct, frozen=True, tag=True, array_like=True):
    """Something that has happened to a channel. Facts are all that is ever stored."""


class Appended(Fact, frozen=True):
    span: Span
    at_us: int
    size: int
    """Bytes of the batch."""
    producer: str = ""
    sequence: int = 0
    volatile: Spans = ()
    """Ids kept in memory only."""
    absent: Spans = ()
    """Ids of ``span`` that were volatile and did not survive the restart."""
    ttls: tuple[tuple[int, Spans], ...] = ()
    matched: dict[str, Spans] = {}
    """By durable name: the ids its selector wants. Unnamed durables want all."""


class IdsReserved(Fact, frozen=True):
    """Ids below ``through`` may have been given to events in memory (SEM E4, C1c)."""

    through: int


class Removed(Fact, frozen=True):
    spans: Spans
    cause: Cause


class DurableCreated(Fact, frozen=True):
    name: str
    kind: str
    start_id: int
    selector: str = ""
    matched: Spans = ()
    persistent: bool = True


class DurableDeleted(Fact, frozen=True):
    name: str


class Acked(Fact, frozen=True):
    durable: str
    spans: Spans


class RolledBack(Fact, frozen=True):
    """Back among the undelivered, one more redelivery on the count."""

    durable: str
    spans: Spans


class Edited(Fact, frozen=True):
    definition: Definition


class DurableState(Struct, frozen=True, array_like=True):
    """A durable as a snapshot keeps it."""

    name: str
    kind: str
    selector: str
    persistent: bool
    head: int
    outstanding: Spans
    redelivered: tuple[tuple[int, Spans], ...]


class ProducerState(Struct, frozen=True, array_like=True):
    name: str
    forgotten: int
    at_us: int
    recent: tuple[tuple[int, Span], ...]


class Counters(Struct, array_like=True):
    """Conservation (SEM T8): published = live + consumed + expired + evicted + purged
    + quarantined."""

    published: int = 0
    consumed: int = 0
    expired: int = 0
    evicted: int = 0
    purged: int = 0
    quarantined: int = 0
    redelivered: int = 0
    """Deliveries after the first; not part of the sum."""

    @property
    def gone(self) -> int:
        return self.consumed + self.expired + self.evicted + self.purged + self.quarantined


class Restored(Fact, frozen=True):
    """Everything before this fact, in one: the channel's part of a snapshot."""

    definition: Definition
    next_id: int
    reserved: int
    stored: Spans
    ages: tuple[tuple[int, int], ...]
    own_expiry: tuple[tuple[int, Spans], ...]
    durables: tuple[DurableState, ...]
    producers: tuple[ProducerState, ...]
    consumed: Spans
    counters: Counters


StoredFact = (
    Appended
    | IdsReserved
    | Removed
    | DurableCreated
    | DurableDeleted
    | Acked
    | RolledBack
    | Edited
    | Restored
)


class Decided(Struct, frozen=True):
    """What a command leads to: facts to store, and the answer once they are stored."""

    facts: tuple[StoredFact, ...] = ()
    answer: Span | int | None = None


# --- effects ------------------------------------------------------------------------------


class Effect(Struct, frozen=True):
    """Something the shell must do in the world."""


class Deliver(Effect, frozen=True):
    subscription: int
    spans: Spans
    redeliveries: tuple[tuple[int, Spans], ...] = ()
    """By redelivery count: which of ``spans``."""


class Finished(Effect, frozen=True):
    """A browse has seen everything, or a fetch got all it demanded."""

    subscription: int
