"""MQTT clients of the nodes of a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from packages.cluster.tests.machines import (
    until,
)
from packages.cluster.tests.serving import HOST
from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_5,
    ConnackPacket,
    ConnectPacket,
    Packet,
    SubscribePacket,
    TopicSubscription,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.writing import packet_bytes
from penstock_testing.loop import pass_time
from penstock_testing.network import MACHINE
from tests.loops import the_loop

CLIENT = "10.0.0.77"


HOUR = PacketProperties(session_expiry_s=3_600)


SECRET = b"s" * 32


class Client(asyncio.Protocol):
    """A client on a simulated machine, with one connection."""

    def __init__(self, version: int = MQTT_5) -> None:
        self.version = version
        self.heard: list[Any] = []
        self.has_ended = False
        self.transport: asyncio.Transport
        self._reader = PacketReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.receive(data)
        self.heard += [packet_of(*packet, self.version) for packet in self._reader.packets()]

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True

    def say(self, *packets: Packet) -> None:
        self.transport.write(b"".join(packet_bytes(packet, self.version) for packet in packets))

    async def hears(self, kind: type[Any]) -> Any:
        """Return the next packet of a kind; skip others before it."""
        await until(
            lambda: (
                any(isinstance(heard_packet, kind) for heard_packet in self.heard) or self.has_ended
            )
        )
        while self.heard:
            if isinstance(packet := self.heard.pop(0), kind):
                return packet
        raise AssertionError(f"the connection has ended without {kind.__name__}")


async def reach(port: int, version: int = MQTT_5) -> Client:
    """Connect from the client's machine; wait until the port is open."""
    network, client = the_loop().network, Client(version)
    network.hosts["the client"] = CLIENT
    token = MACHINE.set("the client")
    try:
        while True:
            try:
                await the_loop().create_connection(lambda: client, HOST, port)
            except ConnectionRefusedError:
                await pass_time(0.05)
            else:
                return client
    finally:
        MACHINE.reset(token)


async def connect(
    port: int, client_id: str = "d", version: int = MQTT_5, **fields: Any
) -> tuple[Client, ConnackPacket]:
    """Send a CONNECT; return the client and the answer."""
    client = await reach(port, version)
    client.say(ConnectPacket(client_id, version, **fields))
    return client, await client.hears(ConnackPacket)


async def welcome(port: int, client_id: str = "d", **fields: Any) -> tuple[Client, bool]:
    """Try until the client is accepted; return it, and whether its session was present."""
    while True:
        client = await reach(port, fields.get("version", MQTT_5))
        client.say(ConnectPacket(client_id, **fields))
        await until(lambda: bool(client.heard) or client.has_ended)  # noqa: B023  waited for at once
        if client.heard and client.heard[0].reason == 0:
            return client, client.heard.pop(0).session_present
        await pass_time(0.1)


async def subscribe(client: Client, *filters: str, qos: int = 1) -> None:
    wanted = tuple(TopicSubscription(text, qos) for text in filters)
    client.say(SubscribePacket(1, wanted))
    await until(lambda: bool(client.heard))
    client.heard.pop(0)
