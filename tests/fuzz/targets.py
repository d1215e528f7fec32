"""All readers of bytes of others, with their allowed results: an answer, or a documented error.

A target is a function of bytes that returns if the reader behaves, and raises otherwise: any
exception except those that the reader documents. ``seeds`` are valid inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Final, NamedTuple

import pyarrow as pa

from penstock_core.api.channels import CreateChannel, ListChannels
from penstock_core.api.publishing import PublishEvents
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.check import check_body, check_schema
from penstock_core.columns.events.event import Event
from penstock_core.columns.files.exports import Manifest, manifest_from
from penstock_core.columns.files.segments import SegmentImage, SegmentReader, encode_segment
from penstock_core.columns.protobuf.descriptors import checked_descriptors, descriptors_of
from penstock_core.columns.protobuf.messages import Messages
from penstock_core.columns.schema.ipc import (
    batch_bytes,
    batch_from,
    packed_bytes,
    schema_bytes,
    schema_from,
)
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Span
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    Damaged,
    DamagedExport,
    InvalidArgument,
    InvalidDescriptor,
    InvalidEvent,
    InvalidSelector,
    NewerFormat,
    RemoteProtocolViolation,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.nesting import NESTING_MAX
from penstock_core.vocabulary.ports import VersionedRecord
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader
from penstock_core.wire.native.frames import frame as wire_frame
from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PingreqPacket,
    PubackPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    TopicSubscription,
    UnsubscribePacket,
    Will,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.runtime.store.records import decode_block
from penstock_server.runtime.upkeep.recovery import checked
from penstock_server.settings.loading import load
from penstock_server.storage.embedded.frames import FileHeader, file_header, frame, scan
from penstock_server.storage.embedded.records import decode_record, encode_record
from penstock_spark.pipelines.definition import parse
from penstock_tools.topology import reading as topology
from tests.fuzz import (
    amqp,
    columns_extremes,
    connections,
    extremes,
    http,
    in_columns,
    mqtt,
    mqtt_connections,
    nested,
    stored,
)
from tests.protocols import ORDER, a_chain, shop


class Target(NamedTuple):
    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]


# --- the wire ----------------------------------------------------------------------------

IDENTITY: Final = 4_711
EVENTS: Final = [
    Event(b"abc", tag="t", properties={"a": 1, "b": "text", "c": [1.5, 2.5], "d": {"e": True}}),
    Event(b"", properties={"a": None, "when": None}, headers={"type": "x"}, ttl=5, priority=7),
    Event(b"\xff" * 30, properties={"lines": [{"sku": "nut", "n": 1}, {"sku": "bolt"}]}),
]


@lru_cache
def body() -> pa.RecordBatch:
    return body_of(EVENTS)


def frames(data: bytes) -> None:
    """Bytes of a native connection, from a client."""
    reader = FrameReader(preface=PREFACE, frame_bytes_max=64 << 10)
    with contextlib.suppress(RemoteProtocolViolation):
        reader.receive(data)
        for header, _ in reader.frames():
            wire.decode_from_client(header)


def answers(data: bytes) -> None:
    """Messages of a native connection, from a realm."""
    reader = FrameReader()
    with contextlib.suppress(RemoteProtocolViolation):
        reader.receive(data)
        for header, _ in reader.frames():
            wire.decode_from_server(header)


def mqtt_packets(data: bytes) -> None:
    """MQTT packets in the version that their first byte states; they are read, written and read
    again, with the same result."""
    version = MQTT_3 if data[:1] == b"\x04" else MQTT_5
    reader = PacketReader(64 << 10)
    reader.receive(data[1:])
    with contextlib.suppress(MqttViolation):
        for first, raw in reader.packets():
            packet = packet_of(first, raw, version)
            own_version = getattr(packet, "version", version)
            reread = PacketReader()
            reread.receive(packet_bytes(packet, own_version))
            assert [packet_of(*packet_, own_version) for packet_ in reread.packets()] == [packet]


def _mqtt_packets() -> list[bytes]:
    packets: list[Packet] = [
        ConnectPacket("c", user="u", password=b"p", will=Will("w", b"gone", 1, retain=True)),
        PublishPacket(
            "a/b",
            b"x",
            1,
            packet_id=7,
            properties=PacketProperties(content_type="t", topic_alias=1),
        ),
        SubscribePacket(1, (TopicSubscription("a/+/#", 1, no_local=True, retain_handling=2),)),
        SubackPacket(1, (Reason.GRANTED_QOS_1,)),
        PubackPacket(7, Reason.NOT_AUTHORIZED, PacketProperties(user_properties=(("a", "b"),))),
        UnsubscribePacket(2, ("a/+/#",)),
        DisconnectPacket(Reason.SESSION_TAKEN_OVER),
        PingreqPacket(),
        PublishPacket("a", properties=PacketProperties(user_properties=(("n", "v"),) * 1_001)),
        PubackPacket(7, properties=PacketProperties(user_properties=(("n", "v" * 40_000),) * 2)),
        PublishPacket("a", properties=PacketProperties(message_expiry_s=(1 << 32) - 1)),
    ]
    encoded = [packet_bytes(packet, MQTT_5) for packet in packets]
    plain: list[Packet] = [
        PublishPacket("a/b", b"x", 1, packet_id=7),
        SubscribePacket(1, (TopicSubscription("#"),)),
    ]
    older = [packet_bytes(packet, MQTT_3) for packet in plain]
    return [
        b"\5" + b"".join(encoded),
        *(b"\5" + packet_bytes_ for packet_bytes_ in encoded),
        b"\4" + b"".join(older),
    ]


def _client_messages() -> list[bytes]:
    messages_ = [
        wire.Hello("c", "s"),
        wire.Asked(1, ListChannels()),
        wire.Asked(2, CreateChannel("orders", Definition(keys={"a": 1}, ttl=5))),
        wire.Asked(3, PublishEvents(ChannelId(1), "p", 1, schema=1, sizes=(100,))),
    ]
    frames_ = [b"".join(wire_frame(wire.encode(message))) for message in messages_]
    return [
        PREFACE + b"".join(frames_),
        *(PREFACE + frame_ for frame_ in frames_),
        *nested.native_frames(),
    ]


def _realm_messages() -> list[bytes]:
    messages_ = [
        wire.Welcome("id", "realm", "0", event_bytes_max=1, frame_bytes_max=2),
        wire.Failed(1, "invalid-name", "no"),
        wire.Done(2, {"first_id": 1, "count": 2}),
        wire.Delivery(1, 1, 2, first_id=7, at_us=0, redeliveries=((1, (Span(7, 8),)),)),
    ]
    framed = [b"".join(wire_frame(wire.encode(message))) for message in messages_]
    return [*framed, *nested.native_frames()]


# --- columns -----------------------------------------------------------------------------


def bodies(data: bytes) -> None:
    """A record batch with a valid schema."""
    with contextlib.suppress(InvalidEvent):
        batch = batch_from(data, body().schema)
        check_body(batch)
        batch.to_pylist()  # an accepted batch can be read
        batch_bytes(batch)


def schemas(data: bytes) -> None:
    """A schema, checked by the rules for columns."""
    with contextlib.suppress(InvalidEvent):
        schema = schema_from(data)
        check_schema(schema)  # Arrow crashes when it makes nulls of other types
        try:
            rows = [pa.nulls(1, field.type) for field in schema]
        except (pa.ArrowException, ValueError):  # Arrow itself cannot make one
            return
        check_body(pa.RecordBatch.from_arrays(rows, schema=schema))


def _schemas() -> list[bytes]:
    kinds = [batch.schema for _, batch in columns_extremes.batches()]
    plain = [body().schema, body_of([Event(b"x")]).schema]
    return [schema_bytes(schema) for schema in dict.fromkeys((*plain, *kinds))]


@lru_cache
def _bodies() -> list[bytes]:
    """Batches of the schema, and small ones that are large when decompressed."""
    large = body_of([Event(bytes(columns_extremes.PACKED_BYTES)) for _ in range(3)])
    _, messages = columns_extremes.messages_of(large)
    return [bytes(batch_bytes(body())), bytes(packed_bytes(body())), *messages]


def selectors(data: bytes) -> None:
    """The text of a selector, and its evaluation."""
    with contextlib.suppress(InvalidSelector, UnicodeDecodeError):
        selector = Selector(data.decode())
        assert len(selector.mask(body(), now_us=10)) == len(EVENTS)
        assert Selector(selector.text) == selector, "its text is an equal selector"


SELECTORS: Final = (
    b"a = 1 AND NOT b LIKE 'te_t%' ESCAPE '!' OR c[] > 1.5",
    b"lines[].sku = 'nut' and d.e or lines[0].n between 1 and 2 + 3 * (4 - -5) / 6",
    b"JMSPriority in (1, 2, 3) and tag is not null and JMSType <> 'x' and published > 5",
    b"NOW() - published < 1000 and DISTANCE(52.5, 13.4, K) < 10",
    b"EVENTDATA.LENGTH() > 2 and EVENTDATA.AS_STRING(0, 3) = 'abc' and event_id >= 7",
    b"((((((((a = 1))))))))",
    *nested.selectors(),
)

# --- files -------------------------------------------------------------------------------


def journal(data: bytes) -> None:
    """A file of the journal, and its complete blocks."""
    scanned = scan(data, IDENTITY, 1)
    assert all(block.start <= block.end for block in scanned.pieces)


def _journal() -> list[bytes]:
    chunks = [file_header(FileHeader(IDENTITY, 1, 0))]
    previous = 0
    for seq in range(1, 4):
        written, header = frame(
            [b"payload %d" % seq * 9], IDENTITY, seq=seq, synced=seq - 1, previous=previous
        )
        chunks += map(bytes, written)
        previous = header.checksum
    return [b"".join(chunks), b"".join(chunks) + bytes(500)]


def blocks(data: bytes) -> None:
    """The content of a block after its checksum was verified. A newer version may have written
    unknown parts."""
    with contextlib.suppress(Damaged, NewerFormat):
        _, parts = decode_block(memoryview(data))
        for part in parts:
            bytes(part)


def snapshots(data: bytes) -> None:
    with contextlib.suppress(Damaged, NewerFormat):
        blocks(bytes(checked(memoryview(data), "snapshot")))


def records(data: bytes) -> None:
    with contextlib.suppress(Damaged):
        decode_record(data, "registry/name")


def _records() -> list[bytes]:
    return [encode_record(VersionedRecord(3, b"value")), *nested.msgpack()]


def segments(data: bytes) -> None:
    """A file of sealed events with a valid index."""
    index = _segment().index
    reader = SegmentReader(memoryview(data), index)
    for number, place in enumerate(index.batches):
        with contextlib.suppress(Damaged):
            assert reader.batch(number).num_rows == place.rows


@lru_cache
def _segment() -> SegmentImage:
    rows = {"event_id": range(300), "data": [b"%d" % n for n in range(300)]}
    return encode_segment([pa.record_batch(rows)], rows_per_batch=100)


def manifests(data: bytes) -> None:
    """``manifest.json`` of an export."""
    with contextlib.suppress(DamagedExport):
        manifest_from(data)


def _manifests() -> list[bytes]:
    manifest = Manifest(
        format=1,
        name="orders",
        kind="channel",
        definition=Definition(),
        realm="r",
        exported="2026-01-01T00:00:00Z",
        events=0,
        state=ExportedFile(name="state.msgpack", size=1, checksum="00"),
        files=(),
    )
    return [manifest.encoded(), *nested.documents(), *nested.documents(b"events")]


# --- texts of users ---------------------------------------------------------------------


def settings(data: bytes) -> None:
    """A settings file."""
    with contextlib.suppress(InvalidArgument, UnicodeDecodeError):
        load(data.decode())


SETTINGS: Final = (
    b'name = "x"\n[listen]\nport = 9001\nidle_timeout_s = 4.5\n[log]\nlevel = "debug"\n',
    b"[limits]\nmemory_bytes = 1_000\n[storage]\nsegment_bytes = 5_000\n",
    *nested.toml(),
)


def pipelines(data: bytes) -> None:
    """A pipeline's file, read and checked without Spark."""
    with contextlib.suppress(InvalidArgument, UnicodeDecodeError):
        parse(stored.toml(data))


PIPELINES: Final = (
    b'name = "p"\nurl = "penstock://h:1"\n[[source]]\nname = "s"\nchannel = "orders"\n'
    b'[[step]]\nname = "a"\nsql = "select * from s"\nto = { channel = "sums" }\n',
    b'name = "p"\n[[source]]\nname = "s"\nchannel = "o"\n[[step]]\nname = "b"\n'
    b'kind = "archive"\nsource = "s"\ntable = "t"\n',
    b'name = "p"\n[[step]]\nname = "c"\nkind = "replay"\nspeed = 2\n[spark]\nx = 1\n',
    b'name = "p"\n[[step]]\nname = "c"\nkind = "replay"\nspeed = nan\n',
    *nested.toml(),
)


def topologies(data: bytes) -> None:
    """A topology's file."""
    with contextlib.suppress(InvalidArgument, UnicodeDecodeError):
        topology.parse(data.decode())


TOPOLOGIES: Final = (
    b'[[channel]]\nname = "a"\nttl = "2h"\nkeys = { n = 2 }\n[[channel.durable]]\nname = "d"\n'
    b'type = "serial"\n[[queue]]\nname = "work"\n',
    b'[[join]]\nsource = "a"\ndestination = "b"\nselector = "n = 1"\n',
    *(b'[[channel]]\nname = "a"\n' + document for document in nested.toml()),
    *(
        b'[[channel]]\nname = "a"\nttl = %s\n' % number
        for number in (b"-1", b"9" * 40, b"1e999", b"nan", b'"9999999999999h"')
    ),
)


def descriptors(data: bytes) -> None:
    """A set of descriptors, and the columns of its types."""
    with contextlib.suppress(InvalidDescriptor, InvalidEvent):
        checked_descriptors(data)
        Messages("c", data).seen_in(pa.schema([]))


def _descriptors() -> list[bytes]:
    """Descriptors, including types inside one another, and one that contains itself through many
    others."""
    return [shop(), a_chain(20), a_chain(NESTING_MAX), a_chain(9_000), a_chain(200, closed=True)]


def messages(data: bytes) -> None:
    """A message of a known type."""
    descriptors_ = descriptors_of(shop())
    for kind in ("shop.Order", "shop.Tree"):
        with contextlib.suppress(InvalidEvent):
            descriptors_.decoded(kind, data)
        with contextlib.suppress(InvalidEvent):
            descriptors_.table(kind, pa.array([data], pa.binary()))


def _messages() -> list[bytes]:
    order = descriptors_of(shop()).encoded("shop.Order", ORDER)
    return [order, nested.a_deep_tree(), *nested.protobuf_messages()]


TARGETS: Final[dict[str, Target]] = {
    "amqp": Target(amqp.serve, amqp.conversations),
    "amqp_messages": Target(amqp.messages, lambda: [*amqp.letters(), *nested.amqp_messages()]),
    "amqp_headers": Target(amqp.headers, amqp.header_texts),
    "frames": Target(frames, _client_messages),
    "mqtt_packets": Target(mqtt_packets, _mqtt_packets),
    "mqtt_payloads": Target(mqtt.payloads, mqtt.some_payloads),
    "mqtt_events": Target(mqtt.events, mqtt.some_events),
    "extremes": Target(extremes.serve, extremes.headers),
    "mqtt_connections": Target(mqtt_connections.serve, mqtt_connections.conversations),
    "connections": Target(connections.serve, connections.conversations),
    "http": Target(http.serve, http.conversations),
    "answers": Target(answers, _realm_messages),
    "bodies": Target(bodies, _bodies),
    "schemas": Target(schemas, _schemas),
    "streams": Target(in_columns.streams, in_columns.some_streams),
    "cells": Target(in_columns.cells, in_columns.some_cells),
    "documents": Target(in_columns.documents, in_columns.some_documents),
    "numbers": Target(in_columns.numbers, in_columns.some_numbers),
    "selectors": Target(selectors, lambda: SELECTORS),
    "journal": Target(journal, _journal),
    "blocks": Target(blocks, lambda: [*stored.blocks(), *nested.msgpack()]),
    "snapshots": Target(snapshots, stored.snapshots),
    "records": Target(records, _records),
    "segments": Target(segments, lambda: [_segment().buffer.to_pybytes()]),
    "manifests": Target(manifests, _manifests),
    "tables": Target(stored.read_table, stored.tables),
    "realms": Target(stored.open_directory, stored.directories),
    "settings": Target(settings, lambda: SETTINGS),
    "pipelines": Target(pipelines, lambda: PIPELINES),
    "topologies": Target(topologies, lambda: TOPOLOGIES),
    "descriptors": Target(descriptors, _descriptors),
    "messages": Target(messages, _messages),
}
"""Targets by name. Tests of the HTTP interface also make requests from its OpenAPI document."""

NEEDS: Final = {"amqp": "proton", "amqp_headers": "proton"}
"""Targets that need an optional module."""


def missing(name: str) -> str:
    """Return the reason why a target cannot run here; empty if it can."""
    module = NEEDS.get(name, "")
    if not module or find_spec(module) is not None:
        return ""
    return f"{module} is not installed: `make setup` says why"
