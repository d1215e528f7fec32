"""Messages as events and back: the short way for what is plain gives what the long way gives."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, cast

import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.ipc import batch_bytes
from penstock_core.columns.schema.rows import Rows
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_mqtt import messages
from penstock_mqtt.messages import (
    ALL_TOPICS,
    Reading,
    Received,
    body_of_messages,
    message_of,
    messages_in,
    messages_of,
    published_parts,
)
from penstock_mqtt.topic_channels import TopicChannel
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5, PublishPacket
from penstock_mqtt.wire.properties import NO_PROPERTIES, PacketProperties
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.tail_batch import TailBatch


def received(topic: str, payload: bytes, qos: int = 1, **more: object) -> Received:
    packet = PublishPacket(topic, payload, qos, packet_id=1 if qos else 0, **more)  # type: ignore[arg-type]
    return Received(topic, packet, "sensor")


def one_by_one(batch: pa.RecordBatch, by: Reading = ALL_TOPICS) -> list[object]:
    rows = Rows(batch)
    return [message_of(Event.received(rows, row), by) for row in range(batch.num_rows)]


@pytest.mark.parametrize("qos", [(1, 1, 1), (0, 1, 0), (0,) * 12])
def test_plain_messages_become_the_body_that_any_publisher_would_make(qos: tuple[int, ...]) -> None:
    messages = [received(f"a/{n}", b"x" * n, level) for n, level in enumerate(qos)]

    made = body_of_messages(messages)

    assert made.equals(
        body_of_columns(
            [message.packet.payload for message in messages],
            None,
            [{"topic": message.topic} for message in messages],
            headers=[{"application_id": "sensor"} for _ in messages],
            persistents=[level > 0 for level in qos],
        )
    )


BATCHES = {
    "plain": body_of_messages([received("a", b"1"), received("b", b"", 0), received("c", b"3")]),
    "a part of it": body_of_messages([received(topic, b"1") for topic in "abcd"]).slice(1, 2),
    "properties": body_of_messages(
        [
            received("a", b"1"),
            received("b", b"2", properties=PacketProperties(user_properties=(("x", "y"),))),
            received("c", b"3", properties=PacketProperties(message_expiry_s=3)),
        ]
    ),
    "retained": body_of_messages([received("a", b"1", retain=True), received("a", b"2")]),
    "QoS 2": body_of_messages([received("a", b"1", 2), received("a", b"2")]),
    "native": body_of_columns([b"1", b"2", b"3"], None, [{"topic": "a"}, {"x": 1}, None]),
    "native, no header": body_of_columns([b"1", b"2"], ["t", None], [{"topic": "a"}] * 2),
    "names that are none": body_of_columns(
        [b"1"] * 4, None, [{"topic": topic} for topic in ("a", "a/#", "", "b")]
    ),
    "a topic of two types": body_of_columns([b"1", b"2"], None, [{"topic": "a"}, {"topic": 2}]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_events_read_by_column_are_the_messages_read_one_by_one(name: str) -> None:
    assert messages_of(BATCHES[name]) == one_by_one(BATCHES[name])


LEVELS = {"topic": "p/1", "n": "1"}
OWN_TOPICS = {
    "with topics": body_of_columns([b"1", b"2"], None, [LEVELS, {"topic": "p/2", "n": "2"}]),
    "native": body_of_columns([b"1", b"2"], None, [LEVELS, {"n": "2"}]),
    "fields": body_of_columns([b"1", b"2"], None, [LEVELS, {**LEVELS, "c": 21.5, "u": "x"}]),
    "no payload": body_of_columns([b"1", b""], None, [LEVELS, {**LEVELS, "c": 21.5}]),
    "other types": body_of_columns([b"1", b"2"], None, [LEVELS, {"topic": 3, "n": 2}]),
}


@pytest.mark.spec("M12", "M14")
@pytest.mark.parametrize("payload", ["bytes", "json"])
@pytest.mark.parametrize("name", OWN_TOPICS)
def test_events_of_a_channel_with_topics_are_read_by_column_as_one_by_one(
    name: str, payload: Literal["bytes", "json"], monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = Definition(topics=("p/{n}",), payload=payload)
    reading = TopicChannel(
        cast("RunningRealm", None), ChannelId(1), "own", definition=definition
    ).reading
    wanted = one_by_one(OWN_TOPICS[name], reading)

    assert messages_of(OWN_TOPICS[name], reading) == wanted
    if name == "with topics" or (name == "fields" and payload == "json"):
        monkeypatch.setattr(messages, "message_of", None)  # nothing is read one by one
        assert messages_of(OWN_TOPICS[name], reading) == wanted


@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_in_two_parts_is_the_packet_that_is_written_whole(version: int, qos: int) -> None:
    (message,) = messages_of(body_of_messages([received("a/b", b"payload")]))
    assert message is not None
    packet = PublishPacket("a/b", b"payload", qos, packet_id=7 if qos else 0)

    before, behind = published_parts(message, version, qos)

    assert before + (b"\0\7" if qos else b"") + behind == packet_bytes(packet, version)


def test_a_message_is_written_once_for_all_who_are_sent_the_same() -> None:
    (message,) = messages_of(body_of_messages([received("a", b"payload")]))
    assert message is not None

    parts = [published_parts(message, MQTT_5, 1) for _ in range(100)]

    assert all(part is parts[0] for part in parts)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (MQTT_3, b"\0\1a\0\7payload"),
        (MQTT_5, b"\0\1a\0\7\0payload"),
        (MQTT_5, b"\0\1a\0\7\2\1\1payload"),
    ],
)
def test_a_publish_is_read_with_and_without_properties(version: int, body: bytes) -> None:
    packet = packet_of(0x32, body, version)

    properties = PacketProperties(payload_format=1) if b"\2\1\1" in body else NO_PROPERTIES
    assert packet == PublishPacket("a", b"payload", 1, packet_id=7, properties=properties)


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (5, ["5"]),
        (21.5, ["21.5"]),
        (False, ["false"]),
        (datetime(2026, 5, 4, hour=12, tzinfo=UTC), ["2026-05-04T12:00:00+00:00"]),
        (b"\0\xff", ["00ff"]),
        ({"line": 3}, ['{"line":3}']),
        (["a", 5, None, [1, 2]], ["a", "5", "[1,2]"]),
        (None, []),
        ({"long": "x" * 70_000}, []),
    ],
)
def test_a_native_property_of_any_type_is_a_text_for_mqtt(value: object, texts: list[str]) -> None:
    message = message_of(Event(b"", properties={"topic": "a", "p": value}))

    assert message is not None
    assert message.properties.user_properties == tuple(("p", text) for text in texts)


@pytest.mark.parametrize(
    "data", [b"c-17", "Gr\u00fc\u00dfe".encode(), b"00ff", b"", b"\0\xff", b"a\nb"]
)
def test_correlation_data_is_a_text_for_others_if_it_is_one(data: bytes) -> None:
    sent = received("a", b"", properties=PacketProperties(correlation_data=data))
    batch = body_of_messages([sent])

    (message,) = messages_of(batch)
    headers = Event.received(Rows(batch), 0).headers

    assert message is not None
    assert message.properties.correlation_data == data
    is_text = data.decode(errors="replace").isprintable() and data not in (b"", b"\0\xff")
    assert headers["correlation_id"] == (data.decode() if is_text else data.hex())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('{"body":"text","content_type":"a/b"}', PacketProperties(1, content_type="a/b")),
        ('{"correlation_id":"binary"}', PacketProperties(correlation_data=b"\0\xff")),
        ('{"content_type":3}', PacketProperties()),
        ("no JSON", PacketProperties()),
    ],
)
def test_what_an_amqp_client_has_said_of_a_message_is_told(
    said: str, expected: PacketProperties
) -> None:
    headers = {"amqp": said, "correlation_id": "00ff"}

    message = message_of(Event(b"", properties={"topic": "a"}, headers=headers))

    assert message is not None
    if expected.correlation_data is None:
        expected = replace(expected, correlation_data=b"00ff")
    assert message.properties == expected


def test_names_are_right_or_wrong_however_many_there_are() -> None:
    names = ["a", "a/+", "b" * 300, "#", "c/\u00e4"] * 2
    for topics in (names, [*names, *(f"d/{number}" for number in range(300)), "e/#"]):
        batch = body_of_columns([b"1"] * len(topics), None, [{"topic": topic} for topic in topics])

        assert messages_of(batch) == one_by_one(batch)
    assert messages_of(BATCHES["plain"].slice(0, 0)) == []


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_what_was_published_together_is_read_as_what_is_stored_of_it(
    batch: pa.RecordBatch,
) -> None:
    span, at_us = Span(5, 5 + batch.num_rows), 1_700_000_000_000_000
    body = memoryview(batch_bytes(batch))
    tail = TailBatch(span, at_us, 0, schema=batch.schema, body=body, batch=batch)

    split_messages = messages_in(OutgoingBatch((span,), tail_batch=tail))

    assert split_messages == messages_of(stamp(batch, span, at_us))
