"""Converts events to messages: each event is encoded once, however many receivers get it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from penstock_amqp import message_header
from penstock_amqp.message_header import PLAIN, AmqpExtras
from penstock_amqp.typed import EPOCH, MS_MAX, NoProperty, exact, message_value
from penstock_amqp.wire.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    header_of,
    section,
)
from penstock_amqp.wire.types import (
    Byte,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    encode,
    encode_list,
    encode_map,
    encode_sized,
    skip,
)
from penstock_core.columns.schema.layout import LOGICAL_NAME, PRIORITY_MAX
from penstock_core.columns.schema.rows import Rows
from penstock_core.loggers import logger
from penstock_core.printable import is_utf8
from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_core.vocabulary.ports import Clock
from penstock_core.vocabulary.temporary import is_temporary
from penstock_server.runtime.access.open_connections import TrafficCounts
from penstock_server.runtime.access.rare_lines import RareLines
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

_MILLISECOND: Final = np.timedelta64(1, "ms").astype(object)
_NARROW_TYPES: Final[dict[pa.DataType, tuple[type, Callable[[Any], Any]]]] = {
    pa.int8(): (int, Byte),
    pa.int16(): (int, Short),
    pa.int32(): (int, Int),
    pa.float32(): (float, Float32),
}
"""Python type and AMQP type for the columns that are narrower than Python's numbers."""
_UINT_MAX: Final = (1 << 32) - 1
_CACHED_BATCHES_MAX: Final = 4
"""Maximum batches whose messages are cached at a time."""

_log = logger("penstock.amqp")


class EncodedMessages:
    """The encoded messages of a batch of events. Only the header section depends on the number of
    deliveries, so the other sections are encoded once."""

    __slots__ = (
        "_heads",
        "_priorities",
        "_residues",
        "_ttls",
        "containers",
        "ids",
        "left_out",
        "persistents",
        "rests",
    )

    def __init__(self, rows: OutgoingBatch, now_us: int = 0) -> None:
        """``now_us`` is the current time; the remaining time to live counts from it."""
        batch = rows.batch
        self.ids: list[int] = batch.column(0).to_pylist()
        count = len(self.ids)
        self.persistents = _column_values(batch, "persistent", count, absent=None)
        self._priorities = _column_values(batch, "priority", count, absent=None)
        self._ttls = _remaining_ttls(batch, count, now_us)
        self.left_out: list[str] = []
        """Names of the parts of events that AMQP cannot express."""
        expiries = _absolute_expiries(self._ttls, now_us)
        self.rests, self.containers, self._residues = _encode_rests(batch, expiries, self.left_out)
        self._heads: dict[tuple[Any, ...], bytes] = {}

    def message(self, row: int, deliveries: int) -> bytes:
        """Return the message of a row that was delivered ``deliveries`` times before."""
        priority, ttl = self._priorities[row], self._ttls[row]
        if ttl is not None and ttl > _UINT_MAX:
            ttl = None  # the absolute expiry expresses it instead
        if (extras := self._residues[row]) is not PLAIN:
            if extras.priority is not None and priority == PRIORITY_MAX:
                priority = max(PRIORITY_MAX, min(extras.priority, 255))
            if extras.zero_ttl and not ttl:
                ttl = 0
        key = (self.persistents[row], priority, ttl, deliveries)
        # Most events of a batch share these values, so their headers are encoded once.
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = header_of(
                durable=key[0] is not False, priority=priority, ttl=ttl, deliveries=deliveries
            )
        return head + self.rests[row]


class MessageCache:
    """Messages encoded in the current turn of the event loop, shared by all links that send the
    same events."""

    def __init__(self, clock: Clock, traffic: TrafficCounts) -> None:
        self._clock = clock
        self._traffic = traffic
        self._cached: list[tuple[OutgoingBatch, EncodedMessages]] = []
        self._rare_lines = RareLines()

    def messages_of(self, rows: OutgoingBatch) -> EncodedMessages:
        """Return the messages of a batch, encoded once for all links that send it in one turn."""
        for cached_rows, messages in self._cached:
            if cached_rows is rows:
                return messages
        messages = EncodedMessages(rows, self._clock.now_us())
        if messages.left_out:
            self._count_left_out(messages.left_out)
        self._cached = [(rows, messages), *self._cached[: _CACHED_BATCHES_MAX - 1]]
        return messages

    def _count_left_out(self, parts: list[str]) -> None:
        """Count parts of events that AMQP cannot express. The log has at most one line a minute."""
        self._traffic.left_out += len(parts)
        if self._rare_lines.is_due("amqp.left_out"):
            _log.warning("amqp.left_out", parts=parts[:10], count=self._traffic.left_out)

    def clear(self) -> None:
        """Drop the messages at the end of a turn of the event loop."""
        self._cached.clear()


def _column_values(batch: pa.RecordBatch, name: str, count: int, absent: Any) -> list[Any]:
    """Return the values of a column; ``absent`` for each of ``count`` rows if it does not exist."""
    index = batch.schema.get_field_index(name)
    return [absent] * count if index < 0 else batch.column(index).to_pylist()


def _remaining_ttls(batch: pa.RecordBatch, count: int, now_us: int) -> list[int | None]:
    """Return the remaining times to live in ms: the receiver counts from the message's arrival
    (3.2.1)."""
    ttls = _column_values(batch, "ttl", count, absent=None)
    index = batch.schema.get_field_index("published")
    if not any(ttls):
        return [None] * count
    if not now_us or index < 0:
        return [ttl or None for ttl in ttls]
    published = batch.column(index).cast(pa.int64()).to_pylist()
    return [
        max(1, ttl - max(0, now_us - published_us) // 1_000) if ttl else None
        for ttl, published_us in zip(ttls, published, strict=True)
    ]


def _absolute_expiries(ttls: list[int | None], now_us: int) -> list[int | None]:
    """Return absolute expiries in milliseconds since 1970 for times to live that do not fit the
    32-bit field of a message (more than 49.7 days); an empty list if all fit. An event that lives
    beyond the year 9999 gets no expiry."""
    if not any(ttl is not None and ttl > _UINT_MAX for ttl in ttls):
        return []
    now_ms = now_us // 1_000
    ends = [now_ms + ttl if ttl is not None and ttl > _UINT_MAX else None for ttl in ttls]
    return [end if end is not None and end <= MS_MAX else None for end in ends]


def _encode_rests(
    batch: pa.RecordBatch, expiries: list[int | None], left_out: list[str]
) -> tuple[list[bytes], list[str | None], list[AmqpExtras]]:
    """Return three lists with an item per event: the encoded sections after the header, the
    sender's container, and the decoded header ``amqp``. Parts that AMQP cannot express are added to
    ``left_out``."""
    count = batch.num_rows
    datas = [data or b"" for data in _column_values(batch, "data", count, absent=b"")]
    names = batch.schema.names
    if not expiries and not {"tag", "properties", "headers", "more"} & {*names}:
        return [_data_section(data) for data in datas], [None] * count, [PLAIN] * count
    tags = _column_values(batch, "tag", count, absent=None)
    headers = _read_header_columns(batch, count)
    containers = headers.pop("application_id", [None] * count)
    residues = _decode_all_extras(headers, count)
    if expiries:
        stated = headers.get("expiration") or [None] * count
        headers["expiration"] = [
            expiration if end is None or expiration is not None else EPOCH + end * _MILLISECOND
            for expiration, end in zip(stated, expiries, strict=True)
        ]
    # Per-row decoding from here on; events with data alone have returned above.
    rows = Rows(batch, in_order=True)
    has_properties = "properties" in names or "more" in names
    narrow = _narrow_types_in(batch) if has_properties else {}
    rests = []
    for row in range(count):
        properties = dict(rows.properties(row)) if has_properties else {}
        extras = residues[row]
        try:
            rests.append(
                _encode_rest(
                    datas[row], tags[row], properties, headers, row, extras, narrow, left_out
                )
            )
        except (RecursionError, RemoteProtocolViolation, ValueError):
            # One event must not end the connections of all its receivers.
            left_out.append("all but the data")
            rests.append(_data_section(datas[row]))
    return rests, containers, residues


def _encode_rest(
    data: bytes,
    tag: str | None,
    properties: dict[str, Any],
    headers: dict[str, list[Any]],
    row: int,
    extras: AmqpExtras,
    narrow: _Narrow,
    left_out: list[str],
) -> bytes:
    """Encode the sections of one event after the header."""
    group = (
        properties.pop(message_header.GROUP_ID, None),
        properties.pop(message_header.GROUP_SEQUENCE, None),
    )
    annotations, application = _split_properties(properties, extras, narrow, left_out)
    if tag is not None:
        annotations += [_TAG_KEY, encode(tag)]
    reply_addresses = headers.get("reply_to")
    if (
        reply_addresses
        and extras.annotations is None
        and (kind := _temporary_kind(reply_addresses[row])) is not None
    ):
        annotations += [_REPLY_TO_KEY, kind]
    parts = [
        _encode_annotations(annotations, extras),
        _encode_message_properties(headers, row, group, extras, application, left_out),
    ]
    if extras.application_properties is not None:
        parts.append(section(APPLICATION_PROPERTIES, extras.application_properties))
    elif application:
        parts.append(section(APPLICATION_PROPERTIES, encode_map(application)))
    parts.append(_encode_body(data, extras))
    if extras.footer is not None:
        parts.append(section(FOOTER, extras.footer))
    return b"".join(parts)


def _decode_all_extras(headers: dict[str, list[Any]], count: int) -> list[AmqpExtras]:
    """Decode each event's header ``amqp``; without one, its header ``mqtt``."""
    amqp_texts = headers.pop(message_header.HEADER, None)
    mqtt_texts = headers.pop("mqtt", None)
    if mqtt_texts is None:
        return [message_header.decode_extras(text) for text in amqp_texts or [None] * count]
    return [
        message_header.decode_mqtt(mqtt_text)
        if mqtt_text and not text
        else message_header.decode_extras(text)
        for text, mqtt_text in zip(amqp_texts or [None] * count, mqtt_texts, strict=True)
    ]


_TAG_KEY: Final = encode(Symbol(message_header.TAG))
_PROPERTIES_KEY: Final = encode(Symbol(message_header.PROPERTIES))
_REPLY_TO_KEY: Final = encode(Symbol("x-opt-jms-reply-to"))
_TEMPORARY_QUEUE: Final = encode(Byte(2))
_TEMPORARY_CHANNEL: Final = encode(Byte(3))
"""Values of the annotation that tells JMS clients the kind of the reply destination. Without it
they assume the kind of destination that they received the message from."""


def _temporary_kind(address: str | None) -> bytes | None:
    """Return the annotation value for a temporary reply destination; None for other addresses."""
    if address is None or not is_temporary(address):
        return None
    return _TEMPORARY_CHANNEL if address.startswith("temp-topic-") else _TEMPORARY_QUEUE


def _read_header_columns(batch: pa.RecordBatch, count: int) -> dict[str, list[Any]]:
    """Return the values of the headers of ``count`` events, by header; headers without any value
    are left out."""
    index = batch.schema.get_field_index("headers")
    if index < 0:
        return {}
    column = batch.column(index)
    columns: dict[str, list[Any]] = {}
    for field, child in zip(column.type, column.flatten(), strict=True):
        if child.null_count < count:
            columns[field.name] = child.to_pylist()
    return columns


_Narrow = dict[str, dict[type, Callable[[Any], Any]]]
"""AMQP types for columns narrower than Python's types, by property and Python type."""


def _narrow_types_in(batch: pa.RecordBatch) -> _Narrow:
    """Return the AMQP types of the batch's properties that are narrower than Python's types."""
    index = batch.schema.get_field_index("properties")
    narrow_types: _Narrow = {}
    for field in batch.schema.field(index).type if index >= 0 else ():
        if field.type in _NARROW_TYPES:
            logical = (field.metadata or {}).get(LOGICAL_NAME, field.name.encode()).decode()
            python, kind = _NARROW_TYPES[field.type]
            narrow_types.setdefault(logical, {})[python] = kind
    return narrow_types


def _split_properties(
    properties: dict[str, Any],
    extras: AmqpExtras,
    narrow: _Narrow,
    left_out: list[str],
) -> tuple[list[bytes], list[bytes]]:
    """Return two lists of encoded keys and values in turn: annotations for the properties that
    application properties cannot hold, and the application properties."""
    application: list[bytes] = []
    inexact: dict[str, Any] = {}
    types = extras.types
    for name, value in properties.items():
        message_property, is_exact = message_value(value, types.get(name, ""))
        if not is_exact:
            try:
                inexact[name] = exact(value)
            except NoProperty:  # nested too deep
                left_out.append(name)
            if message_property is None:
                continue
        if name in narrow and (kind := narrow[name].get(type(message_property))) is not None:
            message_property = kind(message_property)
        application += (encode(name), encode(message_property))
    return ([_PROPERTIES_KEY, encode(inexact)] if inexact else []), application


def _encode_annotations(added: list[bytes], extras: AmqpExtras) -> bytes:
    """Encode the section of message annotations: those that the message arrived with, and ``added``
    keys and values. Empty without any."""
    existing: list[bytes] = []
    if extras.annotations is not None:
        if not added:
            return section(MESSAGE_ANNOTATIONS, extras.annotations)
        existing = _split_map(extras.annotations)
    return section(MESSAGE_ANNOTATIONS, encode_map(existing + added)) if existing or added else b""


def _split_map(encoded: bytes) -> list[bytes]:
    """Split an encoded map into its encoded keys and values, in turn."""
    offset = 3 if encoded[0] == 0xC1 else 9
    pairs = []
    while offset < len(encoded):
        end = skip(encoded, offset)
        pairs.append(encoded[offset:end])
        offset = end
    return pairs


def _encode_message_properties(
    headers: dict[str, list[Any]],
    row: int,
    group: tuple[Any, Any],
    extras: AmqpExtras,
    application: list[bytes],
    left_out: list[str],
) -> bytes:
    """Encode the properties section of the event in ``row``; empty without any property. A group
    that the section cannot express is added to the application properties."""

    def header(name: str) -> Any:
        column = headers.get(name)
        return None if column is None else column[row]

    expiry, creation = extras.times or (None, None)
    expiry = _to_ms(header("expiration")) if expiry is None else expiry
    creation = _to_ms(header("timestamp")) if creation is None else creation
    user = header("user")
    group_id, sequence = group
    if group_id is not None and not isinstance(group_id, str):
        application += (encode(message_header.GROUP_ID), encode(group_id))
        group_id = None
    if sequence is not None and not (type(sequence) is int and 0 <= sequence <= _UINT_MAX):
        application += (encode(message_header.GROUP_SEQUENCE), encode(message_value(sequence)[0]))
        sequence = None
    values = [
        _typed_id(header("message_id"), extras.message_id),
        extras.user_id if user is None else user.encode(),
        extras.to,
        header("type"),
        header("reply_to"),
        _typed_id(header("correlation_id"), extras.correlation_id),
        None if extras.content_type is None else Symbol(extras.content_type),
        None if extras.content_encoding is None else Symbol(extras.content_encoding),
        None if expiry is None else Timestamp(expiry),
        None if creation is None else Timestamp(creation),
        group_id,
        None if sequence is None else UInt(sequence),
        extras.reply_to_group_id,
    ]
    while values and values[-1] is None:  # absent fields at the end are not encoded
        values.pop()
    if not values:
        return b""
    return section(PROPERTIES, encode_list([_encode_or_null(value, left_out) for value in values]))


def _encode_or_null(value: Any, left_out: list[str]) -> bytes:
    try:
        return encode(value)
    except ValueError:  # for example a symbol that is not ASCII
        left_out.append("a message property")
        return b"\x40"


def _to_ms(value: datetime | None) -> int | None:
    return None if value is None else (value - EPOCH) // _MILLISECOND


def _typed_id(value: str | None, kind: str) -> Any:
    """Convert an id to its original type, if its text is still valid for that type."""
    if value is None or not kind:
        return value
    try:
        match kind:
            case "ulong":
                return ULong(int(value)) if 0 <= int(value) < 1 << 64 else value
            case "uuid":
                return UUID(value)
            case "binary":
                return bytes.fromhex(value)
            case _:
                return value
    except ValueError:
        return value


def _data_section(data: bytes) -> bytes:
    return b"\x00\x53\x75" + encode_sized(0xA0, data)


def _encode_body(data: bytes, extras: AmqpExtras) -> bytes:
    """Encode the body in the form that its header ``amqp`` names. If the data does not fit that
    form, because a client has changed the event, it becomes a data section."""
    if extras is PLAIN or extras.body == "data":
        if extras.sizes and sum(extras.sizes) == len(data):
            return _encode_data_sections(data, extras.sizes)
        return _data_section(data)
    match extras.body:
        case "text":
            return (
                section(VALUE, encode_sized(0xA1, data)) if is_utf8(data) else _data_section(data)
            )
        case "binary":
            return section(VALUE, encode_sized(0xA0, data))
        case "null" if not data:
            return section(VALUE, b"\x40")
        case "none" if not data:
            return b""
        case "value" if data and _end_of_value(data) == len(data):
            return section(VALUE, data)
        case "sequence" if data:
            return _encode_sequences(data)
        case _:
            return _data_section(data)


def _encode_data_sections(data: bytes, sizes: Sequence[int]) -> bytes:
    sections, offset = [], 0
    for size in sizes:
        sections.append(section(DATA, encode_sized(0xA0, data[offset : offset + size])))
        offset += size
    return b"".join(sections)


def _encode_sequences(data: bytes) -> bytes:
    sections, offset = [], 0
    while offset < len(data):
        end = _end_of_value(data, offset)
        if end < 0 or data[offset] not in (0x45, 0xC0, 0xD0):
            return _data_section(data)
        sections.append(section(SEQUENCE, data[offset:end]))
        offset = end
    return b"".join(sections)


def _end_of_value(data: bytes, offset: int = 0) -> int:
    """Return the end of the value at ``offset``; -1 if it is not a valid AMQP value."""
    try:
        return skip(data, offset)
    except Exception:  # noqa: BLE001  any invalid value is sent as data instead
        return -1
