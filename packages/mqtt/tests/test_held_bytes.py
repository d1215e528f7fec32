"""Bytes kept for clients that do not acknowledge are limited."""

from __future__ import annotations

import random
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import connected, heard
from packages.mqtt.tests.limited import limited
from packages.mqtt.tests.lines import KIB, VERSIONS, LastingLine, Line
from penstock_mqtt.held_bytes import (
    STEP_BYTES,
    ClientBytes,
    HeldMessages,
    UserBytes,
    size_of,
)
from penstock_mqtt.in_flight import MessageSource
from penstock_mqtt.messages import TopicMessage
from penstock_mqtt.mqtt_realm import MqttLimits
from penstock_mqtt.wire.packets import PubackPacket, PublishPacket
from penstock_mqtt.wire.properties import NO_PROPERTIES, PacketProperties
from penstock_mqtt.wire.reasons import Reason


@VERSIONS
def test_a_client_that_acknowledges_nothing_loses_its_connection_by_bytes(
    version: int,
) -> None:
    line = Line(version, MqttLimits(client_bytes_max=100 * 1_024))
    while not line.ended:
        line.give(KIB)
        assert len(line.outbox.in_flight) < 101

    assert line.ended == [Reason.QUOTA_EXCEEDED]


@VERSIONS
def test_a_single_message_is_sent_however_large_it_is(
    version: int,
) -> None:
    line = Line(version, MqttLimits(client_bytes_max=100))
    for _ in range(3):
        line.give(KIB)
        (message,) = line.got()
        line.outbox.acknowledged([message.packet_id])

    assert line.ended == []
    assert line.outbox.bytes.held == 0


@pytest.mark.parametrize("seed", range(10))
def test_bytes_are_counted_as_long_as_messages_are_kept(seed: int) -> None:
    """Whatever happens to messages, what is counted is what waits and what is in flight."""
    chance, line, published = random.Random(seed), LastingLine(), 0
    outbox = line.outbox
    for _ in range(400):
        step = chance.randrange(10)
        if step < 4:
            published += 1
            line.qos(chance.choice((1, 2)))
            outbox.in_flight_max = chance.choice((1, 3, 50))
            message = TopicMessage(
                "a",
                KIB * chance.randrange(30),
                2,
                client_id="",
                ends_us=0,
                properties=NO_PROPERTIES,
            )
            source = MessageSource("a", published) if chance.random() < 0.7 else None
            outbox.send_messages([message], line.filters, sources=[source])
        elif step == 4 and outbox.in_flight:
            packet_id = chance.choice(list(outbox.in_flight))
            outbox.acknowledged([packet_id])
            outbox.received(packet_id, chance.choice((Reason.SUCCESS, Reason.UNSPECIFIED)))
        elif step == 5 and outbox.in_flight:
            outbox.completed(chance.choice(list(outbox.in_flight)))
        elif step == 6:
            line.stored()
        elif step == 7:
            outbox.recall("a", frozenset(range(published - 3, published + 1)))
        elif step == 8 and chance.random() < 0.3:
            outbox.connection_lost()
            outbox.resume()
        elif step == 9 and chance.random() < 0.2:
            chance.choice((outbox.end_subscription, outbox.end_retained))("a")
        kept = [*outbox._waiting, *(flight.waiting for flight in outbox.in_flight.values())]

        assert outbox.bytes.held == sum(message.size for message in kept if message is not None)
        assert outbox.bytes.counted == line.counted_bytes
        assert abs(outbox.bytes.held - line.counted_bytes) < STEP_BYTES


class Client:
    """A client with a connection that may be ended."""

    def __init__(self, users: UserBytes, user: str) -> None:
        self.user = user
        self.bytes = ClientBytes(lambda change: users.add(user, change), 1 << 30)
        self.is_ended = False

    def end(self, reason: object) -> None:
        self.is_ended = True
        self.bytes.close()


def test_of_a_users_clients_the_one_with_most_is_disconnected() -> None:
    clients: list[Client] = []
    users = UserBytes(
        lambda user: [
            HeldMessages(client.bytes, client.end) for client in clients if client.user == user
        ],
        bytes_max=10 * STEP_BYTES,
    )
    clients += [Client(users, user) for user in ("ann", "ann", "ann", "bob")]
    small, large, late, small_again = clients
    small.bytes.add(2 * STEP_BYTES)
    small_again.bytes.add(9 * STEP_BYTES)
    large.bytes.add(6 * STEP_BYTES)
    late.bytes.add(2 * STEP_BYTES)
    assert not any(client.is_ended for client in clients)
    late.bytes.add(STEP_BYTES)

    assert [client.is_ended for client in clients] == [False, True, False, False]
    late.bytes.add(4 * STEP_BYTES)
    assert not late.is_ended, "what the other held is given back"


def test_the_size_of_a_message_includes_its_properties() -> None:
    properties = PacketProperties(user_properties=(("n", "v" * 100),), correlation_data=b"c" * 50)
    message = TopicMessage("a", b"x" * 10, 1, client_id="", ends_us=0, properties=NO_PROPERTIES)
    larger = TopicMessage("a", b"x" * 10, 1, client_id="", ends_us=0, properties=properties)

    assert size_of(larger) - size_of(message) == 151


@pytest.mark.spec("M6")
@pytest.mark.parametrize("filters", [["b/#"], ["b/#", "b/+", "+/c"]])
def test_a_lasting_session_is_given_events_by_their_bytes(
    realm: penstock.Realm, url: str, filters: list[str]
) -> None:
    """All of its subscriptions share the room, and what is acknowledged makes room for the rest."""
    properties = PacketProperties(session_expiry_s=3_600)
    name = f"bytes-{len(filters)}"
    with connected(url, name, clean_start=False, properties=properties) as client:
        client.subscribe(*filters)
    with realm.connect() as publishing:
        channel = publishing.channels.get("mqtt")
        for number in range(60):
            channel.publish(b"%02d" % number + KIB * 4, properties={"topic": "b/c"})
    with (
        limited(realm, seat_bytes_max=40 * 1_024),
        connected(url, name, clean_start=False, properties=properties) as client,
    ):
        first = client.receive()
        held = [first, *heard(client)]
        assert len(held) < 60
        messages: list[Any] = []
        while len(messages) + len(held) < 60 * len(filters):
            messages += held
            client.send(*[PubackPacket(message.packet_id) for message in held])
            held = [client.receive()]
        messages += held

    assert all(
        isinstance(message, PublishPacket) and not message.is_duplicate for message in messages
    )
    payloads = sorted(message.payload[:2] for message in messages)
    assert payloads == sorted([b"%02d" % index for index in range(60)] * len(filters))
