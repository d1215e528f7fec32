"""The MQTT publisher is exactly once itself, so that a message stored twice is the realm's
fault."""

from __future__ import annotations

import socket
from typing import Self

import pytest

from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_3,
    ConnackPacket,
    ConnectPacket,
    Packet,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
)
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.writing import packet_bytes
from tests.faults.mqtt import TOPIC, PersistentClient

pytest.importorskip("paho")


class Server:
    """A server that sends the packets it is told to."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.link = PersistentClient(
            f"127.0.0.1:{self._listener.getsockname()[1]}", "p", is_newest=False
        )
        self._connection: socket.socket
        self._reader = PacketReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self._connection.close()
        self._listener.close()

    def accept(self) -> None:
        self.link.turn()
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(0.01)
        self._reader = PacketReader()

    def receive(self) -> Packet:
        """Return the next packet of the client."""
        while True:
            self.link.turn()
            try:
                self._reader.receive(self._connection.recv(1_000))
            except TimeoutError:
                continue
            (packet,) = self._reader.packets()
            return packet_of(*packet, MQTT_3)

    def send(self, packet: Packet) -> None:
        self._connection.sendall(packet_bytes(packet, MQTT_3))
        self.link.turn()

    def cut(self) -> None:
        self._connection.close()
        self.link.turn()


@pytest.mark.slow
def test_a_received_message_is_not_sent_again_after_any_number_of_connects() -> None:
    with Server() as server:
        server.accept()
        assert isinstance(server.receive(), ConnectPacket)
        server.send(ConnackPacket(0))
        server.link.client.publish(TOPIC, b"once", qos=2)
        assert server.receive() == PublishPacket(TOPIC, b"once", 2, packet_id=1)
        server.send(PubrecPacket(1))
        assert server.receive() == PubrelPacket(1)
        server.cut()
        for _ in range(2):
            server.accept()
            assert isinstance(server.receive(), ConnectPacket)
            server.cut()
        server.accept()
        assert isinstance(server.receive(), ConnectPacket)
        server.send(ConnackPacket(0, session_present=True))

        assert server.receive() == PubrelPacket(1)
