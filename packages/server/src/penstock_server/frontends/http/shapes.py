"""Bodies and answers of the HTTP API.

The same Structs decode requests and make the OpenAPI document. Times of attributes are in
milliseconds, as everywhere; ``timeout`` is in seconds.
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
"""Most items of one page."""
LIMIT_DEFAULT = 100
PREVIEW_BYTES = 64 << 10
"""Bytes of an event's data that a list shows, unless the request asks for fewer or more."""
LIVE_PREVIEW_BYTES = 4 << 10

Moment = Annotated[datetime, Meta(tz=True)]
PendingCount = Annotated[
    int,
    Meta(
        description="Another name of `in_flight`, which to use instead.",
        extra_json_schema={"deprecated": True},
    ),
]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Most things on a page.")]
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
    int, Meta(ge=0, le=1 << 20, description="Bytes of data shown of each event, at most.")
]


_BODY_TYPES: Final[Mapping[tuple[Any, bool], Any]] = MappingProxyType(
    {
        (SelectorText, False): Selector,
        (AnyStart, True): StartText,
        (GivenName, True): Name,
    }
)
"""Types of fields of requests in a body, by their types in the request and whether they are
required."""


class RequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's body. An unknown field is an error that names it."""


class QueryParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's query parameters."""


class NoQuery(QueryParameters, frozen=True):
    pass


class Answer(Struct, frozen=True, kw_only=True):
    pass


class ErrorDetail(Answer, frozen=True):
    code: str
    """A stable code, as ``penstock error`` lists them; all protocols have the same."""
    message: str
    retryable: bool = False
    """Whether the same request may succeed later."""


class ErrorAnswer(Answer, frozen=True):
    error: ErrorDetail


class Page(Answer, Generic[T], frozen=True):
    items: list[T]
    next: str | None = None
    """Pass it as ``after`` to get the next page; null: this is the last one."""


class Counted(Answer, frozen=True):
    count: int
    """How many were affected."""


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
    """Whether clients have to sign in (SEM A4)."""
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
    """The channel of all topics of MQTT, which the realm makes for itself when it serves MQTT."""
    event_bytes_max: int
    damage: list[str]
    """What could not be read at the start, and why (SEM S1)."""


# --- channels and queues ------------------------------------------------------------------


def _told(attribute: structs.FieldInfo) -> Any:
    """The type of an attribute as HTTP tells it: what may be unsaid inside is said, or left out."""
    return bool if attribute.type == bool | None else attribute.type


def _optional(source: type[Struct], name: str, only: frozenset[str], **own: Any) -> Any:
    """A Struct with the fields of ``source`` named in ``only``, each of which may be left out."""
    fields = [
        (each.name, own.get(each.name, _told(each)) | UnsetType, UNSET)
        for each in structs.fields(source)
        if each.name in only
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


def _own_fields(
    source: type[Struct], without: frozenset[str], **own: Any
) -> list[tuple[str, Any, Any]]:
    """The fields of ``source`` with their defaults, in bounds of their ``own``."""
    return [
        (each.name, own.get(each.name, each.type), each.default)
        for each in structs.fields(source)
        if each.name not in without
    ]


def body_of(
    request: type[Request[Any]],
    name: str,
    *,
    base: type[Struct] = RequestBody,
    without: Sequence[str] = (),
    **own: Any,
) -> Any:
    """The fields of ``request`` as a body, or as a query with that ``base``.

    Positions and selectors are texts in the bounds of this API, and a required name is not empty;
    ``own`` has the types of fields with other bounds.
    """
    fields = [
        (
            each.name,
            own.get(each.name) or _BODY_TYPES.get((each.type, each.required), each.type),
            each.default,
        )
        for each in structs.fields(request)
        if each.name not in without
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
    **own: Any,
) -> Any:
    """The fields of ``source`` as an answer that always has all of them; the one named first in
    ``before`` stands before the other. ``moments`` are shown as times, ``at_us`` as ``at``. The
    fields from ``optional_from`` on have their defaults in the OpenAPI document."""
    fields = {each.name: each for each in structs.fields(source) if each.name not in without}
    moved, place = before
    order = [each for each in fields if each != moved]
    if moved:
        order.insert(order.index(place), moved)
    optional = order[order.index(optional_from) :] if optional_from else []
    return _struct(
        name,
        [
            *first,
            *(
                _moment_of(fields[each])
                if each in moments
                else (
                    each,
                    own.get(each, _told(fields[each])),
                    fields[each].default if each in optional else NODEFAULT,
                )
                for each in order
            ),
            *more,
        ],
        base=Answer,
        doc=doc,
    )


def _moment_of(field: structs.FieldInfo) -> tuple[str, Any]:
    return field.name.removesuffix("_us"), Moment if field.type is int else Moment | None


def _struct(name: str, fields: Sequence[Any], base: type[Struct], doc: str = "") -> Any:
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
    """The fields of ``source``, and ``more``, as an answer of type ``kind``."""
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
"""``message_types``: types of Protocol Buffers messages; null where they cannot be read."""


CounterAnswer = shown(Counters, "CounterAnswer")


Conservation: Any = _struct(
    "Conservation",
    [("published", int), *((name, int) for name in MEANINGS), ("sum", int), ("holds", bool)],
    base=Answer,
    doc="Where each published event is, or went (SEM T8).",
)
"""``holds``: whether the terms add up to the number of published events; they always do."""


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
    """Delivered and not acknowledged; on a queue, not committed."""
    pending: PendingCount
    redelivered: int
    scheduled: int
    overdue: int
    waiting: int
    """On a queue: rolled back, and waiting for their time."""
    waiting_until_us: int | None
    """When the first of these may come again, in microseconds since 1970."""
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
    """The first :data:`SEGMENTS_MAX` of them."""
    segments_left_out: int
    unsealed_events: int


class ColumnAnswer(Answer, frozen=True):
    name: str
    type: str


class MissingQuery(QueryParameters, frozen=True):
    start: Id = 0
    end: Id | None = None
    """Last id, inclusive; left out: the last id of the channel."""


MissingAnswer = shown(Missing, "MissingAnswer", spans=list[tuple[int, int]])


# --- events -------------------------------------------------------------------------------


class EventAnswer(Answer, frozen=True, omit_defaults=True):
    """An event as ``--format json`` prints it, shortened for lists."""

    event_id: int
    published: Moment
    size: int
    """Bytes of its data, whether shown or not."""
    properties: dict[str, Any]
    types: dict[str, str] = field(default_factory=dict)
    """What JSON cannot show, by JSON Pointer inside ``properties``: ``time``, ``bytes`` (shown as
    base64), ``nan``, ``inf`` and ``-inf`` (shown as null)."""
    tag: str | None = None
    data: str | None = None
    """Its data, if that is UTF-8 text."""
    data_base64: str | None = None
    """Its data, if that is not UTF-8 text."""
    message: Any = None
    """Its data decoded as the Protocol Buffers message that it is; then there is no ``data``."""
    is_cut: bool = False
    """Whether only the beginning of the data is shown; ``events/{id}`` has all of it."""
    headers: dict[str, Any] = field(default_factory=dict)
    is_delta: bool = False
    redelivery_count: int = 0
    ttl: int = 0
    priority: int = 4
    persistent: bool = True
    origin: dict[str, Any] | None = None
    """Where a dead or joined event came from: store, event_id, published, cause, at, durables, …"""
    channel: str | None = None
    """Its channel, where events of several are answered."""


class LookedAt(Answer, frozen=True):
    first_id: int
    last_id: int
    """Inclusive. The page has all stored events between these ids that match, and no others."""


class EventsPage(Answer, frozen=True):
    items: list[EventAnswer]
    next: str | None = None
    """Pass it as ``after`` to get the next page (with ``newest``, the one before); null: this is
    the last one."""
    looked_at: LookedAt | None = None
    """The ids that were examined; null: there were none."""


class EventDetail(Answer, frozen=True):
    event: EventAnswer
    """The event with all of its data, which ``views`` shows in other forms, too."""
    views: EventViews


class EventViews(Answer, frozen=True, omit_defaults=True):
    """The data in each form in which it can be read; null: it cannot."""

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
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=1_024)] = ""
    """``next`` of the page before; it overrides ``start``."""
    columns: Annotated[str, Meta(max_length=4_096)] = ""
    """Comma-separated fields of an event to show, such as ``tag`` or ``properties.price``; empty:
    all."""
    data_bytes: DataBytes = PREVIEW_BYTES
    newest: bool = False
    """Give the last ``limit`` matching events instead of the first, still oldest first; ``next``
    then leads to earlier ones."""


class OutstandingQuery(QueryParameters, frozen=True):
    selector: QuerySelector = ""
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=1_024)] = ""
    data_bytes: DataBytes = PREVIEW_BYTES


CheckSelector = body_of(ExplainSelector, "CheckSelector", selector=SelectorText)


class NewEvent(RequestBody, frozen=True):
    """An event to publish. An ``EventAnswer`` can be published again if the fields that the realm
    assigns are left out."""

    data: str = ""
    data_base64: str | None = None
    tag: str | None = None
    properties: dict[str, Any] = {}
    types: dict[str, str] = {}
    """What a property is that JSON cannot say, by its JSON Pointer, as in an ``EventAnswer``:
    ``{"/at": "time"}``."""
    headers: dict[str, Any] = {}
    ttl: Annotated[int, Meta(ge=0, le=TTL_MS_MAX)] | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    persistent: bool | None = None
    transient: bool = False
    is_delta: bool = False
    deliver_at: str | float | None = None
    """A time, or seconds since 1970, until which the event waits."""
    message: Any = None
    """A Protocol Buffers message; the header ``message_type`` names its type."""


class NewEvents(RequestBody, frozen=True):
    """Events published in one step: all or none, with consecutive ids."""

    events: Annotated[list[NewEvent], Meta(min_length=1, max_length=10_000)]
    producer: Annotated[str, Meta(max_length=128)] = ""
    sequence: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    """With ``producer``: a repeated request gets the ids of the first one."""


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
        float, Meta(ge=0, le=30, description="Seconds to wait for the reply, at most.")
    ] = 10.0


class PublishedAnswer(Answer, frozen=True):
    first_id: int
    last_id: int
    count: int
    scheduled: bool = False
    """Whether the events wait for their time; the ids are then numbers in the schedule."""


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
    """A live view was too slow: it missed events, and continues behind these ids."""

    first_id: int
    last_id: int
    events: int
    """How many ids were missed."""


# --- durables -----------------------------------------------------------------------------


_IN_BOUNDS: Final[dict[type, Any]] = {
    int: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)],
    str: Annotated[str, Meta(max_length=4_096)],
}
"""The bounds of a durable's attributes, by their types."""

NewDurable: Any = msgspec.defstruct(
    "NewDurable",
    [
        ("name", Name),
        ("type", Annotated[str, Meta(max_length=64)], "shared"),
        ("start", StartText, "earliest"),
        *_own_fields(
            CreateDurable,
            frozenset(("channel", "name", "kind", "start")),
            selector=Selector,
            **{
                each.name: _IN_BOUNDS.get(each.type, each.type)
                for each in structs.fields(DurableAttributes)
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
SeekAnswer = shown(SeekOutcome, "SeekAnswer", doc="What a seek has changed, or would change.")


# --- queues -------------------------------------------------------------------------------


class Pop(RequestBody, frozen=True):
    count: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 1
    timeout: Annotated[float, Meta(ge=0, le=30)] = 0.0
    """Seconds to wait if the queue is empty."""
    selector: Selector = ""


class Popped(Answer, frozen=True):
    items: list[EventAnswer]
    """The events, which are removed from the queue."""


Openapi = dict[str, Any]
"""The document is specified by OpenAPI, not by this API."""
