"""Limits of the packets of a client, and of the memory for clients that are not signed in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import PacketClient, connected
from packages.mqtt.tests.hubs import hub
from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_mqtt.connection import CONNECT_BYTES_MAX, HELD_BYTES_MAX, MqttConnection
from penstock_mqtt.mqtt_realm import (
    UNKNOWN_BYTES_MAX,
    UNKNOWN_SMALL_BYTES,
)
from penstock_mqtt.wire.framing import CONTROL_BYTES_MAX, FILTERS_BYTES_MAX
from penstock_mqtt.wire.packets import (
    MQTT_5,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    SubscribePacket,
    TopicSubscription,
    UnsubscribePacket,
    Will,
)
from penstock_mqtt.wire.primitives import variable_bytes
from penstock_mqtt.wire.properties import (
    USER_PROPERTIES_MAX,
    PacketProperties,
)
from penstock_mqtt.wire.reasons import Reason
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.frontends.native.listener import INCOMPLETE_SMALL_BYTES
from penstock_server.frontends.shared.buffers import Buffers
from penstock_testing.loop import pass_time, simulated

CONTROLS = {0x40: "PUBACK", 0x50: "PUBREC", 0x62: "PUBREL", 0x70: "PUBCOMP", 0xE0: "DISCONNECT"}
FILTERS = {0x82: "SUBSCRIBE", 0xA2: "UNSUBSCRIBE"}
SIZES = [(first, CONTROL_BYTES_MAX) for first in CONTROLS]
SIZES += [(first, FILTERS_BYTES_MAX) for first in FILTERS]
MANY = PacketProperties(user_properties=(("n", "v"),) * (USER_PROPERTIES_MAX + 1))
LARGE = PacketProperties(user_properties=(("n", "v" * 60_000),) * 2)
WITH_PROPERTIES: tuple[Packet, ...] = (
    PublishPacket("a", properties=MANY),
    PublishPacket("a", properties=LARGE),
    PubackPacket(1, properties=MANY),
    PubrecPacket(1, properties=MANY),
    PubrelPacket(1, properties=MANY),
    PubcompPacket(1, properties=MANY),
    SubscribePacket(1, (TopicSubscription("a"),), MANY),
    SubscribePacket(1, (TopicSubscription("a"),), LARGE),
    UnsubscribePacket(1, ("a",), MANY),
    DisconnectPacket(properties=MANY),
    DisconnectPacket(properties=LARGE),
)


@pytest.mark.spec("M1")
@pytest.mark.parametrize(("first", "most"), SIZES, ids=[*CONTROLS.values(), *FILTERS.values()])
def test_only_a_publish_may_be_large(url: str, first: int, most: int) -> None:
    with connected(url) as client:
        client.send_bytes(bytes((first,)) + variable_bytes(most))

        assert client.receive().reason == Reason.PACKET_TOO_LARGE


@pytest.mark.spec("M1")
@pytest.mark.parametrize("packet", WITH_PROPERTIES, ids=lambda packet: type(packet).__name__)
def test_properties_of_every_packet_are_bounded(url: str, packet: Packet) -> None:
    with connected(url) as client:
        client.send(packet)

        expected = (Reason.PACKET_TOO_LARGE, Reason.QUOTA_EXCEEDED)
        assert client.receive().reason in expected


@pytest.mark.parametrize("own", [MANY, LARGE])
def test_properties_of_a_will_are_bounded(url: str, own: PacketProperties) -> None:
    with PacketClient(url) as client:
        client.send(ConnectPacket("a", will=Will("a", properties=own)))

        assert client.receive_bytes() == b""


@pytest.mark.spec("M2")
def test_as_many_properties_as_may_be_are_taken(realm: penstock.Realm, url: str) -> None:
    many = PacketProperties(user_properties=(("n", "v"),) * USER_PROPERTIES_MAX)
    largest = PacketProperties(correlation_data=b"c" * 65_535, content_type="t")
    with connected(url) as client:
        client.subscribe("most/#")
        packets: list[Any] = []
        for properties in (many, largest):
            packets += [client.publish("most/a", b"", properties=properties), client.receive()]

    assert [packet.properties for packet in packets if isinstance(packet, PublishPacket)] == [
        many,
        largest,
    ]
    with realm.connect() as session:
        events = list(session.channels.get("mqtt").browse(selector="topic = 'most/a'"))
    assert events[0].properties["n"] == ["v"] * USER_PROPERTIES_MAX


@pytest.mark.spec("M1")
@pytest.mark.parametrize("most", [5, 30, 100])
def test_a_refusal_is_no_larger_than_its_client_takes(url: str, most: int) -> None:
    properties = PacketProperties(maximum_packet_bytes=most, authentication_method="UNKNOWN-METHOD")
    with PacketClient(url) as client:
        client.send(ConnectPacket("a", properties=properties))

        first_bytes = client.receive_bytes()
        assert first_bytes[:2] == bytes((0x20, len(first_bytes) - 2))
        assert first_bytes[3] == Reason.BAD_AUTHENTICATION_METHOD
        assert len(first_bytes) <= most


def test_a_client_that_takes_no_connack_is_closed(url: str) -> None:
    with PacketClient(url) as client:
        client.send(ConnectPacket("a", properties=PacketProperties(maximum_packet_bytes=4)))

        assert client.receive_bytes() == b""


class Line(asyncio.Transport):
    """A connection as its protocol sees it."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 1)})
        self.is_read = True
        self.written = b""
        self._is_closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is kept."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self._is_closing = True

    abort = close


def come(made: Any, host: str) -> tuple[MqttConnection, Line]:
    connection, line = made.connection(), Line(host)
    connection.connection_made(line)
    return connection, line


BEGINNING = b"\x10" + variable_bytes(CONNECT_BYTES_MAX - 10)


@pytest.mark.spec("M1")
@simulated
async def test_clients_that_are_not_signed_in_share_a_bounded_memory() -> None:
    async with hub() as made:
        size = 200_000
        count = UNKNOWN_BYTES_MAX // size + 10
        lines = [come(made, f"10.0.0.{number}") for number in range(count)]
        for connection, _ in lines:
            connection.data_received(BEGINNING + bytes(size))
        held = size - UNKNOWN_SMALL_BYTES
        served = sum(not line.is_closing() for _, line in lines)
        small, small_line = come(made, "10.0.0.1")
        small.data_received(BEGINNING + bytes(UNKNOWN_SMALL_BYTES - len(BEGINNING)))

        assert UNKNOWN_BYTES_MAX // 2 < served * held <= UNKNOWN_BYTES_MAX
        assert not small_line.is_closing()
        for connection, _ in lines:
            connection.connection_lost(None)
        made.mqtt.unknown.open(Principal(ANONYMOUS, "10.0.0.1")).grow(UNKNOWN_BYTES_MAX // 2)


def signed_in(made: Any, client_id: str, user: str) -> tuple[MqttConnection, Line]:
    """A client that is connected, and has sent nothing more."""
    connection, line = come(made, "10.0.0.1")
    connection.data_received(packet_bytes(ConnectPacket(client_id), MQTT_5))
    connection.principal = Principal(user, "10.0.0.1")
    return connection, line


@pytest.mark.spec("M1")
@simulated
async def test_packets_of_one_user_that_do_not_end_leave_room_for_those_of_others() -> None:
    async with hub() as made:
        made.mqtt.listener.incomplete = Buffers(8 << 20, INCOMPLETE_SMALL_BYTES)
        size = 1 << 20
        beginning = b"\x30" + variable_bytes(2 * size) + bytes(size + INCOMPLETE_SMALL_BYTES)
        lines = [signed_in(made, f"c{number}", "low") for number in range(10)]
        await pass_time(1)
        for connection, _ in lines:
            connection.data_received(beginning)
        held = sum(not line.is_closing() for _, line in lines)
        assert held == 3, "half of what is left"
        assert all((b"\x97" in line.written) == line.is_closing() for _, line in lines)
        others, line = signed_in(made, "other", "high")
        await pass_time(1)
        message = packet_bytes(PublishPacket("a", bytes(size), 1, packet_id=1), MQTT_5)
        for offset in range(0, len(message), 100_000):
            others.data_received(message[offset : offset + 100_000])
        await pass_time(1)
        assert line.written.endswith(b"\x40\x02\x00\x01")

        lines[0][0].data_received(bytes(size))
        for connection, _ in lines[1:]:
            connection.connection_lost(None)

        assert made.mqtt.listener.incomplete.held == {}


@pytest.mark.spec("M1")
@simulated
async def test_a_client_is_not_read_while_what_it_has_sent_has_to_wait() -> None:
    async with hub() as made:
        connection, line = come(made, "10.0.0.1")
        publish = packet_bytes(PublishPacket("a", bytes(HELD_BYTES_MAX), 1, packet_id=1), MQTT_5)
        connection.data_received(packet_bytes(ConnectPacket("a"), MQTT_5))
        connection.data_received(publish)

        assert not line.is_read
        await pass_time(1)
        assert line.is_read
        assert line.written.endswith(b"\x40\x02\x00\x01")
