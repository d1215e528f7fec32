"""Messages of MQTT as events, and events as messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.arrays import array_of
from penstock_core.columns.schema.properties import PropertyColumns
from penstock_core.columns.schema.rows import Rows
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.topic_templates import TOPIC
from penstock_core.vocabulary.topics import name_fault
from penstock_mqtt.expressing import (
    EXPIRY_S_MAX,
    give_up,
    leave_out,
    packet_properties,
)
from penstock_mqtt.residues import NO_RESIDUE, Residue, residue_of, residue_of_amqp
from penstock_mqtt.wire.packets import PublishPacket
from penstock_mqtt.wire.plain_messages import PlainMessage
from penstock_mqtt.wire.properties import NO_PROPERTIES, PacketProperties
from penstock_mqtt.wire.writing import publish_parts
from penstock_server.runtime.access.open_connections import MessageCounts
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

Telling = Callable[[Event, dict[str, Any]], tuple[str | None, bytes]]

REMOVAL_MS: Final = 1_000
"""How long an event stays that has removed a retained message, in milliseconds."""


_COLUMN_BYTES_MAX: Final = 1 << 30
"""Bytes of payloads that are surely less than one column holds."""
_TOPICS: Final = pa.struct([(TOPIC, pa.string())])
_CLIENTS: Final = pa.struct([("application_id", pa.string())])
_SCHEMA: Final = pa.schema([("data", pa.binary()), ("properties", _TOPICS), ("headers", _CLIENTS)])
_SCHEMA_OF_BOTH: Final = _SCHEMA.append(pa.field("persistent", pa.bool_()))
"""The schema where some messages persist and others do not."""


_NAMES_MAX: Final = 4_096
"""Most topic names of which it is remembered whether they are right."""
_KEPT_BYTES_MAX: Final = 1 << 16
"""Bytes of the longest packet that is kept for further receivers: it would be in memory twice."""
_FEW_NAMES: Final = 256
_SHORT: Final = 100
"""Characters of the longest name that is remembered."""


class Received(Struct, frozen=True):
    """A message of a client, with the topic that an alias stood for."""

    topic: str
    packet: PublishPacket
    client_id: str


class Publishing(Protocol):
    """Who hears what has become of a message."""

    def stored(self, packet: PublishPacket) -> None:
        """It is on disk as far as its channel is."""
        ...

    def not_stored(self, packet: PublishPacket, error: PenstockError) -> None: ...


class PublishingPlain(Publishing, Protocol):
    """Who hears it also of many messages together."""

    client_id: str

    def stored_together(self, messages: Sequence[PlainMessage]) -> None:
        """These are on disk as far as their channel is."""
        ...


class Gathered(NamedTuple):
    """A message that is published with others."""

    whose: Publishing
    message: Received
    entries: tuple[tuple[str, bytes], ...] = ()
    """What is stored of its session in the same step."""


class GatheredTogether(NamedTuple):
    """Messages of one client that came together and say nothing but topic, payload and id."""

    whose: PublishingPlain
    messages: Sequence[PlainMessage]


def plain_packet(topic: str, payload: bytes, packet_id: int) -> PublishPacket:
    """A message as the packet that it came in."""
    return PublishPacket(topic, payload, int(packet_id > 0), packet_id)


def one_by_one(gathered: Sequence[Gathered | GatheredTogether]) -> list[Gathered]:
    """Messages, in their order, each by itself."""
    found: list[Gathered] = []
    for each in gathered:
        if isinstance(each, Gathered):
            found.append(each)
            continue
        client_id = each.whose.client_id
        found += [
            Gathered(each.whose, Received(plain[0], plain_packet(*plain), client_id))
            for plain in each.messages
        ]
    return found


def body_of_plain(gathered: Sequence[GatheredTogether]) -> pa.RecordBatch | None:
    """The events of plain messages, in their order; None: they are too large together."""
    messages = [each for one in gathered for each in one.messages]
    topics, payloads, packet_ids = zip(*messages, strict=True)
    if sum(map(len, payloads)) >= _COLUMN_BYTES_MAX:
        return None
    clients = [one.whose.client_id for one in gathered for _ in one.messages]
    persistents = None if all(packet_ids) else [each > 0 for each in packet_ids]
    return _columns(topics, clients, payloads, persistents=persistents)


def body_of_messages(
    messages: Sequence[Received],
    properties: Sequence[Mapping[str, Any]] | PropertyColumns | None = None,
    message_type: str = "",
) -> pa.RecordBatch:
    """The events of messages, in their order; their properties are the topic and those of users,
    or these. ``message_type`` is the type of Protocol Buffers that their payloads have. Raises
    ``InvalidEvent``."""
    qos = [each.packet.qos > 0 for each in messages]
    ttls = [_ttl_ms(each.packet.properties) for each in messages]
    return _body(
        messages, ttls, None if all(qos) else qos, properties=properties, message_type=message_type
    )


def body_of_retained(messages: Sequence[Received]) -> pa.RecordBatch:
    """The events that retain the last message of each topic (SEM M5): they all persist, and one
    without a payload soon expires. Raises ``InvalidEvent``."""
    last = list({each.topic: each for each in messages}.values())
    ttls = [_ttl_ms(each.packet.properties) if each.packet.payload else REMOVAL_MS for each in last]
    return _body(last, ttls, None)


def _body(
    messages: Sequence[Received],
    ttls: Sequence[int | None],
    persistents: Sequence[bool] | None,
    properties: Sequence[Mapping[str, Any]] | PropertyColumns | None = None,
    message_type: str = "",
) -> pa.RecordBatch:
    plain = all(
        each.packet.properties is NO_PROPERTIES and not each.packet.retain and each.packet.qos < 2
        for each in messages
    )
    datas = [each.packet.payload for each in messages]
    if properties is None:
        if plain and sum(map(len, datas)) < _COLUMN_BYTES_MAX:
            return _plain_body(messages, datas, persistents)
        properties = [user_properties_of(each) | {TOPIC: each.topic} for each in messages]
    return body_of_columns(
        datas,
        None,
        properties,
        headers=[_headers(each, message_type) for each in messages],
        ttls=None if all(each is None for each in ttls) else ttls,
        persistents=persistents,
    )


def _plain_body(
    messages: Sequence[Received], datas: Sequence[bytes], persistents: Sequence[bool] | None
) -> pa.RecordBatch:
    """As :func:`~penstock_core.columns.events.body.body_of_columns` makes it, without a dictionary
    for each event."""
    topics = [each.topic for each in messages]
    return _columns(topics, [each.client_id for each in messages], datas, persistents=persistents)


def _columns(
    topics: Sequence[str],
    clients: Sequence[str],
    datas: Sequence[bytes],
    persistents: Sequence[bool] | None,
) -> pa.RecordBatch:
    count = len(topics)
    topic_array, client_array = array_of(topics, pa.string()), array_of(clients, pa.string())
    arrays = [
        array_of(datas, pa.binary()),
        pa.Array.from_buffers(_TOPICS, count, [None], 0, 0, [topic_array]),
        pa.Array.from_buffers(_CLIENTS, count, [None], 0, 0, [client_array]),
    ]
    if persistents is None:
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
    arrays.append(array_of(persistents, pa.bool_()))
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA_OF_BOTH)


def _ttl_ms(properties: PacketProperties) -> int | None:
    seconds = properties.message_expiry_s
    return None if seconds is None else max(1, seconds * 1_000)


def user_properties_of(message: Received) -> dict[str, Any]:
    """The user properties of a message as those of an event. One without a name is only in the
    header ``mqtt``: no property of an event is called so."""
    values: dict[str, list[str]] = {}
    for name, value in message.packet.properties.user_properties:
        values.setdefault(name, []).append(value)
    values.pop("", None)
    return {name: own[0] if len(own) == 1 else own for name, own in values.items()}


def _headers(message: Received, message_type: str) -> dict[str, Any]:
    own = message.packet.properties
    found: dict[str, Any] = {"application_id": message.client_id}
    if message_type and message.packet.payload:
        found["message_type"] = message_type
    if own.response_topic is not None:
        found["reply_to"] = own.response_topic
    is_hex = False
    if own.correlation_data is not None:
        text = _text_in(own.correlation_data)
        is_hex = text is None
        found["correlation_id"] = own.correlation_data.hex() if text is None else text
    rest = Residue(
        content_type=own.content_type,
        payload_format=own.payload_format,
        user=own.user_properties or None,
        hex=is_hex,
        retain=message.packet.retain,
        qos=_told_qos(message.packet),
    )
    if rest != NO_RESIDUE:
        found["mqtt"] = msgspec.json.encode(rest).decode()
    return found


def _text_in(data: bytes) -> str | None:
    """What others would call the same if it is text, as most clients' correlation data is."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and text else None


def _told_qos(packet: PublishPacket) -> int | None:
    if packet.qos == 2:
        return 2
    return 0 if packet.retain and not packet.qos else None


class TopicMessage(Struct, frozen=True):
    """An event as a message, for whoever gets it."""

    topic: str
    payload: bytes
    qos: int
    client_id: str
    """Who published it; empty: no client of MQTT."""
    ends_us: int
    """When it expires, in microseconds since 1970; 0: never."""
    properties: PacketProperties
    is_retained: bool = False
    """Whether it was published to be retained."""
    written: dict[tuple[int, int, bool], tuple[bytes, bytes]] = msgspec.field(default_factory=dict)
    """What receivers are sent, by version, QoS and retain flag."""

    @property
    def is_plain(self) -> bool:
        """Whether it says nothing but topic and payload, whenever it is sent."""
        return self.properties is NO_PROPERTIES and not self.is_retained and not self.ends_us


_NONE: Final = NO_PROPERTIES
_PLAIN: Final = frozenset(
    ("event_id", "published", "data", "properties", "headers", "persistent", "tag", "priority")
)
"""Columns that a message is made of, or that say nothing to MQTT."""
_PLAIN_OF_FIELDS: Final = _PLAIN | {"sparse", "nulls"}
"""These where the properties are fields of the payload: which of them an event has says nothing."""


def published_parts(
    message: TopicMessage, version: int, qos: int = 0, *, retain: bool = False
) -> tuple[bytes, bytes]:
    """A message as a PUBLISH with its own properties, before and behind its packet id; written
    once for all who are sent the same. Raises ``ValueError`` for what the version cannot say."""
    key = version, qos, retain
    known = message.written.get(key)
    if known is None:
        known = publish_parts(message, version, qos, retain=retain)
        if len(known[1]) <= _KEPT_BYTES_MAX:
            message.written[key] = known
    return known


class Reading(NamedTuple):
    """How the events of a channel are read as messages."""

    told: Telling
    """Takes the topic and the payload out of an event, and what is neither out of its
    properties."""
    left_out: frozenset[str] | None
    """Properties that say nothing where an event has its topic; None: all of them, where it has a
    payload, too."""


def _told(event: Event, properties: dict[str, Any]) -> tuple[str | None, bytes]:
    topic = properties.pop(TOPIC, None)
    return topic if isinstance(topic, str) else None, event.data


ALL_TOPICS: Final = Reading(_told, frozenset())
"""The channel of all topics: the topic is a property, and the others are those of users."""


def messages_of(
    batch: pa.RecordBatch, by: Reading = ALL_TOPICS, counts: MessageCounts | None = None
) -> list[TopicMessage | None]:
    """The events of a stored batch as messages; None: it has no topic. What cannot be a message,
    or a part of one, is counted, and keeps no other event from being given out."""
    found = _plain_messages(batch, by)
    if found is None:
        rows = Rows(batch, in_order=True)
        counted = counts or MessageCounts()
        found = [_message_at(rows, row, by, counted) for row in range(batch.num_rows)]
    return found


def _message_at(rows: Rows, row: int, by: Reading, counts: MessageCounts) -> TopicMessage | None:
    try:
        return message_of(Event.received(rows, row), by, counts)
    except Exception as error:  # noqa: BLE001  the other events of the batch do not share it
        give_up(counts, "", repr(error))
        return None


def messages_in(
    rows: OutgoingBatch, by: Reading = ALL_TOPICS, counts: MessageCounts | None = None
) -> list[TopicMessage | None]:
    """The events of a delivery as messages. What was published together is read as it came where
    that says all, for it would get ids and times for nobody else."""
    if rows.piece is not None and (found := _plain_messages(rows.piece.batch, by)) is not None:
        return found
    return messages_of(rows.batch, by, counts)


def _plain_messages(batch: pa.RecordBatch, by: Reading) -> list[TopicMessage | None] | None:
    """The messages of a batch, a column at a time; None: its events say more than this reads."""
    count = batch.num_rows
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    plain = _PLAIN_OF_FIELDS if by.left_out is None else _PLAIN
    if any(name not in plain and column.null_count < count for name, column in columns.items()):
        return None
    topics = _texts(columns.get("properties"), (TOPIC,), count, left_out=by.left_out)
    headers = _texts(columns.get("headers"), ("application_id", "mqtt"), count)
    if topics is None or headers is None:
        return None
    residues = [residue_of(each) for each in headers[1]]
    if any(each.says_more for each in set(residues)):
        return None
    data, persistent = columns.get("data"), columns.get("persistent")
    payloads = [b""] * count if data is None else data.to_pylist()
    if by is not ALL_TOPICS and None in topics[0]:
        return None  # its properties may make one
    if by.left_out is None and not all(payloads):
        return None  # its properties are the payload
    kept = repeat(True, count) if persistent is None else persistent.to_pylist()
    right = _right_names(set(topics[0]))
    return [
        TopicMessage(
            topic,
            payload or b"",
            rest.of_qos(persists is not False),
            client or "",
            0,
            _NONE,
            rest.retain,
        )
        if topic is not None and right[topic]
        else None
        for topic, payload, persists, client, rest in zip(
            topics[0], payloads, kept, headers[0], residues, strict=True
        )
    ]


def _right_names(topics: Collection[str | None]) -> dict[str | None, bool]:
    """Which are topic names. So many that others would be forgotten for them are not remembered."""
    if len(topics) > _FEW_NAMES or any(len(each or "") > _SHORT for each in topics):
        return {each: each is not None and not name_fault(each) for each in topics}
    return {each: each is not None and _is_short_name(each) for each in topics}


@lru_cache(_NAMES_MAX)
def _is_short_name(topic: str) -> bool:
    return not name_fault(topic)


def _texts(
    column: pa.Array | None,
    names: Sequence[str],
    count: int,
    left_out: frozenset[str] | None = frozenset(),
) -> list[list[str | None]] | None:
    """The values of a struct that has nothing but these texts, and what may be left out; None:
    there is more."""
    found: dict[str, list[str | None]] = {name: [None] * count for name in names}
    if column is None:
        return list(found.values())
    if column.null_count:
        return None
    for index, field in enumerate(column.type):
        values = column.field(index)
        if field.name in found and field.type == pa.string() and not field.metadata:
            found[field.name] = values.to_pylist()
        elif left_out is not None and field.name not in left_out and values.null_count < count:
            return None
    return list(found.values())


def message_of(
    event: Event, by: Reading = ALL_TOPICS, counts: MessageCounts | None = None
) -> TopicMessage | None:
    """An event as a message; None: it has no topic."""
    properties = event.properties
    topic, payload = by.told(event, properties)
    if topic is None or name_fault(topic):
        return None
    omit = partial(leave_out, counts or MessageCounts(), topic)
    headers = event.headers
    ends_us = 0
    if event.ttl and event.published is not None:
        if event.ttl <= EXPIRY_S_MAX * 1_000:
            ends_us = int(event.published.timestamp() * 1_000_000) + event.ttl * 1_000
        else:
            omit("message expiry", f"{event.ttl} ms; at most {EXPIRY_S_MAX} s are possible")
    client_id = headers.get("application_id") or ""
    rest = residue_of(headers.get("mqtt"))
    if rest is NO_RESIDUE and (said := headers.get("amqp")):
        rest = residue_of_amqp(said)
    qos = rest.of_qos(event.persistent)
    own = packet_properties(rest, headers, properties, omit)
    return TopicMessage(topic, payload, qos, client_id, ends_us, own, rest.retain)
