"""Encodes the event of a message that comes alone from a template, because building columns costs
as much for one message as for thousands.

A client that sends one message at a time waits for each answer. The event is byte for byte the one
that :mod:`penstock_amqp.incoming` makes; messages that are not plain go that way.
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

DOUBTS_MAX: Final = 32
"""After so many more messages unlike the last one than like it, no more likenesses are learned."""
KINDS_MAX: Final = 256
"""Most kinds of messages that are remembered, told apart by names and types of their fields.
Senders choose both, so there must be a limit."""

_ALONE: Final = (Span(0, 1),)


class _Kind(NamedTuple):
    """What messages with the same fields have in common."""

    form: SingleEventCodec
    schema: bytes
    has_data: bool
    headers: tuple[str, ...]
    """Names of the headers, in the order of the columns."""


_kinds: dict[tuple[object, ...], _Kind | None] = {}


class SingleMessages:
    """The messages that come alone by one link.

    A program's messages often differ only in their id, time and data: then only these are read.
    """

    def __init__(self) -> None:
        self._like: MessageTemplate | None = None
        self._doubts = 0

    def body(self, message: bytes, now_ms: int, container: str) -> Body | None:
        """The event of a message; None if it has to be made the usual way, which also reports
        errors. ``container`` is the one of ``incoming.batches_of``."""
        like = self._like
        if like is not None and like.container == container:
            values = _values_alike(message, like)
            if values is not None:
                if self._doubts:
                    self._doubts -= 1
                return _made(like.kind, values, like.row)
        found = _read(message, now_ms, container)
        if found is None:
            return None
        made = _made(*found)
        if made is not None and self._doubts < DOUBTS_MAX:
            self._doubts += 1
            self._like = _likeness(message, container, *found)
        return made


def _read(message: bytes, now_ms: int, container: str) -> tuple[_Kind, list[Any], Row] | None:
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
        kind = _kinds[key]
    except KeyError:
        kind = _learn(key, row, container)
    return None if kind is None else (kind, _values(kind, row, container), row)


def _made(kind: _Kind, values: list[Any], row: Row) -> Body | None:
    """Encode the event; ``row`` tells its durability and its time to live."""
    made = kind.form.made(values)
    if made is None:
        return None
    encoded, digest = made
    durable, ttl = row.header.durable, row.ttl
    if ttl or not durable:
        digest = Digest(
            count=1,
            size=digest.size,
            largest=digest.largest,
            volatile=() if durable else _ALONE,
            ttls=((ttl, _ALONE),) if ttl else (),
        )
    return Body(encoded, None, kind.schema, digest)


# --- messages that are alike --------------------------------------------------------------


class MessageTemplate(NamedTuple):
    """A message without its id, time and data. Offsets of an absent part are equal."""

    container: str
    kind: _Kind
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
    """Index of the id among the values; -1: there is none."""
    time_place: int
    data_place: int


def _values_alike(message: bytes, like: MessageTemplate) -> list[Any] | None:
    """The values of a message like ``like``; None for any other."""
    if (
        message[: like.id_at] != like.head
        or message[like.id_end : like.time_at] != like.middle
        or message[like.time_end : like.length_at] != like.tail
    ):
        return None
    data = message[like.data_at :]
    if not data or len(data) != int.from_bytes(message[like.length_at : like.data_at], "big"):
        return None
    values = like.values.copy()
    values[like.data_place] = data
    try:
        if like.id_place >= 0:
            values[like.id_place] = message[like.id_at : like.id_end].decode()
        if like.is_text:
            data.decode()
    except UnicodeDecodeError:
        return None
    if like.time_place >= 0:
        ms = int.from_bytes(message[like.time_at : like.time_end], "big", signed=True)
        if not in_range(ms):
            return None
        values[like.time_place] = ms * 1_000
    return values


_LENGTHS: Final = {0xA0: 1, 0xA1: 1, 0xB0: 4, 0xB1: 4}
"""Bytes of the length of binaries and strings, by constructor."""
_STRINGS: Final = (0xA1, 0xB1)
_TIMESTAMP: Final = 0x83
_CREATION_TIME: Final = 9


def _likeness(
    message: bytes, container: str, kind: _Kind, values: list[Any], row: Row
) -> MessageTemplate | None:
    """What messages like this one have in common; None if they differ in more than id, time and
    data, or have no data."""
    if row.ttl != row.header.ttl:  # an absolute expiry differs from message to message
        return None
    sections, places = sections_of(message), section_offsets(message)
    if len(sections.body) != 1 or sections.footer or not row.data:
        return None
    body_at = places[sections.body[0][0]]
    data_at = body_at + 1 + _LENGTHS.get(message[body_at], 0)
    if data_at != len(message) - len(row.data) or data_at > KNOWN_BYTES_MAX:
        return None
    names, before = kind.headers, len(values) - len(row.properties) - bool(container)
    before -= len(names)
    id_at = id_end = 0
    id_place = time_place = -1
    fields = field_offsets(message, places[PROPERTIES]) if PROPERTIES in places else []
    if fields and message[fields[0]] in _STRINGS:
        id_at = fields[0] + 1 + _LENGTHS[message[fields[0]]]
        id_end = skip(message, fields[0])
        id_place = before + names.index("message_id")
    time_at = time_end = id_end
    if len(fields) > _CREATION_TIME and message[fields[_CREATION_TIME]] == _TIMESTAMP:
        if "timestamp" not in names:  # a time that an event cannot have
            return None
        time_at, time_end = fields[_CREATION_TIME] + 1, fields[_CREATION_TIME] + 9
        time_place = before + names.index("timestamp")
    # Without the data, which would be the larger part of what a link remembers.
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


def _values(kind: _Kind, row: Row, container: str) -> list[Any]:
    """The values of the columns, in their order."""
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


def _learn(key: tuple[object, ...], row: Row, container: str) -> _Kind | None:
    schema = batch_of([row], container).batch.schema
    encoded = schema_bytes(schema)
    if len(encoded) > SCHEMA_BYTES_KEPT_MAX:
        return None
    if len(_kinds) >= KINDS_MAX:
        _kinds.clear()
    found = None
    if (form := trusted_codec_of(schema)) is not None:
        headers = tuple(name for name in HEADERS if name in row.headers)
        found = _Kind(form, encoded, "data" in schema.names, headers=headers)
    _kinds[key] = found
    return found
