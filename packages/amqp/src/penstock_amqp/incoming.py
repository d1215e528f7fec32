"""Converts messages to events: all messages of one read of a link become one batch of columns.

Messages that differ only in the bytes of their data, as one program usually sends them, are
converted together, without decoding each message.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock_amqp import message_header
from penstock_amqp.conditions import UnreadableMessage
from penstock_amqp.header_cache import (
    KNOWN_BYTES_MAX,
    KNOWN_MAX,
    Annotations,
    MessageHeader,
    decode_annotations,
    decode_header,
)
from penstock_amqp.message_header import KNOWN_CHARACTERS_MAX, AmqpExtras
from penstock_amqp.typed import (
    ARROW,
    EPOCH,
    KEPT,
    MS_MAX,
    NoProperty,
    in_range,
    property_of,
    text_of,
)
from penstock_amqp.wire.sections import (
    DATA,
    SEQUENCE,
    VALUE,
    Sections,
    entries,
    fields,
    sections_of,
)
from penstock_amqp.wire.types import Timestamp, UInt, ULong
from penstock_core.bounds import TTL_MS_MAX
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.schema.layout import (
    FIELDS,
    HEADERS,
    PROPERTY_COLUMNS_MAX,
    UTC_MICROSECONDS,
    check_property_name,
)
from penstock_core.columns.schema.properties import NO_PROPERTIES, PropertyColumns, property_columns
from penstock_core.vocabulary.errors import InvalidEvent, RemoteProtocolViolation

_INT32_MAX: Final = (1 << 31) - 1


class Batch(NamedTuple):
    """Events made from some of the messages."""

    batch: pa.RecordBatch
    indexes: Sequence[int]
    """Indexes of these messages, ascending."""


class Unusable(Struct, frozen=True):
    """A message that cannot become an event, with the reason."""

    index: int
    error: InvalidEvent


def batches_of(
    messages: Sequence[bytes], now_ms: int, container: str = "", *, was_delivered: bool = False
) -> tuple[list[Batch], list[Unusable]]:
    """Convert messages to events: one batch, or two if some messages have a delivery time (SEM X4).

    ``container`` is the sender's container id if the events must record their sender (no-local).
    With ``was_delivered`` the messages come from another broker, which has waited for their
    delivery time: it is ignored, and all events are in one batch.
    """
    if not container and (batch := _batch_of_equal_messages(messages)) is not None:
        return [Batch(batch, range(len(messages)))], []
    rows: list[Row] = []
    unusable: list[Unusable] = []
    for index, message in enumerate(messages):
        try:
            rows.append(row_of(index, message, now_ms))
        except InvalidEvent as error:
            unusable.append(Unusable(index, error))
        except (RemoteProtocolViolation, UnicodeError) as error:
            unusable.append(Unusable(index, UnreadableMessage(str(error))))
    if was_delivered:
        rows = [row._replace(deliver_ms=None) for row in rows]
    undelayed = [row for row in rows if row.deliver_ms is None]
    delayed = [row for row in rows if row.deliver_ms is not None]
    batches = [batch_of(part, container) for part in (undelayed, delayed) if part]
    return batches, unusable


# --- messages with the same prefix --------------------------------------------------------


def _batch_of_equal_messages(messages: Sequence[bytes]) -> pa.RecordBatch | None:
    """Return a batch if each message is the same prefix and one data section of the same length,
    and the prefix states nothing except durability; None otherwise."""
    # Lengths first: this rejects most other batches at almost no cost.
    first = messages[0]
    size = len(first)
    for message in messages:
        if len(message) != size:
            return None
    prefix = _plain_prefix(first)
    if prefix is None:
        return None
    begin, durable = prefix
    count = len(messages)
    table = np.frombuffer(b"".join(messages), np.uint8).reshape(count, size)
    if count > 1 and not (table[1:, :begin] == table[0, :begin]).all():
        return None
    length = size - begin
    if length * count > _INT32_MAX:  # the offsets of an Arrow binary column are int32
        return None
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(length)
    values = np.ascontiguousarray(table[:, begin:])
    columns = [
        pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(values)], 0
        )
    ]
    if durable:
        return pa.RecordBatch.from_arrays(columns, schema=_PLAIN)
    bits = pa.py_buffer(bytes(-(-count // 8)))  # one bit per row, all False, rounded up to bytes
    columns.append(pa.Array.from_buffers(pa.bool_(), count, [None, bits], 0))
    return pa.RecordBatch.from_arrays(columns, schema=_PLAIN_FLEETING)


_PLAIN: Final = pa.schema([FIELDS["data"]])
_PLAIN_FLEETING: Final = pa.schema([FIELDS["data"], FIELDS["persistent"]])


def _plain_prefix(message: bytes) -> tuple[int, bool] | None:
    """Return the offset of the data, and durability, for a message that has no other content; None
    for any other message."""
    try:
        sections = sections_of(message)
    except RemoteProtocolViolation:
        return None
    if sections.message_annotations or sections.properties or sections.application_properties:
        return None
    if sections.footer or len(sections.body) != 1 or sections.body[0][0] != DATA:
        return None
    header = decode_header(sections.header)
    if header.priority is not None or header.ttl or header.zero_ttl:
        return None
    data = sections.body[0][1]
    # The constructors of short and long binaries, whose lengths take 1 and 4 bytes.
    if data[0] not in (0xA0, 0xB0):
        return None
    data_at = len(message) - len(data) + (2 if data[0] == 0xA0 else 5)
    return (data_at, header.durable) if data_at <= KNOWN_BYTES_MAX else None


# --- one message --------------------------------------------------------------------------


class Row(NamedTuple):
    """A decoded message, before its values are arranged in columns."""

    place: int
    """Index of the message among the messages that were read together."""
    data: bytes
    header: MessageHeader
    deliver_ms: int | None
    tag: str | None
    signature: tuple[tuple[str, type], ...] | None
    """Names and types of the properties, if Arrow accepts all types without conversion."""
    properties: dict[str, Any]
    headers: dict[str, Any]
    ttl: int
    """Time to live in milliseconds from now; 0 if the event does not expire."""


def row_of(place: int, message: bytes, now_ms: int) -> Row:
    """Decode a message. Raises ``InvalidEvent``, ``RemoteProtocolViolation``, ``UnicodeError``."""
    sections = sections_of(message)
    header = decode_header(sections.header)
    annotations = decode_annotations(sections.message_annotations)
    data, kind, sizes = _body_of(sections)
    rest: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    signature: tuple[tuple[str, type], ...] | None = ()
    if sections.application_properties:
        signature, properties = _application_properties(sections.application_properties, rest)
    expires_ms = 0
    if sections.properties:
        more: dict[str, Any] = dict(annotations.properties)
        expires_ms = _message_properties(sections.properties, headers, more, rest)
        if more:
            properties, signature = {**properties, **more}, None
    elif annotations.properties:
        properties, signature = {**properties, **annotations.properties}, None
    if header.high_priority is not None:
        rest["priority"] = header.high_priority
    if header.zero_ttl:
        rest["zero_ttl"] = True
    _add_inexpressible(sections, annotations, kind, sizes, rest)
    if rest and (text := _residue_text(rest)) is not None:
        headers[message_header.HEADER] = text
    # A relative time to live takes precedence over an absolute expiry.
    ttl = header.ttl
    if not ttl and expires_ms:
        ttl = min(max(1, expires_ms - now_ms), TTL_MS_MAX)
    deliver_ms = annotations.deliver_ms
    if deliver_ms is None and annotations.delay_ms:
        deliver_ms = min(now_ms + annotations.delay_ms, MS_MAX)
    return Row(
        place,
        data,
        header,
        deliver_ms,
        annotations.tag,
        signature,
        properties,
        headers,
        ttl,
    )


def _add_inexpressible(
    sections: Sections,
    annotations: Annotations,
    kind: str,
    sizes: tuple[int, ...],
    rest: dict[str, Any],
) -> None:
    """Add to ``rest`` the parts of a message that fit neither a column nor a property."""
    if kind != "data":
        rest["body"] = kind
    if sizes:
        rest["sizes"] = sizes
    if annotations.rest is not None:
        rest["annotations"] = annotations.rest
    if sections.footer:
        rest["footer"] = sections.footer


texts_by_residue: dict[tuple[Any, ...], str | None] = {}
"""Cached texts of the header ``amqp``, by its fields."""


def _residue_text(rest: dict[str, Any]) -> str | None:
    """Return the text of the header ``amqp`` with these fields; None if it would be empty."""
    key = tuple(
        (name, tuple(value.items()) if isinstance(value, dict) else value)
        for name, value in rest.items()
    )
    try:
        return texts_by_residue[key]
    except KeyError:
        text = message_header.encode_extras(AmqpExtras(**rest))
        if text is None or len(text) <= KNOWN_CHARACTERS_MAX:  # the key is about as long
            if len(texts_by_residue) >= KNOWN_MAX:
                texts_by_residue.clear()
            texts_by_residue[key] = text
        return text


def _body_of(sections: Sections) -> tuple[bytes, str, tuple[int, ...]]:
    """Return the data, the kind of body, and the sizes of the sections if the body has several."""
    body = sections.body
    if not body:
        return b"", "none", ()
    code, encoded = body[0]
    if code == DATA:
        if len(body) == 1:
            return _decode_binary(encoded), "data", ()
        parts = [_decode_binary(section_value) for _, section_value in body]
        return b"".join(parts), "data", tuple(map(len, parts))
    if code == SEQUENCE:
        for _, section_value in body:
            fields(section_value)
        return b"".join(section_value for _, section_value in body), "sequence", ()
    assert code == VALUE, "sections_of accepts only data, sequence and value as body sections"
    return _decode_value(encoded)


def _decode_binary(encoded: bytes) -> bytes:
    if encoded[0] == 0xA0:
        return encoded[2:]
    if encoded[0] == 0xB0:
        return encoded[5:]
    raise RemoteProtocolViolation("data section must be binary")


def _decode_value(encoded: bytes) -> tuple[bytes, str, tuple[int, ...]]:
    """Return the data and the kind of a value section. Texts and binaries become the data
    themselves; other values stay encoded."""
    code = encoded[0]
    if code in (0xA1, 0xB1):
        text = encoded[2 if code == 0xA1 else 5 :]
        text.decode()  # raises if it is not UTF-8
        return text, "text", ()
    if code in (0xA0, 0xB0):
        return _decode_binary(encoded), "binary", ()
    if code == 0x40:
        return b"", "null", ()
    return encoded, "value", ()


# --- properties ---------------------------------------------------------------------------


def _application_properties(
    encoded: bytes, rest: dict[str, Any]
) -> tuple[tuple[tuple[str, type], ...] | None, dict[str, Any]]:
    """Return names and types, and the values of the properties. Values that cannot be properties
    are added to ``rest``."""
    decoded = entries(encoded)
    types = {name: KEPT[type(value)] for name, value in decoded.items() if type(value) in KEPT}
    try:
        signature = tuple(
            (_checked_name(name), _scalar_type(value)) for name, value in decoded.items()
        )
        values: dict[str, Any] = decoded
        fits_arrow = all(kind in ARROW for _, kind in signature)
        if not fits_arrow:
            values = {name: property_of(value) for name, value in decoded.items()}
    except (InvalidEvent, NoProperty):
        rest["application_properties"] = encoded
        return None, _usable_properties(decoded)
    if types:
        rest["types"] = types
    return signature if fits_arrow else None, values


def _checked_name(name: Any) -> str:
    """Return a property name. Raises ``InvalidEvent`` if an event may not have it."""
    check_property_name(name)
    return str(name)


def _scalar_type(value: Any) -> type:
    """Return the type of a single value. Raises :class:`NoProperty` for a list or map."""
    if isinstance(value, dict | list):
        raise NoProperty("an application property must be a single value, not a list or map")
    return type(value)


def _usable_properties(decoded: dict[Any, Any]) -> dict[str, Any]:
    """Return the values that can be properties of an event."""
    usable: dict[str, Any] = {}
    for name, value in decoded.items():
        try:
            check_property_name(name)
            usable[str(name)] = _property_or_text(value)
        except (InvalidEvent, NoProperty):
            continue
    return usable


def _property_or_text(value: Any) -> Any:
    """Return the property value that clients of other protocols see: converted, or as text. Raises
    ``NoProperty``."""
    try:
        return property_of(value)
    except NoProperty:
        if (text := text_of(value)) is None:
            raise
        return text


_IDS: Final[dict[type, str]] = {ULong: "ulong", UUID: "uuid", bytes: "binary"}
"""Names of the types that a message id can have, in addition to a string (3.2.11 to 3.2.14)."""
_TEXTS: Final = ((2, "to"), (6, "content_type"), (7, "content_encoding"), (12, "reply_to_group_id"))
"""Indexes and names of the fields of the properties section that the header ``amqp`` stores."""


def _message_properties(
    encoded: bytes, headers: dict[str, Any], properties: dict[str, Any], rest: dict[str, Any]
) -> int:
    """Read the properties section into ``headers``, ``properties`` and ``rest``. Return the
    absolute expiry in ms; 0 if absent."""
    values = fields(encoded)
    values += [None] * (13 - len(values))
    for place, name in ((0, "message_id"), (5, "correlation_id")):
        value = values[place]
        if type(value) is str:
            headers[name] = value
        elif value is not None:
            _read_typed_id(name, value, headers, rest)
    for place, name in ((3, "type"), (4, "reply_to")):
        if values[place] is not None:
            headers[name] = _checked_text(values[place], name)
    for place, name in _TEXTS:
        if values[place] is not None:
            rest[name] = _checked_text(values[place], name)
    _read_user_and_group(values[1], values[10], values[11], headers, properties, rest)
    return _read_times(values[8:10], headers, rest)


def _read_user_and_group(
    user: Any,
    group: Any,
    sequence: Any,
    headers: dict[str, Any],
    properties: dict[str, Any],
    rest: dict[str, Any],
) -> None:
    """Read the fields user-id, group-id and group-sequence."""
    if type(user) is bytes:  # not isinstance: `Decimal` is a subclass of bytes
        try:
            headers["user"] = user.decode()
        except UnicodeDecodeError:
            rest["user_id"] = user
    if group is not None:
        properties[message_header.GROUP_ID] = _checked_text(group, "group-id")
    if isinstance(sequence, UInt):
        properties[message_header.GROUP_SEQUENCE] = int(sequence)


def _read_typed_id(name: str, value: Any, headers: dict[str, Any], rest: dict[str, Any]) -> None:
    """Read an id that is not a string: the header has its text, ``rest`` its type. Raises
    ``RemoteProtocolViolation`` for a type that ids cannot have."""
    kind = _IDS.get(type(value))
    if kind is None:
        raise RemoteProtocolViolation(f"{name} cannot be {type(value).__name__}")
    headers[name] = value.hex() if kind == "binary" else str(value)
    rest[name] = kind


def _checked_text(value: Any, name: str) -> str:
    """Return the text of a field. Raises ``RemoteProtocolViolation`` if its value is not a
    string."""
    if not isinstance(value, str):
        raise RemoteProtocolViolation(f"{name} is {type(value).__name__}, not a string")
    return str(value)


def _read_times(values: list[Any], headers: dict[str, Any], rest: dict[str, Any]) -> int:
    """Read the absolute expiry and the creation time. Return the expiry in milliseconds since 1970;
    0 if it is absent."""
    times_ms: list[int | None] = []
    for value in values:
        if not isinstance(value, Timestamp | None):
            raise RemoteProtocolViolation("a time in a message must be a timestamp")
        times_ms.append(None if value is None else int(value))
    for name, ms in zip(("expiration", "timestamp"), times_ms, strict=True):
        if ms is not None and in_range(ms):
            headers[name] = ms * 1_000
        elif ms is not None:  # outside the range of events: keep it for the AMQP receivers
            rest["times"] = (times_ms[0], times_ms[1])
    return times_ms[0] or 0


# --- columns ------------------------------------------------------------------------------


def batch_of(rows: list[Row], container: str) -> Batch:
    """Build the columns of decoded messages, either all with a delivery time or all without one."""
    properties = _build_property_columns(rows)
    batch = body_of_columns(
        [row.data for row in rows],
        [row.tag for row in rows],
        ttls=[row.ttl for row in rows],
        persistents=[row.header.durable for row in rows],
        priorities=[row.header.priority for row in rows],
        deliver_ats=None
        if rows[0].deliver_ms is None
        else [EPOCH + timedelta(milliseconds=row.deliver_ms or 0) for row in rows],
    )
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if (headers := _build_header_columns(rows, container)) is not None:
        columns["headers"] = headers
    for name in ("properties", "sparse", "nulls", "more"):
        array = getattr(properties, name)
        if array is not None:
            columns[name] = array
    schema = pa.schema(
        [FIELDS.get(name) or pa.field(name, array.type) for name, array in columns.items()]
    )
    record_batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    return Batch(record_batch, [row.place for row in rows])


def _build_header_columns(rows: list[Row], container: str) -> pa.StructArray | None:
    """Return the column of the events' headers; None if no event has a header."""
    names: dict[str, None] = {}
    for row in rows:
        if row.headers:
            names.update(dict.fromkeys(row.headers))
    arrays = {name: _header_column(name, rows) for name in HEADERS if name in names}
    if container:
        arrays["application_id"] = pa.repeat(pa.scalar(container, pa.string()), len(rows))
    if not arrays:
        return None
    return pa.StructArray.from_arrays(
        list(arrays.values()), fields=[pa.field(name, HEADERS[name]) for name in arrays]
    )


def _header_column(name: str, rows: list[Row]) -> pa.Array:
    """Return the column of the header ``name``."""
    values = [row.headers.get(name) for row in rows]
    if HEADERS[name] == UTC_MICROSECONDS:
        return pa.array(values, pa.int64()).view(UTC_MICROSECONDS)
    return pa.array(values, HEADERS[name])


def _build_property_columns(rows: list[Row]) -> PropertyColumns:
    # Rows with the same names and types, the usual case, need no merging: one array for each name.
    signature = rows[0].signature
    if signature is None or any(row.signature != signature for row in rows):
        # The rows have different names or types, which only `property_columns` can merge.
        converted = [{n: _arrow_value(v) for n, v in row.properties.items()} for row in rows]
        return property_columns(converted)
    if not signature:
        return NO_PROPERTIES
    if len(signature) > PROPERTY_COLUMNS_MAX:
        return property_columns(
            [{n: _arrow_value(v) for n, v in r.properties.items()} for r in rows]
        )
    rows_properties = [row.properties for row in rows]
    kinds = [ARROW[kind] for _, kind in signature]
    arrays = [
        pa.array([properties[name] for properties in rows_properties], kind)
        for (name, _), kind in zip(signature, kinds, strict=True)
    ]
    names = [str(name) for name, _ in signature]
    struct = pa.StructArray.from_arrays(
        arrays, fields=[pa.field(n, k) for n, k in zip(names, kinds, strict=True)]
    )
    return PropertyColumns(struct)


def _arrow_value(value: Any) -> Any:
    """Convert a value of an AMQP type to the Python type that Arrow accepts."""
    return property_of(value) if type(value) in ARROW else value
