"""Converts MQTT messages to events, and events to messages."""

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
    count_left_out,
    count_unsent,
    packet_properties,
)
from penstock_mqtt.plain_events import (
    CLIENTS,
    SCHEMA,
    SCHEMA_OF_BOTH,
    TOPICS,
    PlainEvent,
    body_of_single,
    single_event_of,
)
from penstock_mqtt.residues import NO_RESIDUE, Residue, residue_of, residue_of_amqp
from penstock_mqtt.wire.packets import PublishPacket
from penstock_mqtt.wire.plain_messages import PlainMessage
from penstock_mqtt.wire.properties import NO_PROPERTIES, PacketProperties
from penstock_mqtt.wire.writing import publish_parts
from penstock_server.runtime.access.open_connections import MessageCounts
from penstock_server.runtime.store.bodies import Body, body_from
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

Extractor = Callable[[Event, dict[str, Any]], tuple[str | None, bytes]]

REMOVAL_MS: Final = 1_000
"""Time to live of an event that removes a retained message, in milliseconds."""


_COLUMN_BYTES_MAX: Final = 1 << 30
"""Payloads with less than this many bytes in total fit one column, whose offsets have 32 bits."""

_NAMES_MAX: Final = 4_096
"""Maximum number of topic names whose validity is cached."""
_CACHED_BYTES_MAX: Final = 1 << 16
"""Maximum number of bytes of a packet that is cached for further receivers, since it is then in
memory twice."""
_FEW_NAMES: Final = 256
"""Maximum number of different topics of a batch whose validity is cached."""
_NAME_CHARACTERS: Final = 100
"""Maximum number of characters of a topic name in the cache."""


class Received(Struct, frozen=True):
    """A message that a client has published. A topic alias is already replaced by its topic."""

    topic: str
    packet: PublishPacket
    client_id: str


class Publishing(Protocol):
    """The publisher's side of a message: it is notified when the message is stored or refused."""

    def stored(self, packet: PublishPacket) -> None:
        """Report that the message is as safe on disk as its channel guarantees."""
        ...

    def not_stored(self, packet: PublishPacket, error: PenstockError) -> None: ...


class PublishingPlain(Publishing, Protocol):
    """A `Publishing` that is also notified of several plain messages at once."""

    client_id: str

    def stored_together(self, messages: Sequence[PlainMessage]) -> None:
        """Report that the messages are as safe on disk as their channel guarantees."""
        ...


class Gathered(NamedTuple):
    """A message to publish in this turn of the loop."""

    publication: Publishing
    message: Received
    entries: tuple[tuple[str, bytes], ...] = ()
    """Entries of the publisher's session that are stored in the same step."""


class GatheredTogether(NamedTuple):
    """Messages that one client sent together and that consist only of topic, payload and packet
    id."""

    publication: PublishingPlain
    messages: Sequence[PlainMessage]


def plain_packet(topic: str, payload: bytes, packet_id: int) -> PublishPacket:
    """Return a plain message as the packet that it was received in."""
    return PublishPacket(topic, payload, int(packet_id > 0), packet_id)


def one_by_one(collected: Sequence[Gathered | GatheredTogether]) -> list[Gathered]:
    """Return the messages one by one, in their order."""
    messages: list[Gathered] = []
    for entry in collected:
        if isinstance(entry, Gathered):
            messages.append(entry)
            continue
        client_id = entry.publication.client_id
        messages += [
            Gathered(entry.publication, Received(plain[0], plain_packet(*plain), client_id))
            for plain in entry.messages
        ]
    return messages


def body_of_plain(gathered: Sequence[GatheredTogether]) -> Body | None:
    """Return the events of plain messages in their order, or None if they are too large for one
    batch."""
    if len(gathered) == 1 and len(gathered[0].messages) == 1:  # as from most clients
        ((topic, payload, packet_id),) = gathered[0].messages
        client_id = gathered[0].publication.client_id
        single = body_of_single(PlainEvent(payload, topic, client_id, persists=packet_id > 0))
        if single is not None:
            return single
    messages = [message for together in gathered for message in together.messages]
    topics, payloads, packet_ids = zip(*messages, strict=True)
    if sum(map(len, payloads)) >= _COLUMN_BYTES_MAX:
        return None
    clients = [together.publication.client_id for together in gathered for _ in together.messages]
    persistents = None if all(packet_ids) else [packet_id > 0 for packet_id in packet_ids]
    return body_from(_build_batch(topics, clients, payloads, persistents=persistents))


def body_of_messages(
    messages: Sequence[Received],
    properties: Sequence[Mapping[str, Any]] | PropertyColumns | None = None,
    message_type: str = "",
) -> pa.RecordBatch:
    """Return the events of messages in their order. Their properties are ``properties``, by default
    the topic and the user properties. ``message_type`` is the Protocol Buffers type of the
    payloads. Raises ``InvalidEvent``."""
    persistents = [message.packet.qos > 0 for message in messages]
    ttls = [_ttl_ms(message.packet.properties) for message in messages]
    return _build_body(
        messages,
        ttls,
        None if all(persistents) else persistents,
        properties=properties,
        message_type=message_type,
    )


def body_of_retained(messages: Sequence[Received]) -> pa.RecordBatch:
    """Return the events that retain the last message of each topic (SEM M5). All events persist.
    An event without a payload, which removes a retained message, expires after `REMOVAL_MS`.
    Raises ``InvalidEvent``."""
    last = list({message.topic: message for message in messages}.values())
    ttls = [
        _ttl_ms(message.packet.properties) if message.packet.payload else REMOVAL_MS
        for message in last
    ]
    return _build_body(last, ttls, None)


def _build_body(
    messages: Sequence[Received],
    ttls: Sequence[int | None],
    persistents: Sequence[bool] | None,
    properties: Sequence[Mapping[str, Any]] | PropertyColumns | None = None,
    message_type: str = "",
) -> pa.RecordBatch:
    plain = all(
        message.packet.properties is NO_PROPERTIES
        and not message.packet.retain
        and message.packet.qos < 2
        for message in messages
    )
    datas = [message.packet.payload for message in messages]
    if properties is None:
        if plain and sum(map(len, datas)) < _COLUMN_BYTES_MAX:
            return _build_plain_body(messages, datas, persistents)
        properties = [user_properties_of(message) | {TOPIC: message.topic} for message in messages]
    return body_of_columns(
        datas,
        None,
        properties,
        headers=[_build_headers(message, message_type) for message in messages],
        ttls=None if all(ttl is None for ttl in ttls) else ttls,
        persistents=persistents,
    )


def _build_plain_body(
    messages: Sequence[Received], datas: Sequence[bytes], persistents: Sequence[bool] | None
) -> pa.RecordBatch:
    """Return the batch that :func:`~penstock_core.columns.events.body.body_of_columns` would make,
    without a dictionary for each event."""
    topics = [message.topic for message in messages]
    return _build_batch(
        topics, [message.client_id for message in messages], datas, persistents=persistents
    )


def _build_batch(
    topics: Sequence[str],
    clients: Sequence[str],
    datas: Sequence[bytes],
    persistents: Sequence[bool] | None,
) -> pa.RecordBatch:
    count = len(topics)
    topic_array, client_array = array_of(topics, pa.string()), array_of(clients, pa.string())
    arrays = [
        array_of(datas, pa.binary()),
        pa.Array.from_buffers(TOPICS, count, [None], 0, 0, [topic_array]),
        pa.Array.from_buffers(CLIENTS, count, [None], 0, 0, [client_array]),
    ]
    if persistents is None:
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    arrays.append(array_of(persistents, pa.bool_()))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA_OF_BOTH)


def _ttl_ms(properties: PacketProperties) -> int | None:
    seconds = properties.message_expiry_s
    # An event with a ttl of 0 would never expire.
    return None if seconds is None else max(1, seconds * 1_000)


def user_properties_of(message: Received) -> dict[str, Any]:
    """Return the user properties of a message as properties of an event. Pairs with an empty name
    are only in the header ``mqtt``, because properties of events need a name."""
    values: dict[str, list[str]] = {}
    for name, value in message.packet.properties.user_properties:
        values.setdefault(name, []).append(value)
    values.pop("", None)
    return {name: texts[0] if len(texts) == 1 else texts for name, texts in values.items()}


def _build_headers(message: Received, message_type: str) -> dict[str, Any]:
    properties = message.packet.properties
    headers: dict[str, Any] = {"application_id": message.client_id}
    if message_type and message.packet.payload:
        headers["message_type"] = message_type
    if properties.response_topic is not None:
        headers["reply_to"] = properties.response_topic
    is_hex = False
    if properties.correlation_data is not None:
        text = _printable_text(properties.correlation_data)
        is_hex = text is None
        headers["correlation_id"] = properties.correlation_data.hex() if text is None else text
    residue = Residue(
        content_type=properties.content_type,
        payload_format=properties.payload_format,
        user=properties.user_properties or None,
        hex=is_hex,
        retain=message.packet.retain,
        qos=_explicit_qos(message.packet),
    )
    if residue != NO_RESIDUE:
        headers["mqtt"] = msgspec.json.encode(residue).decode()
    return headers


def _printable_text(data: bytes) -> str | None:
    """Return correlation data as text if it is printable UTF-8, as most clients send it; otherwise
    None."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and text else None


def _explicit_qos(packet: PublishPacket) -> int | None:
    """Return the QoS that the header stores, or None if it follows from the event's persistence.
    Retained events and those of QoS 2 all persist."""
    if packet.qos == 2:
        return 2
    return 0 if packet.retain and not packet.qos else None


class TopicMessage(Struct, frozen=True):
    """An event as a message, shared by all receivers."""

    topic: str
    payload: bytes
    qos: int
    client_id: str
    """Client id of the publisher; empty if it is not an MQTT client."""
    ends_us: int
    """Time of expiry in microseconds since 1970; 0 if the message never expires."""
    properties: PacketProperties
    is_retained: bool = False
    """Whether the message was published with the retain flag."""
    encoded_packets: dict[tuple[int, int, bool], tuple[bytes, bytes]] = msgspec.field(
        default_factory=dict
    )
    """Encoded packets by version, QoS and retain flag."""

    @property
    def is_plain(self) -> bool:
        """Whether every receiver gets only topic and payload, whenever the message is sent."""
        return self.properties is NO_PROPERTIES and not self.is_retained and not self.ends_us


_NONE: Final = NO_PROPERTIES
_PLAIN: Final = frozenset(
    ("event_id", "published", "data", "properties", "headers", "persistent", "tag", "priority")
)
"""Columns that a message consists of, or that MQTT does not need."""
_PLAIN_OF_FIELDS: Final = _PLAIN | {"sparse", "nulls"}
"""`_PLAIN` for channels whose properties are fields of the payload, where these columns carry no
information."""


def published_parts(
    message: TopicMessage, version: int, qos: int = 0, *, retain: bool = False
) -> tuple[bytes, bytes]:
    """Return the PUBLISH of a message with its own properties, split before and after the packet
    id. It is cached for receivers with the same options. Raises ``ValueError`` if the version
    cannot express it."""
    key = version, qos, retain
    encoded = message.encoded_packets.get(key)
    if encoded is None:
        encoded = publish_parts(message, version, qos, retain=retain)
        if len(encoded[1]) <= _CACHED_BYTES_MAX:
            message.encoded_packets[key] = encoded
    return encoded


class Reading(NamedTuple):
    """Defines how the events of a channel are read as messages."""

    extract: Extractor
    """Returns the topic and the payload of an event. Removes from the dictionary of properties
    those that belong to the topic or the payload; the others remain for user properties."""
    left_out: frozenset[str] | None
    """Names of properties that are not sent if an event has a topic property. None means that no
    property is sent if the event also has a payload."""


def _topic_and_payload(event: Event, properties: dict[str, Any]) -> tuple[str | None, bytes]:
    """Return the topic and the payload of an event, and remove the topic from ``properties``."""
    topic = properties.pop(TOPIC, None)
    return topic if isinstance(topic, str) else None, event.data


ALL_TOPICS: Final = Reading(_topic_and_payload, frozenset())
"""The channel of all topics: the topic is a property, the others are user properties."""


def messages_of(
    batch: pa.RecordBatch, reading: Reading = ALL_TOPICS, counts: MessageCounts | None = None
) -> list[TopicMessage | None]:
    """Return the events of a stored batch as messages; None for an event without a topic. Events or
    parts that cannot be a message are counted and do not affect the other events."""
    messages = _plain_messages(batch, reading)
    if messages is None:
        rows = Rows(batch, in_order=True)
        counted = counts or MessageCounts()
        messages = [_message_at(rows, row, reading, counted) for row in range(batch.num_rows)]
    return messages


def _message_at(
    rows: Rows, row: int, reading: Reading, counts: MessageCounts
) -> TopicMessage | None:
    """Return the event in a row as a message; None if it is not one, or cannot be read."""
    try:
        return message_of(Event.received(rows, row), reading, counts)
    except Exception as error:  # noqa: BLE001  other events of the batch must still be sent
        count_unsent(counts, "", repr(error))
        return None


def messages_in(
    rows: OutgoingBatch, reading: Reading = ALL_TOPICS, counts: MessageCounts | None = None
) -> list[TopicMessage | None]:
    """Return the events of a delivery as messages. If possible they are read from the published
    batch, because computing ids and times would serve no other receiver."""
    if (tail_batch := rows.tail_batch) is not None:
        if reading is ALL_TOPICS and (single := single_event_of(tail_batch)) is not None:
            return [_single_message(single)]
        if (messages := _plain_messages(tail_batch.batch, reading)) is not None:
            return messages
    return messages_of(rows.batch, reading, counts)


def _single_message(event: PlainEvent) -> TopicMessage | None:
    """Return a plain event as a message; None if its topic is not the name of a topic."""
    topic = event.topic
    is_valid = _is_short_name(topic) if len(topic) <= _NAME_CHARACTERS else not name_fault(topic)
    if not is_valid:
        return None
    qos = NO_RESIDUE.qos_for(event.persists)
    return TopicMessage(topic, event.payload, qos, event.client_id, 0, _NONE, is_retained=False)


def _plain_messages(batch: pa.RecordBatch, reading: Reading) -> list[TopicMessage | None] | None:
    """Return the messages of a batch, read column by column. Return None if an event has other
    parts than topic, payload and publisher: its batch is read event by event."""
    count = batch.num_rows
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    plain = _PLAIN_OF_FIELDS if reading.left_out is None else _PLAIN
    if any(name not in plain and column.null_count < count for name, column in columns.items()):
        return None
    topics = _text_columns(columns.get("properties"), (TOPIC,), count, left_out=reading.left_out)
    headers = _text_columns(columns.get("headers"), ("application_id", "mqtt"), count)
    if topics is None or headers is None:
        return None
    residues = [residue_of(header) for header in headers[1]]
    if any(residue.has_content for residue in set(residues)):
        return None
    data, persistent = columns.get("data"), columns.get("persistent")
    payloads = [b""] * count if data is None else data.to_pylist()
    if reading is not ALL_TOPICS and None in topics[0]:
        return None  # the topic of an event may have to be built from its levels
    if reading.left_out is None and not all(payloads):
        return None  # the payload of an event may have to be built from its properties
    persistents = repeat(True, count) if persistent is None else persistent.to_pylist()
    is_valid = _validities(set(topics[0]))
    return [
        TopicMessage(
            topic,
            payload or b"",
            residue.qos_for(persists is not False),
            client or "",
            0,
            _NONE,
            residue.retain,
        )
        if topic is not None and is_valid[topic]
        else None
        for topic, payload, persists, client, residue in zip(
            topics[0], payloads, persistents, headers[0], residues, strict=True
        )
    ]


def _validities(topics: Collection[str | None]) -> dict[str | None, bool]:
    """Return which names are valid topic names. A large set is not cached, because it would evict
    the other names."""
    if len(topics) > _FEW_NAMES or any(len(topic or "") > _NAME_CHARACTERS for topic in topics):
        return {topic: topic is not None and not name_fault(topic) for topic in topics}
    return {topic: topic is not None and _is_short_name(topic) for topic in topics}


@lru_cache(_NAMES_MAX)
def _is_short_name(topic: str) -> bool:
    return not name_fault(topic)


def _text_columns(
    column: pa.Array | None,
    names: Sequence[str],
    count: int,
    left_out: frozenset[str] | None = frozenset(),
) -> list[list[str | None]] | None:
    """Return the values of a struct's text fields; fields in ``left_out`` are ignored. Return None
    if the struct has other fields."""
    texts: dict[str, list[str | None]] = {name: [None] * count for name in names}
    if column is None:
        return list(texts.values())
    if column.null_count:
        return None
    for index, field in enumerate(column.type):
        values = column.field(index)
        if field.name in texts and field.type == pa.string() and not field.metadata:
            texts[field.name] = values.to_pylist()
        elif left_out is not None and field.name not in left_out and values.null_count < count:
            return None
    return list(texts.values())


def message_of(
    event: Event, reading: Reading = ALL_TOPICS, counts: MessageCounts | None = None
) -> TopicMessage | None:
    """Return an event as a message, or None if it has no topic."""
    properties = event.properties
    topic, payload = reading.extract(event, properties)
    if topic is None or name_fault(topic):
        return None
    omit = partial(count_left_out, counts or MessageCounts(), topic)
    headers = event.headers
    ends_us = 0
    if event.ttl and event.published is not None:
        if event.ttl <= EXPIRY_S_MAX * 1_000:
            ends_us = int(event.published.timestamp() * 1_000_000) + event.ttl * 1_000
        else:
            omit("message expiry", f"{event.ttl} ms; at most {EXPIRY_S_MAX} s are possible")
    client_id = headers.get("application_id") or ""
    residue = residue_of(headers.get("mqtt"))
    if residue is NO_RESIDUE and (amqp_header := headers.get("amqp")):
        residue = residue_of_amqp(amqp_header)
    qos = residue.qos_for(event.persistent)
    sent_properties = packet_properties(residue, headers, properties, omit)
    return TopicMessage(topic, payload, qos, client_id, ends_us, sent_properties, residue.retain)
