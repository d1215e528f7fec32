"""Publishes events that come by HTTP as JSON, NDJSON or Arrow."""

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
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.schema.ipc import table_from_stream
from penstock_core.vocabulary.argument_errors import ABSENT, explain
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.frontends.http.accepting import JSON
from penstock_server.frontends.http.event_documents import messages_of
from penstock_server.frontends.http.finding import Store
from penstock_server.frontends.http.routing import Call, Content
from penstock_server.frontends.http.shapes import NewEvent, NewEvents, PublishedAnswer, PublishQuery
from penstock_server.runtime.operations.door import publish as begin_publish
from penstock_server.runtime.store.bodies import Body, body_from

EVENTS_MAX: Final = 100_000
"""Most events of one request, unless it is Arrow."""
ARROW_EVENTS_MAX: Final = 2 << 20
"""Most events of one Arrow request; it never has more than bytes."""
PART_BYTES_MAX: Final = 8 << 20
IN_THREAD_BYTES: Final = 64 << 10
"""A larger request is decoded in a thread."""

NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
CONTENT_TYPES: Final = (JSON, NDJSON, ARROW)

_ONE: Final = msgspec.json.Decoder(NewEvent)
_MANY: Final = msgspec.json.Decoder(NewEvents)


_LEFT_OUT_IF_NULL: Final = [
    field.name for field in msgspec.structs.fields(NewEvent) if field.default is None
]


class PublishDocument(msgspec.Struct):
    bodies: list[Body]
    producer: str = ""
    sequence: int = 0
    waits: bool = False
    """Whether all events wait for their time."""


async def publish(call: Call[PublishQuery, Content], store: Store) -> PublishedAnswer:
    """Publish events; the answer comes when they are safe.

    Raises ``InvalidArgument``, ``InvalidEvent``, ``EventTooLarge``, ``CapacityReached``,
    ``MemoryLimit``, ``PublishingPaused``, ``Unavailable`` when the realm cannot keep up.
    """
    if call.service.is_congested:
        raise Unavailable("clients publish faster than the realm can store; try again in a moment")
    content, messages = call.body, messages_of(store)
    if len(content.data) > IN_THREAD_BYTES:
        offered = await asyncio.to_thread(_read, content, messages)
    else:
        offered = _read(content, messages)
    producer = call.query.producer or offered.producer
    sequence = call.query.sequence or offered.sequence
    stored = await _stored(call, store.number, offered.bodies, producer=producer, sequence=sequence)
    return PublishedAnswer(
        first_id=stored.first_id,
        last_id=stored.first_id + stored.count - 1,
        count=stored.count,
        scheduled=offered.waits,
    )


async def publish_event(call: Call[Any, Any], store: Store, event: Event) -> int:
    """Publish one event; gives its id once it is safe. Raises as :func:`publish` does."""
    if call.service.is_congested:
        raise Unavailable("clients publish faster than the realm can store; try again in a moment")
    stored = await _stored(call, store.number, _bodies([body_of([event])]), producer="", sequence=0)
    return stored.first_id


async def _stored(
    call: Call[Any, Any], number: ChannelId, bodies: Sequence[Body], producer: str, sequence: int
) -> Published:
    size, service = sum(body.weight for body in bodies), call.service
    service.waiting_bytes(size)
    try:
        stored = begin_publish(
            call.caller,
            number,
            bodies,
            producer=producer,
            sequence=sequence,
            on_reply=lambda: service.waiting_bytes(-size),
        )
    except BaseException:
        service.waiting_bytes(-size)
        raise
    try:
        return await stored
    finally:
        del stored  # an error in it refers to this frame: a cycle


def _read(content: Content, messages: Messages | None) -> PublishDocument:
    reader = _READERS.get(content.type)
    if reader is None:
        raise InvalidArgument(
            f"the content type {content.type[:80]!r} is not supported for events; use one of "
            f"{', '.join(CONTENT_TYPES)}"
        )
    return reader(content.data, messages)


def _json(data: bytes, messages: Messages | None) -> PublishDocument:
    tree: Any = ABSENT
    try:
        tree = msgspec.json.decode(data)
        if isinstance(tree, dict) and "events" in tree:
            many = _MANY.decode(data)
            offered = _offered([event_of_body(each, messages) for each in many.events])
            offered.producer, offered.sequence = many.producer, many.sequence
            return offered
        return _offered([event_of_body(_ONE.decode(data), messages)])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = NewEvents if isinstance(tree, dict) and "events" in tree else NewEvent
        raise InvalidArgument(explain(error, tree, kind=kind, whole="the body")) from None


def event_of_body(given: NewEvent, messages: Messages | None) -> Event:
    """An event as it is to be published. Raises ``InvalidArgument``, ``InvalidEvent``."""
    tree = msgspec.to_builtins(given, builtin_types=())
    for name in _LEFT_OUT_IF_NULL:
        if tree[name] is None:
            del tree[name]
    for name in ("headers", "types", "transient", "is_delta"):
        if not tree[name]:
            del tree[name]
    if "message" in tree or "data_base64" in tree:
        if tree["data"]:
            raise InvalidArgument("an event has 'data', 'data_base64' or 'message': one of them")
        del tree["data"]
    return event_of(tree, messages)


def _lines(data: bytes, messages: Messages | None) -> PublishDocument:
    lines = [line for line in data.split(b"\n") if line.strip()]
    if len(lines) > EVENTS_MAX:
        raise InvalidArgument(f"{len(lines)} events; send at most {EVENTS_MAX}, or use Arrow")
    events = []
    for number, line in enumerate(lines, 1):
        try:
            events.append(event_of(line, messages))
        except (InvalidArgument, TypeError) as error:
            raise InvalidArgument(f"line {number}: {error}") from None
    return _offered(events)


def _offered(events: list[Event]) -> PublishDocument:
    if not events:
        raise InvalidArgument("there are no events; send at least one")
    return _document([body_of(events)])


def _arrow(data: bytes, messages: Messages | None) -> PublishDocument:
    table = table_from_stream(data, rows_max=max(EVENTS_MAX, min(len(data), ARROW_EVENTS_MAX)))
    if not table.num_rows:
        raise InvalidArgument("the table has no rows; send at least one event")
    return _document(bodies_of_table(table))


def _document(batches: list[pa.RecordBatch]) -> PublishDocument:
    return PublishDocument(_bodies(batches), waits=all_wait(batches))


_READERS: Final[dict[str, Callable[[bytes, Messages | None], PublishDocument]]] = {
    JSON: _json,
    NDJSON: _lines,
    ARROW: _arrow,
}


def _bodies(batches: Sequence[pa.RecordBatch]) -> list[Body]:
    found: list[Body] = []
    for batch in batches:
        for part in _parts(batch):
            check_body(part)
            found.append(body_from(part))
    return found


def _parts(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch in pieces small enough for readers."""
    if batch.nbytes <= PART_BYTES_MAX or batch.num_rows == 1:
        return [batch]
    half = batch.num_rows // 2
    return _parts(batch.slice(0, half)) + _parts(batch.slice(half))
