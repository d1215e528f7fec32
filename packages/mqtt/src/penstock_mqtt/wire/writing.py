"""Writes packets in the shortest form that the standard allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol

from msgspec.structs import replace

from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    AuthPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PingreqPacket,
    PingrespPacket,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    SubackPacket,
    SubscribePacket,
    UnsubackPacket,
    UnsubscribePacket,
)
from penstock_mqtt.wire.primitives import binary_bytes, text_bytes, variable_bytes
from penstock_mqtt.wire.properties import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    NO_PROPERTIES,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    PacketProperties,
    properties_bytes,
    without_problem,
)
from penstock_mqtt.wire.reasons import Reason

_ID_BYTES: Final = 2
_FIRST_BYTES: Final = [bytes((first,)) for first in range(256)]
"""The encoded first byte of a packet, by its value; made once because every PUBLISH needs one."""
_CACHED_CHARACTERS: Final = 256
"""Maximum number of characters of a topic name whose encoding is cached."""
_CACHED_MAX: Final = 4_096


def packet_bytes(packet: Packet, version: int) -> bytes:
    """Return the bytes of a packet. Raises ``ValueError`` if the version cannot express it."""
    if isinstance(packet, PublishPacket):
        return _publish(packet, version)
    first, write = _WRITERS[type(packet)]
    body = write(packet, version)
    return bytes((first,)) + variable_bytes(len(body)) + body


def packet_bytes_within(packet: Any, version: int, bytes_max: int) -> bytes | None:
    """Return the bytes of an answer. Omit its explanation if it would exceed the peer's limit
    (3.1.2.11.4). Return None if it is still too large."""
    written = packet_bytes(packet, version)
    if len(written) > bytes_max and hasattr(packet, "properties"):
        shorter = replace(packet, properties=without_problem(packet.properties))
        written = packet_bytes(shorter, version)
    return written if len(written) <= bytes_max else None


class Publishable(Protocol):
    """The parts of a message that a PUBLISH contains."""

    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def properties(self) -> PacketProperties: ...


def publish_parts(
    message: Publishable, version: int, qos: int, *, retain: bool, is_duplicate: bool = False
) -> tuple[bytes, bytes]:
    """Return a PUBLISH without its packet id, as the parts before and after it, because only the
    id differs between receivers. Raises ``ValueError`` if the version cannot express it."""
    first = PUBLISH << 4 | is_duplicate << 3 | qos << 1 | retain
    topic, after = message.topic, message.payload
    name = _encode_name(topic) if len(topic) <= _CACHED_CHARACTERS else text_bytes(topic)
    if version == MQTT_5:
        after = properties_bytes(message.properties) + after
    length = variable_bytes(len(name) + len(after) + (_ID_BYTES if qos else 0))
    return b"".join((_FIRST_BYTES[first], length, name)), after


@lru_cache(_CACHED_MAX)
def _encode_name(topic: str) -> bytes:
    return text_bytes(topic)


def _publish(packet: PublishPacket, version: int) -> bytes:
    before, after = publish_parts(
        packet, version, packet.qos, retain=packet.retain, is_duplicate=packet.is_duplicate
    )
    return before + (packet.packet_id.to_bytes(2) if packet.qos else b"") + after


def _properties(packet: Any, version: int) -> bytes:
    """Return the encoded properties of a packet; empty in 3.1.1."""
    return properties_bytes(packet.properties) if version == MQTT_5 else b""


def _connect(packet: ConnectPacket, _: int) -> bytes:
    version, will = packet.version, packet.will
    if packet.password is not None and packet.user is None and version == MQTT_3:
        raise ValueError("a CONNECT of MQTT 3.1.1 has no password without a user")
    flags = packet.clean_start << 1 | (packet.user is not None) << 7
    flags |= (packet.password is not None) << 6
    parts = [b"\0\4MQTT", b"", packet.keep_alive_s.to_bytes(2), _properties(packet, version)]
    parts.append(text_bytes(packet.client_id))
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        parts += _properties(will, version), text_bytes(will.topic), binary_bytes(will.payload)
    if packet.user is not None:
        parts.append(text_bytes(packet.user))
    if packet.password is not None:
        parts.append(binary_bytes(packet.password))
    parts[1] = bytes((version, flags))
    return b"".join(parts)


def _connack(packet: ConnackPacket, version: int) -> bytes:
    return bytes((packet.session_present, packet.reason)) + _properties(packet, version)


def _reason(packet: Any, version: int) -> bytes:
    """Return the encoded reason code and properties, in the shortest form (3.4.2.1)."""
    if version == MQTT_3 or (not packet.reason and packet.properties == NO_PROPERTIES):
        return b""
    code = bytes((packet.reason,))
    return code if packet.properties == NO_PROPERTIES else code + _properties(packet, version)


def _acknowledgement(packet: Any, version: int) -> bytes:
    return int(packet.packet_id).to_bytes(2) + _reason(packet, version)


def _subscribe(packet: SubscribePacket, version: int) -> bytes:
    parts = [packet.packet_id.to_bytes(2), _properties(packet, version)]
    for subscription in packet.subscriptions:
        options = (
            subscription.qos | subscription.no_local << 2 | subscription.retain_as_published << 3
        )
        parts += (
            text_bytes(subscription.filter),
            bytes((options | subscription.retain_handling << 4,)),
        )
    return b"".join(parts)


def _suback(packet: SubackPacket, version: int) -> bytes:
    codes = packet.reasons
    if version == MQTT_3:  # 3.1.1 has a single failure code
        codes = tuple(Reason.UNSPECIFIED if code.is_failure else code for code in codes)
    return packet.packet_id.to_bytes(2) + _properties(packet, version) + bytes(codes)


def _unsubscribe(packet: UnsubscribePacket, version: int) -> bytes:
    filters = b"".join(map(text_bytes, packet.filters))
    return packet.packet_id.to_bytes(2) + _properties(packet, version) + filters


def _unsuback(packet: UnsubackPacket, version: int) -> bytes:
    codes = bytes(packet.reasons) if version == MQTT_5 else b""
    return packet.packet_id.to_bytes(2) + _properties(packet, version) + codes


def _auth(packet: AuthPacket, version: int) -> bytes:
    if version == MQTT_3:
        raise ValueError("MQTT 3.1.1 has no AUTH")
    return _reason(packet, version)


_WRITERS: Final[dict[type, tuple[int, Callable[[Any, int], bytes]]]] = {
    ConnectPacket: (CONNECT << 4, _connect),
    ConnackPacket: (CONNACK << 4, _connack),
    PubackPacket: (PUBACK << 4, _acknowledgement),
    PubrecPacket: (PUBREC << 4, _acknowledgement),
    PubrelPacket: (PUBREL << 4 | 2, _acknowledgement),
    PubcompPacket: (PUBCOMP << 4, _acknowledgement),
    SubscribePacket: (SUBSCRIBE << 4 | 2, _subscribe),
    SubackPacket: (SUBACK << 4, _suback),
    UnsubscribePacket: (UNSUBSCRIBE << 4 | 2, _unsubscribe),
    UnsubackPacket: (UNSUBACK << 4, _unsuback),
    PingreqPacket: (PINGREQ << 4, lambda _, __: b""),
    PingrespPacket: (PINGRESP << 4, lambda _, __: b""),
    DisconnectPacket: (DISCONNECT << 4, _reason),
    AuthPacket: (AUTH << 4, _auth),
}
