"""What requests of the HTTP API carry, and what they are answered with.

One Struct says it for the code that reads it and for the OpenAPI document. Attributes' times are
milliseconds, as everywhere; ``timeout`` is seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from penstock.core.bounds import GIVEN_NAME_CHARACTERS_MAX
from penstock.core.vocabulary.messages import Definition, Storage

T = TypeVar("T")

LIMIT_MAX = 1_000
"""Things of one page, at most."""
LIMIT_DEFAULT = 100
PREVIEW_BYTES = 64 << 10
"""Bytes of an event's data that a list shows, unless asked for fewer or more."""
LIVE_PREVIEW_BYTES = 4 << 10

Moment = Annotated[datetime, Meta(tz=True)]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PendingCount = Annotated[
    int,
    Meta(
        description="Another name of `in_flight`, which to use instead.",
        extra_json_schema={"deprecated": True},
    ),
]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Most things on a page.")]
Id = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
ResourceKind = Literal["realm", "channel", "queue"]
Members = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(max_length=1_000)
]
Selector = Annotated[str, Meta(max_length=65_536, description="Only events that match (SEM F).")]
Name = Annotated[str, Meta(min_length=1, max_length=GIVEN_NAME_CHARACTERS_MAX)]
QuerySelector = Annotated[
    str, Meta(max_length=4_096, description="Only events that match (SEM F).")
]
StartText = Annotated[
    str,
    Meta(
        max_length=64,
        description="earliest, latest, an event id, or a time such as 2026-05-04T12:00:00Z.",
    ),
]
DataBytes = Annotated[
    int, Meta(ge=0, le=1 << 20, description="Bytes of data shown of each event, at most.")
]


def moment(us: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=us)


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request carries. An unknown field is an error that names it."""


class Query(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands behind the question mark."""


class NoQuery(Query, frozen=True):
    pass


class Answer(Struct, frozen=True, kw_only=True):
    pass


class ErrorDetail(Answer, frozen=True):
    code: str
    """Stable: the codes of ``penstock error``, the same as over every other way in."""
    message: str
    retryable: bool = False
    """Whether the same request may succeed later."""


class ErrorAnswer(Answer, frozen=True):
    error: ErrorDetail


class Page(Answer, Generic[T], frozen=True):
    items: list[T]
    next: str | None = None
    """Give it as ``after`` to get the page that follows; null: this is the last one."""


class Counted(Answer, frozen=True):
    count: int
    """How many."""


class Done(Answer, frozen=True):
    done: Literal[True] = True


class After(Query, frozen=True):
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=1_024)] = ""


# --- the realm ----------------------------------------------------------------------------


State = Literal["ok", "starting", "stopping", "failed", "standstill"]


class Health(Answer, frozen=True):
    status: State
    """standstill, of ``/ready``: publishers have not been read for five seconds."""


class RealmAnswer(Answer, frozen=True):
    """What ``penstock info --format json`` says, and how to reach it."""

    name: str
    identity: str
    version: str
    mode: Literal["off", "optional", "mandatory"]
    """Whether users have to say who they are (SEM A4)."""
    now: Moment
    started: Moment
    channels: int
    queues: int
    connections: int
    journal_bytes: int
    memory_bytes: int
    memory_bytes_max: int
    off_heap_bytes: int
    off_heap_bytes_max: int
    paged_bytes: int
    paged_bytes_max: int
    publishing_paused: bool
    event_bytes_max: int
    damage: list[str]
    """What could not be read at the start, and why (SEM S1)."""


class Pause(Body, frozen=True):
    paused: bool


# --- channels and queues ------------------------------------------------------------------


def _optional(source: type[Struct], name: str, without: frozenset[str], **own: Any) -> Any:
    """The fields of ``source``, each of which may be left out."""
    fields = [
        (each.name, own.get(each.name, each.type) | UnsetType, UNSET)
        for each in msgspec.structs.fields(source)
        if each.name not in without
    ]
    return msgspec.defstruct(
        name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True, module=__name__
    )


StorageAttributes = _optional(Storage, "StorageAttributes", frozenset())
ChannelAttributes = _optional(
    Definition,
    "ChannelAttributes",
    frozenset(("kind", "max_deliveries")),
    storage=StorageAttributes,
)
"""The attributes of SEM C3 by their names; ``descriptors`` is base64."""
QueueAttributes = _optional(
    Definition, "QueueAttributes", frozenset(("kind", "archive")), storage=StorageAttributes
)


class NewChannel(Body, frozen=True):
    name: Name
    attributes: ChannelAttributes = ChannelAttributes()  # type: ignore[valid-type]  # made above


class NewQueue(Body, frozen=True):
    name: Name
    attributes: QueueAttributes = QueueAttributes()  # type: ignore[valid-type]  # made above


class CounterAnswer(Answer, frozen=True):
    published: int
    consumed: int
    expired: int
    evicted: int
    purged: int
    quarantined: int
    redelivered: int
    dead: int
    replaced: int
    relayed: int
    redriven: int
    dropped: int


class Conservation(Answer, frozen=True):
    """Where every published event is or went (SEM T8)."""

    published: int
    live: int
    overdue: int
    consumed: int
    dead: int
    expired: int
    evicted: int
    purged: int
    replaced: int
    relayed: int
    redriven: int
    dropped: int
    quarantined: int
    sum: int
    holds: bool
    """Whether the terms add up to what was published; they always do."""


class DefinitionAnswer(Answer, frozen=True):
    type: str
    engine: str
    kind: str
    ttl: int
    capacity: int
    dead_event_store: str
    keys: dict[str, int]
    max_deliveries: int
    retain_consumed: bool
    event_ttl: bool
    cluster_wide: bool
    start_event_id: int
    archive: str
    storage: dict[str, Any]
    message_types: list[str] | None
    """Types of Protocol Buffers messages; null where they cannot be read."""


class StorageAnswer(Answer, frozen=True):
    tail_bytes: int
    """In memory: not yet sealed (on disk in the journal too, unless kept in memory only)."""
    sealed_bytes: int
    sealed_files: int
    memory_bytes: int
    quarantined: list[str]
    home: str
    paged_bytes: int


class ChannelAnswer(Answer, frozen=True):
    """What ``penstock channel show --format json`` prints; of a queue, ``penstock queue show``."""

    name: str
    definition: DefinitionAnswer
    deprecated: bool
    first_event_id: int | None
    last_event_id: int
    events: int
    durables: int
    subscribers: int
    counters: CounterAnswer
    conservation: Conservation
    storage: StorageAnswer
    readers: list[str]
    in_flight: int
    """Delivered, and not acknowledged; of a queue, not committed."""
    pending: PendingCount
    redelivered: int
    scheduled: int
    overdue: int
    oldest_event_ms: int | None = None
    """Age of the oldest stored event."""


class SegmentAnswer(Answer, frozen=True):
    path: str
    """On the realm's machine; empty when other processes cannot map it."""
    size: int
    first_id: int
    last_id: int
    events: int


class StoragePlace(Answer, frozen=True):
    storage: StorageAnswer
    segments: list[SegmentAnswer]
    """The first :data:`SEGMENTS_MAX` of them."""
    segments_left_out: int
    unsealed_events: int


class MaintainedAnswer(Answer, frozen=True):
    bytes_before: int
    bytes_after: int
    events: int
    reason: str
    """Why there was nothing to do; empty: it was rewritten."""


class ColumnAnswer(Answer, frozen=True):
    name: str
    type: str


class MissingQuery(Query, frozen=True):
    start: Id = 0
    end: Id | None = None
    """Inclusive; left out: the last id given."""


class MissingAnswer(Answer, frozen=True):
    cause: str
    events: int
    spans: list[tuple[int, int]]
    """First id, and the one behind the last."""


# --- events -------------------------------------------------------------------------------


class EventAnswer(Answer, frozen=True, omit_defaults=True):
    """An event as ``--format json`` prints it, with what a list has to leave out."""

    event_id: int
    published: Moment
    size: int
    """Bytes of its data, shown or not."""
    properties: dict[str, Any]
    tag: str | None = None
    data: str | None = None
    """Its data when that is UTF-8 text."""
    data_base64: str | None = None
    """Its data when it is not."""
    message: Any = None
    """Its data as the Protocol Buffers message it carries; then there is no ``data``."""
    is_cut: bool = False
    """The data shown is the beginning only; ``events/{id}`` has all of it."""
    headers: dict[str, Any] = field(default_factory=dict)
    is_delta: bool = False
    redelivery_count: int = 0
    ttl: int = 0
    priority: int = 4
    persistent: bool = True
    origin: dict[str, Any] | None = None
    """Where a dead or joined event came from: store, event_id, published, cause, at, durables, …"""


class LookedAt(Answer, frozen=True):
    first_id: int
    last_id: int
    """Inclusive. What is stored between these ids and matches is on this page, and nothing else."""


class EventsPage(Answer, frozen=True):
    items: list[EventAnswer]
    next: str | None = None
    """Give it as ``after`` to get the page that follows (with ``newest``, the one before); null:
    this is the last one."""
    looked_at: LookedAt | None = None
    """null: there was nothing to look at."""


class EventDetail(Answer, frozen=True):
    event: EventAnswer
    """With all of its data, and also the fields of ``views``."""
    views: EventViews


class EventViews(Answer, frozen=True, omit_defaults=True):
    """The data as it can be read; null: it is nothing of the kind."""

    base64: str
    hex: str
    """The first 4,096 bytes as a hex dump."""
    text: str | None = None
    json: Any = None
    protobuf: Any = None
    message_type: str | None = None


class EventsQuery(Query, frozen=True):
    start: StartText = "earliest"
    end: Id | None = None
    """Last id, inclusive."""
    selector: QuerySelector = ""
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=1_024)] = ""
    """``next`` of the page before; wins over ``start``."""
    columns: Annotated[str, Meta(max_length=4_096)] = ""
    """Only these, comma-separated: fields of an event, or ``properties.price``."""
    data_bytes: DataBytes = PREVIEW_BYTES
    newest: bool = False
    """The last ``limit`` stored events that match instead of the first ones; they come oldest
    first, too, and ``next`` leads to those before them."""


class OutstandingQuery(Query, frozen=True):
    selector: QuerySelector = ""
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=1_024)] = ""
    data_bytes: DataBytes = PREVIEW_BYTES


class NewEvent(Body, frozen=True):
    """An event to publish. An ``EventAnswer`` without what the realm gives can be published again
    as it is."""

    data: str = ""
    data_base64: str | None = None
    tag: str | None = None
    properties: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    ttl: Annotated[int, Meta(ge=0)] | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    persistent: bool | None = None
    transient: bool = False
    is_delta: bool = False
    deliver_at: str | float | None = None
    """A time, or seconds since 1970: it waits until then."""
    message: Any = None
    """A Protocol Buffers message; its type is the header ``message_type``."""


class NewEvents(Body, frozen=True):
    """Published in one step: consecutive ids, all or none."""

    events: Annotated[list[NewEvent], Meta(min_length=1, max_length=10_000)]
    producer: Annotated[str, Meta(max_length=128)] = ""
    sequence: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    """With ``producer``: a request sent again is answered with the ids of the first time."""


class PublishQuery(Query, frozen=True):
    producer: Annotated[str, Meta(max_length=128)] = ""
    sequence: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0


class PublishedAnswer(Answer, frozen=True):
    first_id: int
    last_id: int
    count: int
    scheduled: bool = False
    """The ids are numbers in the schedule: the events wait for their time."""


class Purge(Body, frozen=True):
    start: Id | None = None
    end: Id | None = None
    """Inclusive."""
    selector: Selector = ""
    dry_run: bool = False
    """Only count."""


class Purged(Answer, frozen=True):
    count: int
    dry_run: bool


class LiveQuery(Query, frozen=True):
    start: StartText = "latest"
    selector: QuerySelector = ""
    data_bytes: Annotated[int, Meta(ge=0, le=65_536)] = LIVE_PREVIEW_BYTES


class Lost(Answer, frozen=True):
    """A live view was too slow: it missed events, and continues behind these ids."""

    first_id: int
    last_id: int
    events: int
    """How many ids that is."""


# --- durables -----------------------------------------------------------------------------


class NewDurable(Body, frozen=True):
    name: Name
    type: Annotated[str, Meta(max_length=64)] = "shared"
    start: StartText = "latest"
    selector: Selector = ""
    persistent: bool | None = None
    max_deliveries: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = 0
    cluster_wide: bool = False
    strict_order: bool = False
    order_by: Annotated[str, Meta(max_length=4_096)] = ""


class DurableAnswer(Answer, frozen=True):
    """What ``penstock durable show --format json`` prints."""

    name: str
    channel: str
    type: str
    persistent: bool
    selector: str
    clients: list[str]
    position: int
    outstanding: int
    in_flight: int
    """Delivered, and not acknowledged; of a queue, not committed."""
    pending: PendingCount
    redelivered: int
    oldest_outstanding_ms: int | None
    last_read_ms: int | None
    max_deliveries: int
    cluster_wide: bool
    strict_order: bool
    order_by: str


# --- queues -------------------------------------------------------------------------------


class Pop(Body, frozen=True):
    count: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 1
    timeout: Annotated[float, Meta(ge=0, le=30)] = 0.0
    """Seconds to wait when nothing is there."""
    selector: Selector = ""


class Popped(Answer, frozen=True):
    items: list[EventAnswer]
    """Taken off the queue for good."""


Openapi = dict[str, Any]
"""The document itself is described by OpenAPI, not by this API."""
