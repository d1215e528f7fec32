"""A blocking MQTT client that sends and receives any packets, valid or not."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from types import TracebackType
from typing import Any, Self

from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_5,
    ConnackPacket,
    ConnectPacket,
    Packet,
    PingreqPacket,
    PingrespPacket,
    PublishPacket,
    SubscribePacket,
    TopicSubscription,
)
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.writing import packet_bytes

WAIT_S = 20.0


class Hung(Exception):
    """The server has closed the connection."""


class PacketClient:
    """One connection to a realm."""

    def __init__(
        self, url: str, version: int = MQTT_5, *, tls: ssl.SSLContext | None = None
    ) -> None:
        host, _, port = url.rpartition("//")[2].rpartition(":")
        self._version = version
        self._line = socket.create_connection((host, int(port)), WAIT_S)
        if tls is not None:
            self._line = tls.wrap_socket(self._line, server_hostname=host)
        self._reader = PacketReader()
        self._heard: deque[tuple[int, bytes]] = deque()
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._line.close()

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(packet_bytes(packet, self._version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self._line.sendall(data)

    def receive(self) -> Any:
        """Return the next packet. Raises :class:`Hung`."""
        while not self._heard:
            try:
                data = self._line.recv(65_536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Hung
            self._reader.receive(data)
            self._heard.extend(self._reader.packets())
        return packet_of(*self._heard.popleft(), self._version)

    def receive_bytes(self) -> bytes:
        """Return all bytes until the server closes the connection."""
        data_read = b""
        while data := self._line.recv(65_536):
            data_read += data
        return data_read

    def connect(self, client_id: str = "", **fields: Any) -> ConnackPacket:
        self.send(ConnectPacket(client_id, self._version, **fields))
        connack = self.receive()
        assert isinstance(connack, ConnackPacket)
        return connack

    def subscribe(self, *filters: str, qos: int = 1, **fields: Any) -> Any:
        wanted = tuple(TopicSubscription(text, qos, **fields) for text in filters)
        self._last_id += 1
        self.send(SubscribePacket(self._last_id, wanted))
        return self.receive()

    def publish(self, topic: str, payload: bytes = b"", **fields: Any) -> Any:
        """Publish with QoS 1, and return the answer."""
        self._last_id += 1
        self.send(PublishPacket(topic, payload, 1, packet_id=self._last_id, **fields))
        return self.receive()


def connected(url: str, client_id: str = "", version: int = MQTT_5, **fields: Any) -> PacketClient:
    """Return a client that the realm has accepted."""
    client = PacketClient(url, version)
    assert client.connect(client_id, **fields).reason == 0
    return client


def heard(client: PacketClient) -> list[Any]:
    """Return the packets that arrive before the answer to a ping: all that were under way."""
    client.send(PingreqPacket())
    packets = []
    while not isinstance(packet := client.receive(), PingrespPacket):
        packets.append(packet)
    return packets
