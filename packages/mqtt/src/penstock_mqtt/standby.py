"""MQTT at a standby node: a client that cannot be relayed gets a refusal that names the node that
serves the realm, or reports that the realm is unavailable (SEM M13).

The client is not authenticated, since a standby node has no users and the answer is not secret.
Packets are checked as at every node, so that errors look the same everywhere.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.reasons import (
    connack_reason,
    explanation,
    return_code,
    version_refusal,
)
from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    ConnackPacket,
    ConnectPacket,
)
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.reasons import Reason, UnknownVersion, protocol_error
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.frontends.shared.arrivals import Arrivals, StandbyProtocol
from penstock_server.frontends.shared.serving_node import part

CONNECT_BYTES_MAX: Final = 1 << 18
"""Largest CONNECT packet in bytes."""
_CONNECT: Final = 0x10


class StandbyMqttConnection(StandbyProtocol, asyncio.Protocol):
    """Answers a CONNECT with the reason why this node refuses it, and closes."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__(arrivals)
        self._reader = PacketReader(CONNECT_BYTES_MAX)
        self._held = arrivals.buffers.open(Principal(ANONYMOUS, ""))

    def data_received(self, data: bytes) -> None:
        if self._has_answered or self._transport is None:
            return
        self._reader.receive(data)
        try:
            self._held.grow(self._reader.held_bytes)
            for first, body in self._reader.packets():
                # The version passed here does not matter: a CONNECT names its own.
                packet = packet_of(first, body, MQTT_5)
                if not isinstance(packet, ConnectPacket):
                    raise protocol_error("the first packet must be a CONNECT")
                self._answer(self._transport, self._refusal(packet.version), packet.version)
                return
        except UnknownVersion as error:
            self._has_answered = True
            part(self._transport, version_refusal(error))
        except PenstockError:
            self._has_answered = True
            self._transport.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.close()
        super().connection_lost(exc)

    def _answer(self, transport: asyncio.Transport, refusal: ConnackPacket, version: int) -> None:
        self._has_answered = True
        part(transport, packet_bytes(refusal, version))

    def _refusal(self, version: int) -> ConnackPacket:
        """Return the refusal: MQTT is served at another node (0x9C), or is unavailable (0x88)."""
        owner, error = self._arrivals.owner(), self._arrivals.refusal("mqtt")
        is_served = owner is not None and owner.place("mqtt") is not None
        reason = connack_reason(error) if is_served else Reason.SERVER_UNAVAILABLE
        if version == MQTT_3:
            return ConnackPacket(return_code(reason))
        place = owner.url("mqtt").partition("://")[2] if owner is not None else ""
        properties = replace(explanation(str(error)), server_reference=place or None)
        return ConnackPacket(reason, properties=properties)


def wants_relay(data: bytes) -> bool | None:
    """Return whether a connection with these first bytes is relayed to the owner."""
    return data[0] == _CONNECT if data else None
