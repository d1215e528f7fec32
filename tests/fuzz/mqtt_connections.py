"""The real MQTT connection object of a real realm, fed with almost valid packets.

As with the other protocols, no socket is involved. A connection logs unforeseen errors, so the log
is checked; afterwards no client may count as connected.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from structlog.testing import capture_logs

from penstock_mqtt.hub import MqttHub
from penstock_mqtt.wire.framing import FILTERS_BYTES_MAX
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PingreqPacket,
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
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason
from penstock_mqtt.wire.writing import packet_bytes
from tests.fuzz.connections import SETTINGS, TURNS_MAX, Served, Wire

PIECE_BYTES: Final = 65_536
TURNS_A_PACKET: Final = 10
"""Turns of the event loop until the realm has answered a CONNECT or a SUBSCRIBE."""
_LENGTH_BYTES_MAX: Final = 4


class MqttServed(Served):
    """The realm with MQTT connections."""

    answer = b""
    """The last answer of the realm."""
    has_closed = False
    """Whether the realm closed the last connection."""

    async def restart(self) -> None:
        await super().restart()
        self.hub = MqttHub(self.listener, SETTINGS.listen.mqtt_channel)
        await self.hub.mqtt.open_channel()
        await self.hub.sessions.load()

    async def converse(self, data: bytes) -> None:
        connection, out = self.hub.connection(), Wire()
        with capture_logs() as logged:
            connection.connection_made(out)
            for packet in pieces(data):
                for start in range(0, len(packet), PIECE_BYTES):
                    if not out.is_closing():
                        connection.data_received(packet[start : start + PIECE_BYTES])
                for _ in range(TURNS_A_PACKET):
                    await asyncio.sleep(0)
            for _ in range(TURNS_MAX):
                await asyncio.sleep(0)
            self.answer, self.has_closed = bytes(out.written), out.is_closing()
            connection.connection_lost(None)
            for _ in range(TURNS_MAX):
                await asyncio.sleep(0)
        unforeseen = [line for line in logged if line["log_level"] in ("error", "critical")]
        assert not unforeseen, f"an unforeseen error of the connection: {unforeseen}"


@lru_cache
def _served() -> MqttServed:
    served = MqttServed()
    atexit.register(served.close)
    return served


def serve(data: bytes) -> None:
    """Converse with the bytes as they are, and with lengths that fit their packets."""
    _served().handle(data)
    _served().handle(reframed(data))


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield the packets of a conversation; the last may be incomplete."""
    start = 0
    while start < len(data):
        begin = start + 1
        length = shift = 0
        while begin < len(data) and begin - start <= _LENGTH_BYTES_MAX:
            byte = data[begin]
            length |= (byte & 0x7F) << shift
            begin, shift = begin + 1, shift + 7
            if byte < 0x80:
                break
        yield data[start : begin + length]
        start = begin + length


def reframed(data: bytes) -> bytes:
    """Return the bytes with a last packet of the stated length, so that a change inside of a packet
    gets past the reader of packets."""
    packets = list(pieces(data))
    if not packets:
        return data
    last = packets[-1]
    return b"".join(packets[:-1]) + last[:1] + variable_bytes(len(last[2:])) + last[2:]


def conversation(*packets: Packet, version: int = MQTT_5) -> bytes:
    """Return a conversation of a client ``fuzz``."""
    connect = ConnectPacket("fuzz", version)
    return b"".join(packet_bytes(packet, version) for packet in (connect, *packets))


@lru_cache
def conversations() -> Sequence[bytes]:
    """Valid conversations in both versions, including large and too large ones."""
    will = Will("gone", b"x", 1, retain=True)
    message = PublishPacket("a/b", b'{"n": 1}', 1, packet_id=1)
    subscribe = SubscribePacket(2, (TopicSubscription("a/#", 2),))
    user = PacketProperties(user_properties=(("name", "value"),) * 1_000)
    filters = tuple(TopicSubscription(f"a/{number}/+") for number in range(3_000))
    common: list[list[Packet]] = [
        [subscribe, message, PubackPacket(1), PubrecPacket(1), PubcompPacket(1)],
        [PublishPacket("a/b", b"x", 2, packet_id=5, retain=True), PubrelPacket(5), PingreqPacket()],
        [UnsubscribePacket(3, ("a/#", "b")), DisconnectPacket()],
        [SubscribePacket(4, (TopicSubscription("$share/g/a/#", 1),)), message],
        [SubscribePacket(5, filters), UnsubscribePacket(6, ("x" * 60_000,) * 4)],
        [PublishPacket("a", b'{"a":' + b"[" * 101), PublishPacket("a", b'{"a":' * 50_000)],
    ]
    expiring = PacketProperties(session_expiry_s=0xFFFFFFFF, receive_maximum=1)
    aliased = PacketProperties(topic_alias=1, message_expiry_s=0xFFFFFFFF, content_type="a/b")
    newer: list[list[Packet]] = [
        [PublishPacket("a", b"x", properties=aliased), PublishPacket("", b"y", properties=aliased)],
        [SubscribePacket(1, (TopicSubscription("#", 1),), PacketProperties(subscription_ids=(7,)))],
        [message, PubackPacket(9, Reason.SUCCESS, user), PublishPacket("a", properties=user)],
        [DisconnectPacket(Reason.DISCONNECT_WITH_WILL, PacketProperties(session_expiry_s=0))],
    ]
    return [
        *(conversation(*packets) for packets in common + newer),
        *(conversation(*packets, version=MQTT_3) for packets in common),
        packet_bytes(ConnectPacket("c", will=will, user="u", password=b"p"), MQTT_5),
        packet_bytes(ConnectPacket("c", MQTT_3, clean_start=False, will=will), MQTT_3),
        packet_bytes(ConnectPacket("c", clean_start=False, properties=expiring), MQTT_5),
        conversation()
        + b"\x82"
        + variable_bytes(FILTERS_BYTES_MAX)
        + b"\0\1\0"
        + bytes(FILTERS_BYTES_MAX),
    ]
