"""Bodies and answers of the HTTP API.

The same Structs decode requests and define the OpenAPI document. Durations in attributes are in
milliseconds; ``timeout`` is in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType, field, structs

from penstock_core.api.channels import Missing, StorageInfo
from penstock_core.api.durables import (
    CreateDurable,
    DurableInfo,
    PreviewSeek,
    SeekDurable,
    SeekOutcome,
)
from penstock_core.api.reading import ExplainSelector
from penstock_core.api.requests import Request
from penstock_core.bounds import GIVEN_NAME_CHARACTERS_MAX, TTL_MS_MAX, GivenName, SelectorText
from penstock_core.channel.conservation import MEANINGS
from penstock_core.columns.schema.moments import moment_of
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition, Storage, attributes_of
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.start_positions import AnyStart
from penstock_server.frontends.http.generating import NAMES, STARTS

T = TypeVar("T")

LIMIT_MAX = 1_000
"""Maximum number of items on a page."""
LIMIT_DEFAULT = 100
PREVIEW_BYTES = 64 << 10
"""Default number of bytes of an event's data in a list."""
LIVE_PREVIEW_BYTES = 4 << 10
"""Default number of bytes of an event's data in a live view."""

Moment = Annotated[datetime, Meta(tz=True)]
PendingCount = Annotated[
    int,
    Meta(
        description="Deprecated name of `in_flight`.",
        extra_json_schema={"deprecated": True},
    ),
]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Maximum number of items on the page.")]
StreamLimit = Annotated[
    int,
    Meta(
        ge=1,
        le=(1 << 63) - 1,
        description=f"Maximum number of events. On a page of JSON at most {LIMIT_MAX:,}, by "
        f"default {LIMIT_DEFAULT}; in a stream by default all.",
    ),
]
StreamColumns = Annotated[
    str,
    Meta(
        max_length=4_096,
        description="Comma-separated names; empty for all. On a page of JSON the fields of an "
        "event, such as `tag` or `properties.price`; in a stream the columns, such as `tag` or "
        "`price`.",
    ),
]
StreamFormat = Annotated[
    Literal["json", "arrow", "csv", "ndjson"],
    Meta(description="Form of the answer, for clients that cannot set `Accept`."),
]
Id = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
ResourceKind = Literal["realm", "channel", "queue", "topic"]
Members = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...], Meta(max_length=1_000)
]
Selector = Annotated[str, Meta(max_length=65_536, description="Only events that match (SEM F).")]
Name = Annotated[
    str, Meta(min_length=1, max_length=GIVEN_NAME_CHARACTERS_MAX, extra_json_schema=NAMES)
]
QuerySelector = Annotated[
    str, Meta(max_length=4_096, description="Only events that match (SEM F).")
]
StartText = Annotated[
    str,
    Meta(
        max_length=64,
        description="earliest, latest, an event id, or a time such as 2026-05-04T12:00:00Z.",
        extra_json_schema=STARTS,
    ),
]
DataBytes = Annotated[
    int, Meta(ge=0, le=1 << 20, description="Maximum number of data bytes shown per event.")
]


_BODY_TYPES: Final[Mapping[tuple[Any, bool], Any]] = MappingProxyType(
    {
        (SelectorText, False): Selector,
        (AnyStart, True): StartText,
        (GivenName, True): Name,
    }
)
"""Types of fields in a body, by their type in the realm request and whether they are required."""


class RequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of request bodies. An unknown field is an error, whose text names the field."""


class QueryParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of query parameters."""


class NoQuery(QueryParameters, frozen=True):
    pass


class FormBody(Struct, frozen=True, kw_only=True):
    """Base class of bodies that are forms, whose fields are texts. Unknown fields are ignored."""


class Answer(Struct, frozen=True, kw_only=True):
    pass


class ErrorDetail(Answer, frozen=True):
    code: str
    """A stable code, the same in all protocols; ``penstock error`` lists the codes."""
    message: str
    retryable: bool = False
    """Whether the same request may succeed later."""


class ErrorAnswer(Answer, frozen=True):
    error: ErrorDetail


class Page(Answer, Generic[T], frozen=True):
    items: list[T]
    next: str | None = None
    """Pass this as ``after`` to get the next page; null on the last page."""


class Counted(Answer, frozen=True):
    count: int
    """Number of affected items."""


class Done(Answer, frozen=True):
    done: Literal[True] = True


class After(QueryParameters, frozen=True):
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=1_024)] = ""


# --- the realm ----------------------------------------------------------------------------


class RealmAnswer(Answer, frozen=True):
    """The document that ``penstock info --format json`` prints, and how to reach the realm."""

    name: str
    identity: str
    version: str
    mode: Literal["off", "optional", "mandatory"]
    """Whether clients must sign in (SEM A4)."""
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
    mqtt_channel: str
    """The default channel of MQTT topics, which the realm creates when it serves MQTT."""
    event_bytes_max: int
    damage: list[str]
    """Data that could not be read at the start, with reasons (SEM S1)."""


# --- channels and queues ------------------------------------------------------------------


def _http_type(attribute: structs.FieldInfo) -> Any:
    """Return the type of an attribute in HTTP. An optional bool is a plain bool, because a request
    omits the field instead of sending null, and an answer always has its value."""
    return bool if attribute.type == bool | None else attribute.type


def _optional(source: type[Struct], name: str, only: frozenset[str], **types: Any) -> Any:
    """Return a Struct with the fields of ``source`` named in ``only``, all of them optional."""
    fields = [
        (attribute.name, types.get(attribute.name, _http_type(attribute)) | UnsetType, UNSET)
        for attribute in structs.fields(source)
        if attribute.name in only
    ]
    return msgspec.defstruct(
        name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True, module=__name__
    )


StorageAttributes = _optional(Storage, "StorageAttributes", frozenset(Storage.__struct_fields__))
ChannelAttributes = _optional(
    Definition, "ChannelAttributes", attributes_of("channel"), storage=StorageAttributes
)
"""The attributes of a channel (SEM C3); ``descriptors`` is base64."""
QueueAttributes = _optional(
    Definition, "QueueAttributes", attributes_of("queue"), storage=StorageAttributes
)


def _fields_of(
    source: type[Struct], without: frozenset[str], **types: Any
) -> list[tuple[str, Any, Any]]:
    """Return the fields of ``source`` with their defaults; ``types`` overrides their types."""
    return [
        (attribute.name, types.get(attribute.name, attribute.type), attribute.default)
        for attribute in structs.fields(source)
        if attribute.name not in without
    ]


def body_of(
    request: type[Request[Any]],
    name: str,
    *,
    base: type[Struct] = RequestBody,
    without: Sequence[str] = (),
    **types: Any,
) -> Any:
    """Return the fields of ``request`` as a body, or as a query if ``base`` is that of queries.

    Positions and selectors become texts within the bounds of this API, and a required name must
    not be empty; ``types`` overrides the types of fields.
    """
    fields = [
        (
            attribute.name,
            types.get(attribute.name)
            or _BODY_TYPES.get((attribute.type, attribute.required), attribute.type),
            attribute.default,
        )
        for attribute in structs.fields(request)
        if attribute.name not in without
    ]
    return _struct(name, fields, base=base)


def shown(
    source: type[Struct],
    name: str,
    *,
    doc: str = "",
    without: frozenset[str] = frozenset(),
    before: tuple[str, str] = ("", ""),
    first: Sequence[tuple[str, Any]] = (),
    more: Sequence[tuple[str, Any]] = (),
    moments: Sequence[str] = (),
    optional_from: str = "",
    **types: Any,
) -> Any:
    """Return an answer type with the fields of ``source``, all of which an answer always has.

    ``before`` names a field to move and the field to put it before. ``moments`` names fields in
    microseconds that are shown as times, such as ``at_us``, which becomes ``at``. Fields from
    ``optional_from`` on have defaults in the OpenAPI document. ``types`` overrides the types of
    fields.
    """
    fields = {
        attribute.name: attribute
        for attribute in structs.fields(source)
        if attribute.name not in without
    }
    moved, successor = before
    order = [field_name for field_name in fields if field_name != moved]
    if moved:
        order.insert(order.index(successor), moved)
    optional = order[order.index(optional_from) :] if optional_from else []
    return _struct(
        name,
        [
            *first,
            *(
                _moment_of(fields[field_name])
                if field_name in moments
                else (
                    field_name,
                    types.get(field_name, _http_type(fields[field_name])),
                    fields[field_name].default if field_name in optional else NODEFAULT,
                )
                for field_name in order
            ),
            *more,
        ],
        base=Answer,
        doc=doc,
    )


def _moment_of(field: structs.FieldInfo) -> tuple[str, Any]:
    return field.name.removesuffix("_us"), Moment if field.type is int else Moment | None


def _struct(name: str, fields: Sequence[Any], base: type[Struct], doc: str = "") -> Any:
    """Return a new frozen struct class with these fields."""
    return msgspec.defstruct(
        name,
        fields,
        bases=(base,),
        namespace={"__doc__": doc} if doc else {},
        frozen=True,
        kw_only=True,
        module=__name__,
    )


def answer_from(source: Any, kind: type[Struct], **more: Any) -> Any:
    """Return an answer of type ``kind`` with the fields of ``source`` and ``more``."""
    values = {**structs.asdict(source), **more}
    for name in kind.__struct_fields__:
        if name not in values:
            us = values[f"{name}_us"]
            values[name] = None if us is None else moment_of(us)
    return msgspec.convert(values, kind, from_attributes=True)


class NewChannel(RequestBody, frozen=True):
    name: Name
    attributes: ChannelAttributes = ChannelAttributes()  # type: ignore[valid-type]  # made above


class NewQueue(RequestBody, frozen=True):
    name: Name
    attributes: QueueAttributes = QueueAttributes()  # type: ignore[valid-type]  # made above


DefinitionAnswer = shown(
    Definition,
    "DefinitionAnswer",
    without=frozenset(("descriptors",)),
    more=(("message_types", list[str] | None),),
    kind=str,
    storage=dict[str, Any],
)
"""Attributes; ``message_types`` has the types of Protocol Buffers messages, null if unreadable."""


CounterAnswer = shown(Counters, "CounterAnswer")


Conservation: Any = _struct(
    "Conservation",
    [("published", int), *((name, int) for name in MEANINGS), ("sum", int), ("holds", bool)],
    base=Answer,
    doc="Counts of all published events by outcome (SEM T8).",
)
"""Counts of events; ``holds`` is false if the terms do not add up to ``published``, which would be
a defect of the realm."""


class ChannelAnswer(Answer, frozen=True):
    """The document that ``penstock channel show --format json`` or ``penstock queue show``
    prints."""

    name: str
    definition: DefinitionAnswer  # type: ignore[valid-type]  # made above
    deprecated: bool
    first_event_id: int | None
    last_event_id: int
    events: int
    durables: int
    subscribers: int
    counters: CounterAnswer  # type: ignore[valid-type]  # made above
    conservation: Conservation
    storage: StorageInfo
    readers: list[str]
    in_flight: int
    """Events delivered and not yet acknowledged or, on a queue, not yet committed."""
    pending: PendingCount
    redelivered: int
    scheduled: int
    overdue: int
    waiting: int
    """On a queue, rolled-back events that wait before they are redelivered."""
    waiting_until_us: int | None
    """Time at which the first waiting event is redelivered, in microseconds since 1970."""
    oldest_event_ms: int | None = None
    """Age of the oldest stored event in milliseconds."""


class SegmentAnswer(Answer, frozen=True):
    path: str
    """Path on the realm's machine; empty if other processes cannot read it."""
    size: int
    first_id: int
    last_id: int
    events: int


class StoragePlace(Answer, frozen=True):
    storage: StorageInfo
    segments: list[SegmentAnswer]
    """The first segments, at most :data:`SEGMENTS_MAX`."""
    segments_left_out: int
    unsealed_events: int


class ColumnAnswer(Answer, frozen=True):
    name: str
    type: str


class MissingQuery(QueryParameters, frozen=True):
    start: Id = 0
    end: Id | None = None
    """Last id, inclusive; by default the last id of the channel."""


MissingAnswer = shown(Missing, "MissingAnswer", spans=list[tuple[int, int]])


# --- events -------------------------------------------------------------------------------


class EventAnswer(Answer, frozen=True, omit_defaults=True):
    """An event as ``--format json`` prints it, shortened for lists."""

    event_id: int
    published: Moment
    size: int
    """Size of the complete data in bytes."""
    properties: dict[str, Any]
    types: dict[str, str] = field(default_factory=dict)
    """Types that JSON lacks, by JSON Pointer inside ``properties``: ``time``, ``bytes`` (shown as
    base64), ``nan``, ``inf`` and ``-inf`` (shown as null)."""
    tag: str | None = None
    data: str | None = None
    """The data, if it is UTF-8 text."""
    data_base64: str | None = None
    """The data, if it is not UTF-8 text."""
    message: Any = None
    """The data decoded as a Protocol Buffers message; ``data`` is then omitted."""
    is_cut: bool = False
    """Whether only the beginning of the data is shown; ``events/{id}`` has all of it."""
    headers: dict[str, Any] = field(default_factory=dict)
    is_delta: bool = False
    redelivery_count: int = 0
    ttl: int = 0
    priority: int = 4
    persistent: bool = True
    origin: dict[str, Any] | None = None
    """Origin of a dead or joined event: store, event_id, published, cause, at, durables, …"""
    channel: str | None = None
    """The event's channel, in answers with events of several channels."""


class LookedAt(Answer, frozen=True):
    first_id: int
    last_id: int
    """Last id, inclusive. The page has all matching stored events in this range of ids."""


class EventsPage(Answer, frozen=True):
    items: list[EventAnswer]
    next: str | None = None
    """Pass this as ``after`` to get the next page (with ``newest``, the previous one); null on the
    last page."""
    looked_at: LookedAt | None = None
    """The range of ids that was examined; null if it is empty."""


class EventDetail(Answer, frozen=True):
    event: EventAnswer
    """The event with all its data."""
    views: EventViews
    """The data of the event in other forms."""


class EventViews(Answer, frozen=True, omit_defaults=True):
    """The data in several forms; null for a form in which it cannot be read."""

    base64: str
    hex: str
    """The first 4,096 bytes as a hex dump."""
    text: str | None = None
    json: Any = None
    protobuf: Any = None
    message_type: str | None = None


class EventsQuery(QueryParameters, frozen=True):
    start: StartText = "earliest"
    end: Id | None = None
    """Last id, inclusive."""
    selector: QuerySelector = ""
    limit: StreamLimit | None = None
    after: Annotated[str, Meta(max_length=1_024)] = ""
    """``next`` of the previous page; it overrides ``start``."""
    columns: StreamColumns = ""
    data_bytes: DataBytes = PREVIEW_BYTES
    newest: bool = False
    """Return the last ``limit`` matching events instead of the first, still oldest first; ``next``
    then leads to earlier events."""
    format: StreamFormat | None = None


class OutstandingQuery(QueryParameters, frozen=True):
    selector: QuerySelector = ""
    limit: StreamLimit | None = None
    after: Annotated[str, Meta(max_length=1_024)] = ""
    columns: StreamColumns = ""
    data_bytes: DataBytes = PREVIEW_BYTES
    format: StreamFormat | None = None


CheckSelector = body_of(ExplainSelector, "CheckSelector", selector=SelectorText)


class NewEvent(RequestBody, frozen=True):
    """An event to publish. An ``EventAnswer`` without the fields that the realm assigns can be
    published again."""

    data: str = ""
    data_base64: str | None = None
    tag: str | None = None
    properties: dict[str, Any] = {}
    types: dict[str, str] = {}
    """Types of properties that JSON lacks, by JSON Pointer, as in an ``EventAnswer``:
    ``{"/at": "time"}``."""
    headers: dict[str, Any] = {}
    ttl: Annotated[int, Meta(ge=0, le=TTL_MS_MAX)] | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    persistent: bool | None = None
    transient: bool = False
    is_delta: bool = False
    deliver_at: str | float | None = None
    """Time at which the event is published, as text or in seconds since 1970."""
    message: Any = None
    """A Protocol Buffers message; the header ``message_type`` names its type."""


class NewEvents(RequestBody, frozen=True):
    """Events published atomically, with consecutive ids."""

    events: Annotated[list[NewEvent], Meta(min_length=1, max_length=10_000)]
    producer: Annotated[str, Meta(max_length=128)] = ""
    sequence: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    """With ``producer``, a repeated request gets the ids of the first request."""


class ScheduledAnswer(Answer, frozen=True):
    destination: str
    kind: str
    number: int
    deliver_at: Moment
    event: EventAnswer


class PublishQuery(QueryParameters, frozen=True):
    producer: Annotated[str, Meta(max_length=128)] = ""
    sequence: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0


class RequestQuery(QueryParameters, frozen=True):
    timeout: Annotated[
        float, Meta(ge=0, le=30, description="Maximum wait for the reply, in seconds.")
    ] = 10.0


class PublishedAnswer(Answer, frozen=True):
    first_id: int
    last_id: int
    count: int
    scheduled: bool = False
    """Whether the events are scheduled; the ids are then numbers in the schedule."""


class Purge(RequestBody, frozen=True):
    start: Id | None = None
    end: Id | None = None
    """Last id, inclusive."""
    selector: Selector = ""
    dry_run: bool = False
    """Only count the events."""


class Purged(Answer, frozen=True):
    count: int
    dry_run: bool


class LiveQuery(QueryParameters, frozen=True):
    start: StartText = "latest"
    selector: QuerySelector = ""
    data_bytes: Annotated[int, Meta(ge=0, le=65_536)] = LIVE_PREVIEW_BYTES


class Lost(Answer, frozen=True):
    """A live view was too slow: it missed these ids, and continues after them."""

    first_id: int
    last_id: int
    events: int
    """Number of missed ids."""


# --- durables -----------------------------------------------------------------------------


_IN_BOUNDS: Final[dict[type, Any]] = {
    int: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)],
    str: Annotated[str, Meta(max_length=4_096)],
}
"""Bounds of a durable's attributes, by type."""

NewDurable: Any = msgspec.defstruct(
    "NewDurable",
    [
        ("name", Name),
        ("type", Annotated[str, Meta(max_length=64)], "shared"),
        ("start", StartText, "earliest"),
        *_fields_of(
            CreateDurable,
            frozenset(("channel", "name", "kind", "start")),
            selector=Selector,
            **{
                attribute.name: _IN_BOUNDS.get(attribute.type, attribute.type)
                for attribute in structs.fields(DurableAttributes)
            },
        ),
    ],
    bases=(RequestBody,),
    frozen=True,
    kw_only=True,
    module=__name__,
)
DurableAnswer = shown(
    DurableInfo,
    "DurableAnswer",
    doc="The document that ``penstock durable show --format json`` prints.",
    before=("in_flight", "pending"),
    pending=PendingCount,
)


SeekQuery = body_of(PreviewSeek, "SeekQuery", base=QueryParameters, without=("channel", "name"))
SeekTo = body_of(SeekDurable, "SeekTo", without=("channel", "name"))
SeekAnswer = shown(SeekOutcome, "SeekAnswer", doc="The effect of a seek or of its preview.")


# --- queues -------------------------------------------------------------------------------


class Pop(RequestBody, frozen=True):
    count: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 1
    timeout: Annotated[float, Meta(ge=0, le=30)] = 0.0
    """Maximum wait in seconds if the queue is empty."""
    selector: Selector = ""


class Popped(Answer, frozen=True):
    items: list[EventAnswer]
    """The events, which are removed from the queue."""


Openapi = dict[str, Any]
"""An OpenAPI document, whose structure OpenAPI specifies."""
