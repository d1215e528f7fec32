"""Events that MQTT cannot express: their messages come without what cannot be said."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

import penstock
from packages.mqtt.tests.clients import PacketClient, connected, heard
from packages.mqtt.tests.internal_stores import put_whole
from penstock_core.columns.events.event import Event
from penstock_mqtt.expressing import count_left_out
from penstock_mqtt.messages import message_of
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    Will,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_server.runtime.access.open_connections import MessageCounts
from penstock_server.runtime.access.rare_lines import EVERY_S
from penstock_testing.loop import pass_time, simulated

LONG = "x" * 65_536
CENTURIES_MS = 200 * 365 * 86_400_000
"""A TTL of 200 years; a message expiry has at most 136."""
INEXPRESSIBLE: dict[str, dict[str, Any]] = {
    "a null character in a property": {"properties": {"p": "a\0b"}},
    "a null character in a property's name": {"properties": {"p\0": "a"}},
    "a property that is too long": {"properties": {"p": LONG}},
    "a correlation that is too long": {"headers": {"correlation_id": LONG}},
    "a content type with a null character": {"headers": {"mqtt": '{"content_type":"a\\u0000"}'}},
    "a user property with a null character": {"headers": {"mqtt": '{"user":[["a","\\u0000"]]}'}},
    "a header that is nested deep": {"headers": {"mqtt": '{"zz":' + "[" * 60_000}},
    "a header of AMQP that is nested deep": {"headers": {"amqp": '{"zz":' + "[" * 60_000}},
    "a TTL of 200 years": {"ttl": CENTURIES_MS},
    "the largest TTL of a channel": {"ttl": 1 << 50},
}
COUNTED = [name for name in INEXPRESSIBLE if "nested" not in name]


@pytest.fixture
def topic() -> str:
    return f"t/{uuid.uuid4().hex}"


def publish(realm: penstock.Realm, channel: str, topic: str, **parts: Any) -> None:
    properties = {"topic": topic, "kept": "k", **parts.pop("properties", {})}
    with realm.connect() as session:
        session.channels.get(channel).publish(b"odd", properties=properties, **parts)


def counts_of(realm: penstock.Realm) -> MessageCounts:
    running = realm.running
    assert running.connections.mqtt is not None
    return running.connections.mqtt.counts


def receive_and_ack(client: PacketClient, count: int) -> Iterator[Any]:
    """The next messages, each acknowledged to the end."""
    while count:
        packet = client.receive()
        if hasattr(packet, "topic"):
            count -= 1
            answer = PubackPacket if packet.qos == 1 else PubrecPacket
            client.send(answer(packet.packet_id))
            yield packet
        else:  # PUBREL
            client.send(PubcompPacket(packet.packet_id))


@pytest.mark.spec("M3", "M1")
@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_mqtt_cannot_say_is_left_out_and_the_message_comes(
    realm: penstock.Realm, url: str, name: str, topic: str
) -> None:
    counts = counts_of(realm)
    with connected(url) as newer, connected(url, version=MQTT_3) as older:
        newer.subscribe(topic)
        older.subscribe(topic)
        before = counts.left_out
        publish(realm, "mqtt", topic, **INEXPRESSIBLE[name])

        (message,) = receive_and_ack(newer, 1)
        assert (message.payload, message.properties.message_expiry_s) == (b"odd", None)
        assert message.properties.content_type is None
        assert message.properties.correlation_data is None
        assert set(message.properties.user_properties) <= {("kept", "k")}
        assert [message.payload for message in receive_and_ack(older, 1)] == [b"odd"]
        assert (counts.left_out > before) == (name in COUNTED)


@pytest.mark.spec("M3", "M6")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry_s", [0, 3_600])
@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
def test_no_event_takes_the_place_of_others_in_a_window(
    realm: penstock.Realm, url: str, qos: int, expiry_s: int, version: int, topic: str
) -> None:
    connect_fields: dict[str, Any] = {"clean_start": not expiry_s}
    if version == MQTT_5:
        connect_fields["properties"] = PacketProperties(
            session_expiry_s=expiry_s, receive_maximum=2
        )
    with connected(url, topic[2:], version, **connect_fields) as client:
        client.subscribe(topic, qos=qos)
        for parts in list(INEXPRESSIBLE.values()):
            publish(realm, "mqtt", topic, **parts)
        publish(realm, "mqtt", topic, properties={"last": "1"})

        if qos:
            messages = list(receive_and_ack(client, len(INEXPRESSIBLE) + 1))
        else:
            messages = [client.receive() for _ in range(len(INEXPRESSIBLE) + 1)]
        assert {message.payload for message in messages} == {b"odd"}
        if version == MQTT_5:
            assert messages[-1].properties.user_properties == (("kept", "k"), ("last", "1"))


@pytest.mark.spec("M5")
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("expiry_s", [0, 3_600])
def test_retained_messages_come_without_what_mqtt_cannot_say(
    realm: penstock.Realm, url: str, qos: int, expiry_s: int, topic: str
) -> None:
    for number, parts in enumerate(INEXPRESSIBLE.values()):
        properties = {"topic": f"{topic}/{number}", **parts.get("properties", {})}
        put_whole(realm, "mqtt-retained", [Event(b"odd", **{**parts, "properties": properties})])
    limits = PacketProperties(session_expiry_s=expiry_s, receive_maximum=2)
    with connected(url, topic[2:], clean_start=not expiry_s, properties=limits) as client:
        client.subscribe(f"{topic}/#", qos=qos)

        if qos:
            messages = list(receive_and_ack(client, len(INEXPRESSIBLE)))
        else:
            messages = [client.receive() for _ in INEXPRESSIBLE]
        assert {message.topic for message in messages} == {
            f"{topic}/{n}" for n in range(len(messages))
        }


@pytest.mark.spec("M6")
def test_a_message_that_a_lasting_session_cannot_be_sent_is_counted(
    realm: penstock.Realm, url: str, topic: str
) -> None:
    counts = counts_of(realm)
    properties = PacketProperties(
        session_expiry_s=3_600, maximum_packet_bytes=200, receive_maximum=1
    )
    with connected(url, topic[2:], clean_start=False, properties=properties) as client:
        client.subscribe(topic)
        before = counts.unsent
        with realm.connect() as session:
            channel = session.channels.get("mqtt")
            channel.publish(b"x" * 300, properties={"topic": topic})
            channel.publish(b"1", properties={"topic": topic})

        assert [message.payload for message in receive_and_ack(client, 1)] == [b"1"]
        assert counts.unsent == before + 1


def test_each_part_that_is_left_out_is_counted() -> None:
    counts = MessageCounts()
    properties = {"topic": "a", "nul": "\0", "long": [LONG, "b"], "wide": {"w": LONG}, "n": 5}
    event = Event(b"", properties=properties, headers={"reply_to": "a/#"})

    message = message_of(event, counts=counts)

    assert message is not None
    assert message.properties == PacketProperties(user_properties=(("long", "b"), ("n", "5")))
    assert counts.left_out == 4


@simulated
async def test_the_log_has_a_line_a_minute_of_parts_that_are_left_out() -> None:
    counts = MessageCounts()

    with capture_logs() as lines:
        for _ in range(3):
            count_left_out(counts, "a", "property 'nul'", reason="a reason")
        await pass_time(EVERY_S + 1)
        count_left_out(counts, "a", "property 'nul'", reason="a reason")

    assert [(line["event"], line["count"]) for line in lines] == [
        ("mqtt.left_out", 1),
        ("mqtt.left_out", 4),
    ]


def test_a_payload_that_is_encoded_says_so_and_is_no_text() -> None:
    header = '{"body":"text","content_encoding":"gzip"}'
    event = Event(b"", properties={"topic": "a", "p": "1"}, headers={"amqp": header})

    message = message_of(event)

    assert message is not None
    assert message.properties.payload_format is None
    assert message.properties.user_properties == (("p", "1"), ("content-encoding", "gzip"))


@pytest.mark.spec("M2")
@pytest.mark.parametrize("is_will", [False, True])
def test_a_user_property_without_a_name_ends_no_connection(
    url: str, topic: str, is_will: bool
) -> None:
    properties = PacketProperties(user_properties=(("", "1"),))
    will = Will(topic, b"last", properties=properties) if is_will else None
    with connected(url) as watcher:
        watcher.subscribe(topic, qos=0)
        with connected(url, will=will) as client:
            if not is_will:
                client.send(PublishPacket(topic, b"last", properties=properties))
                assert heard(client) == [], "it is still connected"

        message = watcher.receive()
        assert message.payload == b"last"
        assert message.properties.user_properties == (("", "1"),)


@pytest.mark.spec("M2")
def test_a_user_property_without_a_name_is_handed_on(
    realm: penstock.Realm, url: str, topic: str
) -> None:
    pairs = (("", "1"), ("a", "2"), ("", "3"))
    with connected(url) as client:
        client.subscribe(topic)
        answer = client.publish(topic, b"", properties=PacketProperties(user_properties=pairs))

        packets = [answer, client.receive()]
        (message,) = (packet for packet in packets if hasattr(packet, "topic"))
        assert message.properties.user_properties == pairs
    with realm.connect() as session:
        channel = session.channels.get("mqtt")
        (event,) = channel.browse(selector=f"topic = '{topic}'")
        assert event.properties == {"topic": topic, "a": "2"}
