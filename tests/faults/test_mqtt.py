"""A publisher of MQTT is exactly once itself, so that what is stored twice is the realm's doing."""

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
from tests.faults.mqtt import TOPIC, LastingClient

pytest.importorskip("paho")


class Server:
    """One that says what it is told to."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self.link = LastingClient(f"127.0.0.1:{self._door.getsockname()[1]}", "p", is_newest=False)
        self._line: socket.socket
        self._reader = PacketReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self._line.close()
        self._door.close()

    def accept(self) -> None:
        self.link.turn()
        self._line, _ = self._door.accept()
        self._line.settimeout(0.01)
        self._reader = PacketReader()

    def hears(self) -> Packet:
        """The next packet of the client."""
        while True:
            self.link.turn()
            try:
                self._reader.receive(self._line.recv(1_000))
            except TimeoutError:
                continue
            (packet,) = self._reader.packets()
            return packet_of(*packet, MQTT_3)

    def says(self, packet: Packet) -> None:
        self._line.sendall(packet_bytes(packet, MQTT_3))
        self.link.turn()

    def cut(self) -> None:
        self._line.close()
        self.link.turn()


@pytest.mark.slow
def test_a_message_that_was_received_is_not_sent_again_however_often_it_has_to_connect() -> None:
    with Server() as server:
        server.accept()
        assert isinstance(server.hears(), ConnectPacket)
        server.says(ConnackPacket(0))
        server.link.client.publish(TOPIC, b"once", qos=2)
        assert server.hears() == PublishPacket(TOPIC, b"once", 2, packet_id=1)
        server.says(PubrecPacket(1))
        assert server.hears() == PubrelPacket(1)
        server.cut()
        for _ in range(2):
            server.accept()
            assert isinstance(server.hears(), ConnectPacket)
            server.cut()
        server.accept()
        assert isinstance(server.hears(), ConnectPacket)
        server.says(ConnackPacket(0, session_present=True))

        assert server.hears() == PubrelPacket(1)
