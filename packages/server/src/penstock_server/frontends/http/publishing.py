"""Publishes events that arrive over HTTP as JSON, NDJSON or Arrow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock_core.api.publishing import Published
from penstock_core.columns.documents import event_of
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.delivery_time import all_wait
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.trace_context import TraceContext, has_context, with_context
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.schema.ipc import table_from_stream
from penstock_core.columns.schema.layout import DICTIONARY
from penstock_core.vocabulary.argument_errors import ABSENT, explain
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.frontends.http.accepting import ARROW, JSON, NDJSON
from penstock_server.frontends.http.event_documents import messages_of
from penstock_server.frontends.http.finding import Store
from penstock_server.frontends.http.routing import Call, Content
from penstock_server.frontends.http.shapes import NewEvent, NewEvents, PublishedAnswer, PublishQuery
from penstock_server.frontends.http.trace_context import bounded, trace_context_of
from penstock_server.runtime.operations.door import publish as begin_publish
from penstock_server.runtime.store.bodies import Body, body_from, body_of_plain

EVENTS_MAX: Final = 100_000
"""Maximum number of events in a JSON or NDJSON request."""
ARROW_EVENTS_MAX: Final = 2 << 20
"""Maximum number of events in an Arrow request. A request has also no more events than bytes."""
PART_BYTES_MAX: Final = 8 << 20
"""Maximum size in bytes of one stored part of a request; larger batches are split."""
IN_THREAD_BYTES: Final = 64 << 10
"""Size in bytes above which a request is decoded in a thread, so that the event loop stays free."""

CONTENT_TYPES: Final = (JSON, NDJSON, ARROW)

_ONE: Final = msgspec.json.Decoder(NewEvent)
_MANY: Final = msgspec.json.Decoder(NewEvents)


_PLAIN_FIELDS: Final = frozenset(("data", "tag", "properties"))
_LEFT_OUT_IF_NULL: Final = [
    field.name for field in msgspec.structs.fields(NewEvent) if field.default is None
]


class PublishDocument(msgspec.Struct):
    """The decoded content of a publish request."""

    bodies: list[Body]
    producer: str = ""
    sequence: int = 0
    is_scheduled: bool = False
    """Whether all events are scheduled."""


async def publish(call: Call[PublishQuery, Content], store: Store) -> PublishedAnswer:
    """Publish events and return when they are stored safely.

    Raises ``InvalidArgument``, ``InvalidEvent``, ``EventTooLarge``, ``CapacityReached``,
    ``MemoryLimit``, ``PublishingPaused``, and ``Unavailable`` if the realm cannot keep up.
    """
    if call.service.is_congested:
        raise Unavailable("clients publish faster than the realm can store; try again in a moment")
    content, messages = call.body, messages_of(store)
    context = trace_context_of(call.headers)
    if len(content.data) > IN_THREAD_BYTES:
        document = await asyncio.to_thread(_read, content, messages, context)
    else:
        document = _read(content, messages, context)
    producer = call.query.producer or document.producer
    sequence = call.query.sequence or document.sequence
    stored = await _store(call, store.number, document.bodies, producer=producer, sequence=sequence)
    return PublishedAnswer(
        first_id=stored.first_id,
        last_id=stored.first_id + stored.count - 1,
        count=stored.count,
        scheduled=document.is_scheduled,
    )


async def publish_event(call: Call[Any, Any], store: Store, event: Event) -> int:
    """Publish one event and return its id when it is stored safely.

    Raises the same errors as :func:`publish`.
    """
    if call.service.is_congested:
        raise Unavailable("clients publish faster than the realm can store; try again in a moment")
    bodies = _bodies([body_of([event])], trace_context_of(call.headers))
    stored = await _store(call, store.number, bodies, producer="", sequence=0)
    return stored.first_id


async def _store(
    call: Call[Any, Any],
    channel_id: ChannelId,
    bodies: Sequence[Body],
    producer: str,
    sequence: int,
) -> Published:
    """Publish bodies, and count their bytes until they are stored."""
    size, service = sum(body.weight for body in bodies), call.service
    service.waiting_bytes(size)
    try:
        stored = begin_publish(
            call.caller,
            channel_id,
            bodies,
            producer=producer,
            sequence=sequence,
            on_reply=lambda: service.waiting_bytes(-size),
        )
    except BaseException:
        # After an error here, `on_reply` is never called.
        service.waiting_bytes(-size)
        raise
    try:
        return await stored
    finally:
        del stored  # its error refers to this frame, so keeping it would be a reference cycle


def _read(content: Content, messages: Messages | None, context: TraceContext) -> PublishDocument:
    """Decode a publish request. Raises ``InvalidArgument``, ``InvalidEvent``."""
    reader = _READERS.get(content.type)
    if reader is None:
        raise InvalidArgument(
            f"the content type {content.type[:80]!r} is not supported for events; use one of "
            f"{', '.join(CONTENT_TYPES)}"
        )
    return reader(content.data, messages, context)


def json_document(data: bytes, messages: Messages | None, context: TraceContext) -> PublishDocument:
    """Read one event, or several, from JSON. Raises ``InvalidArgument``."""
    tree: Any = ABSENT
    try:
        # Decoded without a type first, in order to choose the type, and to show the wrong value in
        # an error.
        tree = msgspec.json.decode(data)
        if isinstance(tree, dict) and "events" in tree:
            many = _MANY.decode(data)
            events = [event_of_body(event, messages) for event in many.events]
            document = _document_of(events, context)
            document.producer, document.sequence = many.producer, many.sequence
            return document
        event = _plain_event(tree)
        if event is None:
            event = event_of_body(_ONE.decode(data), messages)
        return _document_of([event], context)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = NewEvents if isinstance(tree, dict) and "events" in tree else NewEvent
        raise InvalidArgument(explain(error, tree, kind=kind, whole="the body")) from None


def _plain_event(tree: Any) -> Event | None:
    """Return the event of a document that has only the most common fields, each of the right type;
    None for any other document. :func:`event_of_body` returns the same event, ten times slower."""
    if not isinstance(tree, dict) or not tree.keys() <= _PLAIN_FIELDS:
        return None
    data, tag, properties = tree.get("data", ""), tree.get("tag"), tree.get("properties", {})
    if not (isinstance(data, str) and isinstance(properties, dict)):
        return None
    if not (tag is None or isinstance(tag, str)) or DICTIONARY in properties:
        return None
    return Event(data.encode(), tag=tag, properties=properties)


def event_of_body(new_event: NewEvent, messages: Messages | None) -> Event:
    """Return the event to publish. Raises ``InvalidArgument``, ``InvalidEvent``."""
    tree = msgspec.to_builtins(new_event, builtin_types=())
    for name in _LEFT_OUT_IF_NULL:
        if tree[name] is None:
            del tree[name]
    for name in ("headers", "types", "transient", "is_delta"):
        if not tree[name]:
            del tree[name]
    if "message" in tree or "data_base64" in tree:
        if tree["data"]:
            raise InvalidArgument(
                "an event has more than one of 'data', 'data_base64' and 'message'; send only one"
            )
        del tree["data"]
    return event_of(tree, messages)


def _lines(data: bytes, messages: Messages | None, context: TraceContext) -> PublishDocument:
    """Decode a body with one JSON document per line. Raises ``InvalidArgument`` with the line
    number."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    if len(lines) > EVENTS_MAX:
        raise InvalidArgument(
            f"the request has {len(lines)} events; send at most {EVENTS_MAX}, or use Arrow"
        )
    events = []
    for line_number, line in enumerate(lines, 1):
        try:
            events.append(event_of(line, messages))
        except (InvalidArgument, TypeError) as error:
            raise InvalidArgument(f"line {line_number}: {error}") from None
    return _document_of(events, context)


def _document_of(events: list[Event], context: TraceContext) -> PublishDocument:
    """Return events as the content of a publish request. Raises ``InvalidArgument`` without
    events."""
    if not events:
        raise InvalidArgument("the request has no events; send at least one")
    if len(events) == 1:
        if context and not has_context(events[0].properties):
            events[0].properties.update(context)
        if (body := body_of_plain(events[0])) is not None:
            return PublishDocument([body])
    return _document([body_of(events)], context)


def _arrow(data: bytes, messages: Messages | None, context: TraceContext) -> PublishDocument:
    """Decode a body that is an Arrow stream. Raises ``InvalidArgument``, ``InvalidEvent``."""
    table = table_from_stream(data, rows_max=max(EVENTS_MAX, min(len(data), ARROW_EVENTS_MAX)))
    if not table.num_rows:
        raise InvalidArgument("the table has no rows; send at least one event")
    return _document(bodies_of_table(table), context)


def _document(batches: list[pa.RecordBatch], context: TraceContext) -> PublishDocument:
    return PublishDocument(_bodies(batches, context), is_scheduled=all_wait(batches))


_READERS: Final[dict[str, Callable[[bytes, Messages | None, TraceContext], PublishDocument]]] = {
    JSON: json_document,
    NDJSON: _lines,
    ARROW: _arrow,
}


def _bodies(batches: Sequence[pa.RecordBatch], context: TraceContext) -> list[Body]:
    """Return checked bodies with the rows of the batches. Events without a trace context of their
    own get ``context``. Raises ``InvalidEvent``."""
    context = bounded(context, sum(batch.num_rows for batch in batches))
    bodies: list[Body] = []
    for batch in batches:
        for part in _parts(batch):
            check_body(part)
            bodies.append(body_from(with_context(part, context)))
    return bodies


def _parts(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Split the batch into parts of at most ``PART_BYTES_MAX``; a single event is not split."""
    if batch.nbytes <= PART_BYTES_MAX or batch.num_rows == 1:
        return [batch]
    half = batch.num_rows // 2
    return _parts(batch.slice(0, half)) + _parts(batch.slice(half))
