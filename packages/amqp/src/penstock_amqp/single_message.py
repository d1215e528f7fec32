"""Converts a message that arrives alone to an event from a template, because building columns costs
as much for one message as for thousands.

A client that sends one message at a time waits for each answer, so the cost is latency. The event
is byte for byte the one that :mod:`penstock_amqp.incoming` builds; unusual messages go through that
module.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock_amqp.header_cache import KNOWN_BYTES_MAX
from penstock_amqp.incoming import Row, batch_of, row_of
from penstock_amqp.typed import in_range
from penstock_amqp.wire.sections import PROPERTIES, field_offsets, section_offsets, sections_of
from penstock_amqp.wire.types import skip
from penstock_core.bounds import TTL_MS_MAX
from penstock_core.columns.events.single_event import SingleEventCodec, trusted_codec_of
from penstock_core.columns.schema.ipc import SCHEMA_BYTES_KEPT_MAX, schema_bytes
from penstock_core.columns.schema.layout import HEADERS, PRIORITY_MAX
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidEvent, RemoteProtocolViolation
from penstock_server.runtime.store.bodies import Body

MISMATCHES_MAX: Final = 32
"""Once mismatches outnumber matches by this many messages, no more templates are built."""
SHAPES_MAX: Final = 256
"""Maximum cached message shapes. A shape is the names and types of a message's fields; senders
choose them, so the cache needs a bound."""

_ONE_EVENT: Final = (Span(0, 1),)


class _MessageShape(NamedTuple):
    """The codec and columns shared by all messages with the same fields."""

    codec: SingleEventCodec
    """Encodes the columns of one event."""
    schema: bytes
    """The encoded schema of the columns."""
    has_data: bool
    headers: tuple[str, ...]
    """Names of the headers, in the order of the columns."""


_shapes: dict[tuple[object, ...], _MessageShape | None] = {}
"""Message shapes by the properties that decide the columns; None for those without a codec."""


class SingleMessages:
    """Converts the messages that arrive alone on one link.

    A program's messages often differ only in their id, time and data; then only these are decoded.
    """

    def __init__(self) -> None:
        self._template: MessageTemplate | None = None
        self._mismatches = 0

    def body(self, message: bytes, now_ms: int, container: str) -> Body | None:
        """Return the event of a message; None if it has to go through ``incoming.batches_of``,
        which also reports errors. ``container`` has the same meaning there."""
        template = self._template
        if template is not None and template.container == container:
            values = _match_template(message, template)
            if values is not None:
                if self._mismatches:
                    self._mismatches -= 1
                return _encode_event(template.kind, values, template.row)
        parsed = _read(message, now_ms, container)
        if parsed is None:
            return None
        body = _encode_event(*parsed)
        if body is not None and self._mismatches < MISMATCHES_MAX:
            self._mismatches += 1
            self._template = _template_of(message, container, *parsed)
        return body


def _read(
    message: bytes, now_ms: int, container: str
) -> tuple[_MessageShape, list[Any], Row] | None:
    """Decode a message. Return its shape, its values by column and its row; None if it needs the
    general conversion."""
    try:
        row = row_of(0, message, now_ms)
    except (RemoteProtocolViolation, InvalidEvent, UnicodeError):
        return None
    header, signature, ttl = row.header, row.signature, row.ttl
    if signature is None or row.deliver_ms is not None or not 0 <= ttl <= TTL_MS_MAX:
        return None
    if header.priority is not None and not 0 <= header.priority <= PRIORITY_MAX:
        return None
    key = (
        header.durable,
        header.priority is None,
        not ttl,
        row.tag is None,
        not row.data,
        not container,
        *row.headers,
        None,
        *signature,
    )
    try:
        kind = _shapes[key]
    except KeyError:
        kind = _learn_shape(key, row, container)
    return None if kind is None else (kind, _column_values(kind, row, container), row)


def _encode_event(kind: _MessageShape, values: list[Any], row: Row) -> Body | None:
    """Encode an event; its durability and time to live are taken from ``row``."""
    result = kind.codec.encode_with_digest(values)
    if result is None:
        return None
    encoded, digest = result
    durable, ttl = row.header.durable, row.ttl
    if ttl or not durable:
        digest = Digest(
            count=1,
            size=digest.size,
            largest=digest.largest,
            volatile=() if durable else _ONE_EVENT,
            ttls=((ttl, _ONE_EVENT),) if ttl else (),
        )
    return Body(encoded, None, kind.schema, digest)


# --- messages that are alike --------------------------------------------------------------


class MessageTemplate(NamedTuple):
    """A message without its id, time and data. Offsets of an absent part are equal."""

    container: str
    kind: _MessageShape
    row: Row
    values: list[Any]
    head: bytes
    """The bytes before the id."""
    id_at: int
    id_end: int
    middle: bytes
    time_at: int
    time_end: int
    tail: bytes
    """The bytes between the time and the length of the data."""
    length_at: int
    data_at: int
    is_text: bool
    """Whether the data must be UTF-8."""
    id_place: int
    """Index of the id in `values`; -1 without an id."""
    time_place: int
    data_place: int


def _match_template(message: bytes, template: MessageTemplate) -> list[Any] | None:
    """Return the values of a message that matches the template; None for any other message."""
    if (
        message[: template.id_at] != template.head
        or message[template.id_end : template.time_at] != template.middle
        or message[template.time_end : template.length_at] != template.tail
    ):
        return None
    data = message[template.data_at :]
    if not data or len(data) != int.from_bytes(
        message[template.length_at : template.data_at], "big"
    ):
        return None
    values = template.values.copy()
    values[template.data_place] = data
    try:
        if template.id_place >= 0:
            values[template.id_place] = message[template.id_at : template.id_end].decode()
        if template.is_text:
            data.decode()
    except UnicodeDecodeError:
        return None
    if template.time_place >= 0:
        ms = int.from_bytes(message[template.time_at : template.time_end], "big", signed=True)
        if not in_range(ms):
            return None
        values[template.time_place] = ms * 1_000
    return values


_LENGTHS: Final = {0xA0: 1, 0xA1: 1, 0xB0: 4, 0xB1: 4}
"""Bytes of the length of binaries and strings, by constructor."""
_STRINGS: Final = (0xA1, 0xB1)
_TIMESTAMP: Final = 0x83
_CREATION_TIME: Final = 9


def _template_of(
    message: bytes, container: str, kind: _MessageShape, values: list[Any], row: Row
) -> MessageTemplate | None:
    """Build a template from a message; None if similar messages would differ in more than id, time
    and data, or the message has no data."""
    if row.ttl != row.header.ttl:  # an absolute expiry differs from message to message
        return None
    sections, offsets = sections_of(message), section_offsets(message)
    if len(sections.body) != 1 or sections.footer or not row.data:
        return None
    body_at = offsets[sections.body[0][0]]
    data_at = body_at + 1 + _LENGTHS.get(message[body_at], 0)
    if data_at != len(message) - len(row.data) or data_at > KNOWN_BYTES_MAX:
        return None
    names, headers_index = kind.headers, len(values) - len(row.properties) - bool(container)
    headers_index -= len(names)
    id_at = id_end = 0
    id_place = time_place = -1
    fields = field_offsets(message, offsets[PROPERTIES]) if PROPERTIES in offsets else []
    if fields and message[fields[0]] in _STRINGS:
        id_at = fields[0] + 1 + _LENGTHS[message[fields[0]]]
        id_end = skip(message, fields[0])
        id_place = headers_index + names.index("message_id")
    time_at = time_end = id_end
    if len(fields) > _CREATION_TIME and message[fields[_CREATION_TIME]] == _TIMESTAMP:
        if "timestamp" not in names:  # a time that an event cannot have
            return None
        time_at, time_end = fields[_CREATION_TIME] + 1, fields[_CREATION_TIME] + 9
        time_place = headers_index + names.index("timestamp")
    # The template must not hold the data: it would be most of the memory that a link uses.
    without_data = [*values]
    without_data[int(row.tag is not None)] = b""
    head, row = message[:id_at], row._replace(data=b"")
    return MessageTemplate(
        container,
        kind,
        row,
        values=without_data,
        head=head,
        id_at=id_at,
        id_end=id_end,
        middle=message[id_end:time_at],
        time_at=time_at,
        time_end=time_end,
        tail=message[time_end : body_at + 1],
        length_at=body_at + 1,
        data_at=data_at,
        is_text=message[body_at] in _STRINGS,
        id_place=id_place,
        time_place=time_place,
        data_place=int(row.tag is not None),
    )


# --- columns ------------------------------------------------------------------------------


def _column_values(kind: _MessageShape, row: Row, container: str) -> list[Any]:
    """Return the values of the columns, in the order of the columns."""
    values: list[Any] = []
    if row.tag is not None:
        values.append(row.tag)
    if kind.has_data:
        values.append(row.data)
    if row.ttl:
        values.append(row.ttl)
    if not row.header.durable:
        values.append(0)
    if row.header.priority is not None:
        values.append(row.header.priority)
    headers = row.headers
    values += [headers[name] for name in kind.headers]
    if container:
        values.append(container)
    values += row.properties.values()
    return values


def _learn_shape(key: tuple[object, ...], row: Row, container: str) -> _MessageShape | None:
    """Build and cache the shape of a message. Return None if such messages have no fast codec, or
    their schema is too large to keep."""
    schema = batch_of([row], container).batch.schema
    encoded = schema_bytes(schema)
    if len(encoded) > SCHEMA_BYTES_KEPT_MAX:
        return None
    if len(_shapes) >= SHAPES_MAX:
        _shapes.clear()
    kind = None
    if (codec := trusted_codec_of(schema)) is not None:
        headers = tuple(name for name in HEADERS if name in row.headers)
        kind = _MessageShape(codec, encoded, "data" in schema.names, headers=headers)
    _shapes[key] = kind
    return kind
