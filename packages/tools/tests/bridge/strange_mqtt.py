"""A broker with MQTT that keeps one session, and can fail at any packet."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Any, Self

from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_5,
    ConnackPacket,
    ConnectPacket,
    Packet,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    SubackPacket,
    SubscribePacket,
)
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.reasons import Reason
from penstock_mqtt.wire.writing import packet_bytes


class StrangeMqtt:
    """Sends messages to a client, as the standard requires, also again on a new connection."""

    def __init__(
        self, messages: Sequence[PublishPacket] = (), *, granted: int = 2, version: int = MQTT_5
    ) -> None:
        self.messages = {message.packet_id or -at: message for at, message in enumerate(messages)}
        """Messages that are not acknowledged, by packet id."""
        self.released: set[int] = set()
        """Packet ids of PUBRELs that are not answered."""
        self.received: list[Any] = []
        """Packets of all connections."""
        self.has_session = False
        self._is_subscribed = False
        self.hangs_up_before: Callable[[Packet], bool] = lambda packet: False
        """Whether the connection ends, once, instead of handling this packet."""
        self._reasons = (Reason(granted),)
        self._version = version
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}/%23"
        self._thread = Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._listener.close()

    def packets(self, kind: type[Packet]) -> list[Any]:
        """Return the received packets of a type."""
        return [packet for packet in self.received if isinstance(packet, kind)]

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):  # the client may have closed it
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        reader = PacketReader()
        while data := connection.recv(65_536):
            reader.receive(data)
            for first, body in reader.packets():
                packet = packet_of(first, body, self._version)
                self.received.append(packet)
                if self.hangs_up_before(packet):
                    self.hangs_up_before = lambda packet: False
                    return
                answers = self._answers(packet)
                connection.sendall(
                    b"".join(packet_bytes(answer, self._version) for answer in answers)
                )

    def _answers(self, packet: Packet) -> list[Packet]:
        if isinstance(packet, ConnectPacket):
            is_known, self.has_session = self.has_session, True
            again = [PubrelPacket(packet_id) for packet_id in sorted(self.released)]
            sends = self._sends(is_duplicate=True) if is_known and self._is_subscribed else []
            return [ConnackPacket(0, is_known), *again, *sends]
        if isinstance(packet, SubscribePacket):
            self._is_subscribed = True
            return [SubackPacket(packet.packet_id, self._reasons), *self._sends()]
        if isinstance(packet, PubackPacket):
            del self.messages[packet.packet_id]
        elif isinstance(packet, PubrecPacket):
            del self.messages[packet.packet_id]
            if not packet.reason.is_failure:
                self.released.add(packet.packet_id)
                return [PubrelPacket(packet.packet_id)]
        elif isinstance(packet, PubcompPacket):
            self.released.discard(packet.packet_id)
        return []

    def _sends(self, *, is_duplicate: bool = False) -> list[Packet]:
        sends: list[Packet] = []
        for packet_id, message in list(self.messages.items()):
            if message.qos:
                sends.append(
                    PublishPacket(
                        message.topic,
                        message.payload,
                        message.qos,
                        packet_id,
                        is_duplicate=is_duplicate,
                        properties=message.properties,
                    )
                )
            else:
                sends.append(self.messages.pop(packet_id))
        return sends
