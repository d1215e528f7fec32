"""QoS 2 handshakes, packet by packet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from packages.mqtt.tests.clients import PacketClient
from packages.mqtt.tests.persistent_sessions import settled
from penstock_mqtt.wire.packets import (
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
)


def publish_wholly(client: PacketClient, topic: str, payload: bytes, **fields: Any) -> None:
    client.send(PublishPacket(topic, payload, 2, packet_id=1, **fields))
    assert client.receive() == PubrecPacket(1)
    client.send(PubrelPacket(1))
    assert client.receive() == PubcompPacket(1)


def take(client: PacketClient) -> bytes:
    """Receive a message with QoS 2, with all its packets."""
    message = client.receive()
    assert isinstance(message, PublishPacket)
    assert message.qos == 2
    client.send(PubrecPacket(message.packet_id))
    assert client.receive() == PubrelPacket(message.packet_id)
    client.send(PubcompPacket(message.packet_id))
    return message.payload


class Again:
    def __init__(self, folder: Path, *, restarts: bool) -> None:
        self._folder = folder
        self._restarts = restarts
        self.realm = penstock.Realm(folder)
        self.url = self.realm.listen_mqtt()

    def come_back(self) -> str:
        settled(self.realm)
        if self._restarts:
            self.realm.close()
            self.realm = penstock.Realm(self._folder)
            self.url = self.realm.listen_mqtt()
        return self.url

    def close(self) -> None:
        self.realm.close()
