"""Clients that resume their session, and what the realm stores for them."""

from __future__ import annotations

from typing import Any

import penstock
from packages.mqtt.tests.clients import PacketClient
from penstock_mqtt.wire.packets import (
    MQTT_5,
    PubackPacket,
)
from penstock_mqtt.wire.properties import PacketProperties

HOUR = PacketProperties(session_expiry_s=3_600)


def back(
    url: str, client_id: str, version: int = MQTT_5, *, present: bool = True, **fields: Any
) -> PacketClient:
    """Connect a client again; check whether its session is ``present``."""
    if version == MQTT_5:
        fields.setdefault("properties", HOUR)
    client = PacketClient(url, version)
    answer = client.connect(client_id, clean_start=False, **fields)
    assert (answer.reason, answer.session_present) == (0, present)
    return client


def take(client: PacketClient, count: int) -> list[bytes]:
    """Receive messages with QoS 1, and acknowledge them."""
    payloads = []
    for _ in range(count):
        message = client.receive()
        client.send(PubackPacket(message.packet_id))
        payloads.append(message.payload)
    return payloads


def durables(realm: penstock.Realm) -> list[str]:
    with realm.connect() as session:
        return [durable.name for durable in session.channels.get("mqtt").durables.list()]


def stored(realm: penstock.Realm, topic: str) -> list[bytes]:
    with realm.connect() as session:
        channel = session.channels.get("mqtt")
        return [event.data for event in channel.browse(selector=f"topic = '{topic}'")]


def settled(realm: penstock.Realm) -> None:
    """Wait until the realm has done everything that it was asked to do."""

    async def wait() -> None:
        for _ in range(3):  # a message, what follows from it, and what follows from that
            await realm.running.wait_for_earlier()

    realm.loop.call(wait())
