"""The vocabulary of the core: commands, facts and effects.

Commands are imperative, facts in the past tense, effects orders to the shell. Bytes travel beside a
command: the core sees a :class:`Digest`. Times are microseconds since 1970 (``_us``) or ``_ms``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from penstock.core.ids.ids import Span
from penstock.core.vocabulary.backoff import Backoff
from penstock.core.vocabulary.compression import Compression
from penstock.core.vocabulary.counters import Counters
from penstock.core.vocabulary.durable_attributes import DurableAttributes
from penstock.core.vocabulary.places import AnyPlaceFact
from penstock.core.vocabulary.seeks import LastSeek, Sought

Spans = tuple[Span, ...]
Ids = Spans | bytes  # as they are stored: ranges, or packed (``core.vocabulary.stored_ids``)


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
    """The ids (``core.ids.id_lists``), of stored events and of this batch, that newer values of a
    publish key replace (SEM K1). Ids, not offsets: the shell knows where the batch begins."""


class Cause(StrEnum):
    """Why an event left a channel. Every removal has exactly one (SEM T8)."""

    CONSUMED = "consumed"
    EXPIRED = "expired"
    EVICTED = "evicted"
    PURGED = "purged"
    REPLACED = "replaced"
    """Replaced by a newer event of the same publish key (SEM K1)."""
    RELAYED = "relayed"
    """Never stored: it went to those who were there (SEM E8, C1e)."""
    REDRIVEN = "redriven"
    """Moved from a dead event store to where it is wanted again (SEM T10)."""
    DROPPED = "dropped"
    """Dropped because nobody waits for it any more (SEM J2)."""
    UNDELIVERABLE = "redelivery_limit"
    """Rolled back too often (SEM T10); counted as dead."""
    REJECTED = "rejected"
    """A client has said that it can do nothing with it (SEM T11); counted as dead."""
    BURIED = "buried"
    """What REJECTED was called before; stored facts and origins have it still."""
    QUARANTINED = "quarantined"


# --- attributes ---------------------------------------------------------------------------


PRIORITY_DEFAULT = 4
"""The priority of an event that was published without one."""


class Storage(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Storage properties of a channel or queue (SEM S)."""

    honour_capacity: bool = False
    """Refuse a publish to a full channel instead of evicting the oldest event (SEM T4)."""
    sync: Literal["group", "none"] = "group"
    """When an acknowledged event is on disk: with its group, or when the operating system likes
    (``none``: survives a crash of the process, not of the machine)."""
    sync_each_write: bool = False
    """One sync a publish instead of one a group."""
    sync_max_batch_size: int = 1 << 20
    """Bytes at which a group closes: what waits longer goes into the next."""
    sync_batch_time: int = 2
    """Milliseconds after which a group closes, however much waits still."""
    events_per_spindle: int = 50_000
    """Events in a sealed segment file; 0: a single file, rewritten by maintenance."""
    auto_maintenance: bool = True
    """Rewrite a single file once much of it is dead."""
    enable_caching: bool = True
    """Keep files open and what was read from them in memory."""
    cache_on_reload: bool = False
    """Read everything once at start-up."""
    read_buffer_size: int = 1 << 20
    """Most bytes read for one delivery where files are not kept open (``enable_caching``)."""
    priority: int = PRIORITY_DEFAULT
    """Priority of events published without one."""
    stamp_dictionary: bool = False
    """Add publisher, host, time and id as read-only properties under ``$penstock``."""
    compression: Compression = "none"
    """How files of events are compressed that are written from now on."""


class Definition(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Attributes of a channel or queue (SEM C3)."""

    type: str = "mixed"
    """Where events are kept, and whether they survive a restart (SEM C1)."""
    engine: str = "default"
    """The rules by which events are kept and delivered: ``default``, ``jms`` or ``merge``."""
    kind: Literal["channel", "queue", "schedule", "outbox"] = "channel"
    """A queue gives each event to one reader (SEM Q); the others are the realm's own: events that
    wait for their time (SEM X4), or to leave for the cluster (N9)."""
    ttl: int = 0
    """Milliseconds an event stays at most, from its publish; 0 = no such limit (SEM T1)."""
    capacity: int = 0
    """Most events on the channel; 0 = no limit (SEM T3)."""
    dead_event_store: str = ""
    """Channel or queue for events that leave unconsumed by age or capacity (SEM T5)."""
    keys: dict[str, int] = {}
    """Publish keys: of each value of the property only so many of the newest stay (SEM K1)."""
    max_deliveries: int = 0
    """Queues: deliveries after which a rolled-back event is dead; 0 = no limit (SEM T10)."""
    backoff: Backoff | None = None
    """Queues: how long a rolled-back event waits to come again; None: not at all (SEM D18)."""
    retain_consumed: bool = False
    """Keep events that all durables have acknowledged (SEM D6), as the merge engine always does."""
    event_ttl: bool = False
    """Honour an event's own TTL on every type, not on mixed only (SEM T2, extension)."""
    cluster_wide: bool | None = None
    """Exists on every node of a cluster, and keeps all its events whatever its type (SEM C5, N1).
    None, not given: yes on a cluster where the type allows it. Without a cluster yes is refused."""
    start_event_id: int = 0
    """Id of the channel's first event (SEM E4)."""
    descriptors: bytes = b""
    """A serialized ``FileDescriptorSet``: the types of the messages in its events (SEM P1)."""
    archive: str = ""
    """Where events are that have left the channel: the path or URI of a table an archive
    pipeline writes, as clients and executors reach it. The realm never looks there."""
    topics: tuple[str, ...] = ()
    """Topics of MQTT whose messages it takes; a level in braces is a property (SEM M12)."""
    payload: Literal["bytes", "json"] = "bytes"
    """What these carry: anything, or JSON objects, whose fields are properties (SEM M14)."""
    storage: Storage = Storage()


def attributes_of(kind: Literal["channel", "queue"]) -> frozenset[str]:
    """Names of the attributes of ``Definition`` that users give to a store of this kind."""
    of_queues, of_channels = {"max_deliveries", "backoff"}, {"archive", "topics", "payload"}
    foreign = of_queues if kind == "channel" else of_channels
    return frozenset(Definition.__struct_fields__) - {"kind", *foreign}


def durable_attributes(source: DurableAttributes | DurableState) -> DurableAttributes:
    """The attributes of a durable in ``source``, and nothing else of it."""
    names = DurableAttributes.__struct_fields__
    return DurableAttributes(**{name: getattr(source, name) for name in names})


# --- commands -----------------------------------------------------------------------------


class Command(Struct, frozen=True):
    """Something a client, an administrator or the clock asks of a channel."""


class Publish(Command, frozen=True):
    digest: Digest
    producer: str = ""
    """The name under which repeated publishes are found (SEM X3); empty: they are not."""
    sequence: int = 0
    overshoot: bool = False
    """A transaction begun below capacity may overshoot it as a whole (SEM T4)."""
    memory_left: int = 1 << 62
    """Bytes the realm still grants to events kept the way this channel keeps them (SEM C6)."""
    forced: bool = False
    """The realm's own publish, of events that were accepted before: no lack of room refuses it."""
    evicts: bool = True
    """Whether it may evict where the channel does (SEM T3); else its capacity is honoured."""
    evicts_later: bool = False
    """Whether what it evicts leaves in later sweeps, for it cannot move yet."""


class AddDurable(DurableAttributes, Command, frozen=True):
    name: str
    kind: str
    start_id: int = 0  # first id of interest: the shell has resolved latest, and times
    selector: str = ""
    matched: Spans = ()
    """With a selector: the stored events at or after ``start_id`` it matches."""
    persistent: bool | None = None  # None: where the channel's ids survive (SEM D3)


class RemoveDurable(Command, frozen=True):
    name: str


class PurgeOutstanding(Command, frozen=True):
    """Take ``spans`` off what is outstanding at a durable; the others keep them."""

    name: str
    spans: Spans


class TakeSeat(Command, frozen=True):
    """A session takes a seat at a durable."""

    durable: str
    subscription: int
    session: str
    window: int | None = None
    """Most events sent and not settled; None: the type's default (SEM D9)."""
    pull: bool = False
    """Synchronous consumption: events go out on :class:`SetDemand` only (SEM D5)."""
    selector: str = ""
    """A queue reader's own: it gets only what this matches (SEM Q1)."""
    matched: Spans = ()
    """With a selector, the outstanding events that it matches."""
    auto_ack: bool = False
    """The client acknowledges events as it hands them out, without being told to (SEM D5, J7)."""
    sole: bool = False
    """The client holds the durable as a whole (``core.channel.holding``)."""
    ack_timeout_ms: int = 0
    """A queue reader's own: how long it may have an event in hand (SEM D19); 0: no limit."""
    place: str = ""
    """What the seat is known by to the next connection of its session (SEM N6)."""


class SetDemand(Command, frozen=True):
    """A synchronous consumer wants ``count`` events from now on; 0 cancels. For a plain subscriber,
    whose credit says how many it wants, 0 asks to be told once it has everything there is now."""

    subscription: int
    count: int
    at_once: bool = False
    """With 0: nothing more is sent, and nobody is told."""


class AddSubscriber(Command, frozen=True):
    """A session reads the channel itself, from ``start_id`` on, up to ``stop_id`` if given."""

    subscription: int
    session: str
    start_id: int
    stop_id: int | None = None
    """The id before which a browse ends; at the latest at the last stored event."""
    credit: int = 0
    only: Spans | None = None
    """A browse of a durable: these ids and no others."""
    durable: str | None = None
    """The durable that is browsed: its redelivery counts are shown (SEM E9)."""
    confirms: bool = False
    """It confirms what has arrived, in :class:`GrantCredit` (SEM J5)."""
    resumes: int | None = None
    """The subscription whose place it takes: it had lost its connection (SEM J5)."""
    selector: str = ""
    """Its own, where the engine asks who waits for an event as it is published (SEM J2)."""
    is_selective: bool = False
    """The shell finds out which events may be for it, by a selector of its own."""


class GrantCredit(Command, frozen=True):
    """A plain subscriber can take ``count`` more events."""

    subscription: int
    count: int
    next_id: int = 0
    """All events sent with lower ids have arrived."""
    withdrawn: int = 0
    """Credit that it takes back."""
    arrived: Spans = ()
    """Events that have arrived, even where some with lower ids have not."""
    has_room: bool = False
    """There is room again for what was withheld (:class:`Withhold`)."""


class Disconnect(Command, frozen=True):
    """The connection of a plain subscriber is lost; it may come back (SEM J5)."""

    subscription: int
    arrived: Spans = ()
    """Events that have arrived, as the subscriber has reported before."""


class StallSession(Command, frozen=True):
    """The connection of a session is full, or can take more again."""

    session: str
    stalled: bool


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
    elsewhere: bool = False
    """This client does not get them again; others may."""
    delay_ms: int | None = None
    """How long they wait before they come again; None: as the durable's backoff says (SEM D18)."""


class ConfirmRecall(Command, frozen=True):
    """The client knows of the oldest :class:`Recall` it had not confirmed."""

    subscription: int


class Skip(Command, frozen=True):
    """The shell did not send these of a grant: not selected, or unreadable. They take no credit."""

    subscription: int
    spans: Spans


class Withhold(Command, frozen=True):
    """The shell did not send these granted events, nor any behind them: the client has no room, its
    selector takes long, or its connection is lost. They come again, perhaps to another client."""

    subscription: int
    spans: Spans
    is_full: bool
    """Whether nothing more is granted until there is room (:class:`GrantCredit`)."""
    is_choosing: bool = False
    """Nothing is granted until its selector has been put to these (:class:`EndChoosing`)."""


class EndChoosing(Command, frozen=True):
    """The selector of a subscription has been put to what was withheld for it."""

    subscription: int


class Detach(Command, frozen=True):
    """A subscription ends, because it was closed or its session has ended (SEM D13)."""

    subscription: int
    comes_back: bool = False
    """The realm itself has ended the connection: the seat waits for its session (SEM N6)."""


class PurgeEvents(Command, frozen=True):
    """Remove the stored events in ``spans`` (SEM T9)."""

    spans: Spans


class Edit(Command, frozen=True):
    definition: Definition


class Sweep(Command, frozen=True):
    """Time has passed; remove what has expired, is consumed, or unwanted (SEM T1, D6, J2)."""

    may_write: bool = True
    """Whether there is room on disk for what has to be kept from now on (SEM J7)."""
    moved_max: int = 1 << 62
    """The most dead events that move in this step (SEM T7)."""


class Quarantine(Command, frozen=True):
    """The store cannot read these events any more (SEM S1)."""

    spans: Spans


class RemoveRedriven(Command, frozen=True):
    """Remove dead events that have been published elsewhere again (SEM T10)."""

    spans: Spans


class EndRelay(Command, frozen=True):
    """Events that are relayed, or were evicted, have been offered to all who are attached (SEM E8,
    T3); those that are never stored leave once they have reached them all (SEM J4)."""

    spares: bool = True
    """Whether there is memory for events that wait for a selector that takes long."""


# --- facts --------------------------------------------------------------------------------


class Fact(Struct, frozen=True, tag=True, array_like=True, gc=False):
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
    """What durables with a selector want, by their names; those not named want none of it."""
    relayed: Spans = ()
    """Ids of events that are never stored (SEM E8)."""
    passing: Spans = ()
    """Ids kept in memory only, whatever the type, until those who are there have them (SEM J4)."""
    dropped: Spans = ()
    """Ids of events that nobody waited for (SEM J2)."""


class PersistedLate(Fact, frozen=True, tag="Secured"):
    """Passing events are kept from now on: their durable has lost its client (SEM J7)."""

    spans: Spans
    at_us: int
    """When they were published."""
    ttls: tuple[tuple[int, Spans], ...] = ()
    """Events with a TTL of their own, by the time it ends, in microseconds."""


class IdsReserved(Fact, frozen=True):
    """Ids below ``through`` may have been given to events in memory (SEM E4, C1c)."""

    through: int


class Removed(Fact, frozen=True):
    spans: Spans
    cause: Cause
    dead: Spans = ()
    """The part of ``spans`` that moves to the dead event store in the same step (SEM T7)."""


class Replaced(Fact, frozen=True):
    """Newer values of publish keys have come (SEM K1): a removal, of ``core.ids.id_lists``."""

    ids: bytes


class DurableCreated(DurableAttributes, Fact, frozen=True):
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
    """Back among the undelivered: at once, counted; or with the next attach, uncounted."""

    durable: str
    spans: Spans


class TimedOut(Fact, frozen=True):
    """Back among the undelivered, counted, because clients had them for too long (SEM D19)."""

    durable: str
    spans: Spans


class Postponed(Fact, frozen=True):
    """Outstanding events that do not come again before ``until_us`` (SEM D18)."""

    durable: str
    spans: Spans
    until_us: int


class Buried(Fact, frozen=True):
    """Rolled back too often, or named by a client: dead for this durable alone (SEM T10)."""

    durable: str
    spans: Spans
    cause: Cause = Cause.UNDELIVERABLE


class PackedIds(Fact, frozen=True):
    """A fact about scattered ids, only as stored (``core.vocabulary.stored_ids``)."""

    fact: Acked | RolledBack | TimedOut | Postponed | Buried | Removed
    ids: bytes


class Edited(Fact, frozen=True):
    definition: Definition


class DurableState(Struct, frozen=True, array_like=True):
    """A durable as a snapshot keeps it: the order of its fields is stored, so that it has those of
    :class:`DurableAttributes` itself."""

    name: str
    kind: str
    selector: str
    persistent: bool
    head: int
    outstanding: Ids
    redelivered: tuple[tuple[int, Ids], ...]
    max_deliveries: int = 0
    cluster_wide: bool = False
    strict_order: bool = False
    order_by: str = ""
    rolled_back: Ids = ()
    """Given back and not settled since, where that does not come again at once."""
    backoff: Backoff | None = None
    waiting: tuple[tuple[int, Ids], ...] = ()
    """Given back and not to come again before a time, in microseconds, by that time."""
    ack_timeout: int = 0
    last_seek: LastSeek | None = None


class ProducerState(Struct, frozen=True, array_like=True):
    name: str
    forgotten: int
    at_us: int
    recent: tuple[tuple[int, Span], ...]


class Restored(Fact, frozen=True):
    """Everything before this fact, in one: the channel's part of a snapshot."""

    definition: Definition
    next_id: int
    reserved: int
    stored: Ids
    ages: tuple[tuple[int, int], ...]
    own_expiry: tuple[tuple[int, Ids], ...]
    durables: tuple[DurableState, ...]
    producers: tuple[ProducerState, ...]
    consumed: Ids
    counters: Counters
    departed: tuple[tuple[str, Ids], ...] = ()
    """The ids of events that have left, by cause."""
    departed_from: int = -1
    """The lowest id with a known cause of removal; -1: written before causes were kept."""
    died: tuple[tuple[str, str, int], ...] = ()
    topics_since: int = 0
    """These are as in ``ChannelState``."""


StoredFact = (
    Appended
    | PersistedLate
    | IdsReserved
    | Removed
    | Replaced
    | DurableCreated
    | DurableDeleted
    | Acked
    | RolledBack
    | TimedOut
    | Postponed
    | Buried
    | PackedIds
    | Edited
    | Restored
    | Sought
    | AnyPlaceFact
)


class Decided(Struct, frozen=True):
    """The decision about a command: facts to store, and the answer once they are stored."""

    facts: tuple[StoredFact, ...] = ()
    answer: Span | int | None = None
    is_retry: bool = False
    """The publish was stored before; the answer is what it got then (SEM X3)."""
    follows: bool = True
    """Whether anything may follow from the facts besides themselves: not from most of them."""
