"""AMQP messages with all their sections, and their meaning for comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock_amqp.incoming import batches_of
from penstock_amqp.outgoing import EncodedMessages
from penstock_amqp.wire.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    entries,
    fields,
    header_of,
    section,
    sections_of,
)
from penstock_amqp.wire.types import (
    Byte,
    Char,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    encode,
    read,
)
from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

NOW_MS = 1_800_000_000_000


def message(
    *,
    durable: bool = False,
    priority: int | None = None,
    ttl: int | None = None,
    annotations: dict[Any, Any] | None = None,
    properties: Sequence[Any] = (),
    application: dict[Any, Any] | None = None,
    body: bytes = section(DATA, encode(b"data")),
    footer: dict[Any, Any] | None = None,
) -> bytes:
    parts = [header_of(durable=durable, priority=priority, ttl=ttl)]
    for code, value in ((MESSAGE_ANNOTATIONS, annotations), (PROPERTIES, list(properties))):
        parts += [section(code, encode(value))] if value else []
    parts += [section(APPLICATION_PROPERTIES, encode(application))] if application else []
    return b"".join((*parts, body, section(FOOTER, encode(footer)) if footer else b""))


def stored(*messages: bytes, container: str = "") -> pa.RecordBatch:
    batches, unusable = batches_of(messages, NOW_MS, container)
    assert not unusable
    (made,) = batches
    check_body(made.batch)
    return stamp(made.batch, Span(0, len(messages)), 0)


def event(raw: bytes, **more: Any) -> Event:
    return EventBatch(stored(raw, **more))[0]


def sent(batch: pa.RecordBatch, row: int = 0, deliveries: int = 0) -> bytes:
    rows = OutgoingBatch((Span(0, batch.num_rows),), batch=batch)
    return EncodedMessages(rows).message(row, deliveries)


def of_native(*events: Event) -> bytes:
    return sent(stamp(body_of(events), Span(0, len(events)), 0))


def typed(value: Any) -> Any:
    """Return a value with the types of all values in it, for comparison."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    if value != value:  # NaN is not equal to itself
        return type(value).__name__, "NaN"
    return type(value).__name__, value


def meaning(raw: bytes) -> dict[str, Any]:
    """Return the values of a message with their types."""
    sections = sections_of(raw)
    return {
        "header": fields(sections.header)[:3],
        "annotations": typed(entries(sections.message_annotations)),
        "properties": typed(fields(sections.properties)),
        "application": typed(entries(sections.application_properties)),
        "body": [(code, typed(read(value)[0])) for code, value in sections.body],
        "footer": typed(entries(sections.footer)),
    }


FULL = (
    "id",
    b"user",
    "to",
    "subject",
    "reply",
    "correlation",
    Symbol("text/plain"),
    Symbol("gzip"),
    Timestamp(NOW_MS + 9_000),
    Timestamp(NOW_MS),
    "group",
    UInt(7),
    "replies",
)
APPLICATION = {
    "bool": True,
    "ubyte": UByte(1),
    "ushort": UShort(2),
    "uint": UInt(3),
    "ulong": ULong(4),
    "byte": Byte(-5),
    "short": Short(-6),
    "int": Int(-7),
    "long": -8,
    "float": Float32(0.5),
    "double": 0.1,
    "char": Char("é"),
    "time": Timestamp(NOW_MS),
    "uuid": UUID(int=9),
    "binary": b"\xff",
    "string": "s",
    "symbol": Symbol("s"),
    "null": None,
}
BODIES = {
    "data": section(DATA, encode(b"data")),
    "long data": section(DATA, encode(bytes(300))),
    "several": section(DATA, encode(b"a")) + section(DATA, encode(b"")),
    "text": section(VALUE, encode("žluť")),
    "binary": section(VALUE, encode(b"x")),
    "null": section(VALUE, encode(None)),
    "map": section(VALUE, encode({"a": Int(1), "b": [None]})),
    "number": section(VALUE, encode(Int(5))),
    "sequence": section(SEQUENCE, encode([1, "a"])) + section(SEQUENCE, encode([])),
    "none": b"",
}
ODD = {
    "ids of other types": message(properties=[ULong(5), None, None, None, None, UUID(int=1)]),
    "ids of bytes": message(properties=[b"\x00\xff"]),
    "a user that is no text": message(properties=[None, b"\xff"]),
    "a creation before the years": message(properties=[*[None] * 9, Timestamp(-(1 << 62))]),
    "a property nobody may name so": message(application={"": 1, "$penstock": 2, "ok": Int(3)}),
    "a large ulong": message(application={"n": ULong(1 << 63), "ok": True}),
    "a described value": message(application={"d": Described(ULong(9), 1)}),
    "annotations": message(annotations={Symbol("x-opt-jms-msg-type"): Byte(5), ULong(3): [1]}),
    "a footer": message(footer={Symbol("crc"): 5}),
    "all of it": message(
        durable=True,
        priority=9,
        ttl=5_000,
        annotations={Symbol("a"): 1},
        properties=FULL,
        application=APPLICATION,
        footer={Symbol("f"): 1},
    ),
}
