"""The packets of MQTT (3), for both versions: 3.1.1 has neither properties nor reason codes."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock_mqtt.wire.primitives import VARIABLE_MAX
from penstock_mqtt.wire.properties import NO_PROPERTIES, PacketProperties
from penstock_mqtt.wire.reasons import Reason

MQTT_3: Final = 4
"""The protocol version of MQTT 3.1.1."""
MQTT_5: Final = 5
PACKET_BYTES_MAX: Final = VARIABLE_MAX + 5
"""Bytes of the largest packet of MQTT."""


class Will(Struct, frozen=True):
    """The message that is published for a client after its connection is lost (3.1.2.5)."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: PacketProperties = NO_PROPERTIES


class ConnectPacket(Struct, frozen=True):
    """CONNECT: the first packet of a client."""

    client_id: str = ""
    version: int = MQTT_5
    clean_start: bool = True
    keep_alive_s: int = 0
    """Maximum number of seconds between two packets of the client; 0 means no limit."""
    user: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: PacketProperties = NO_PROPERTIES

    @property
    def packet_bytes_max(self) -> int:
        """Maximum number of bytes of a packet that the client accepts."""
        return self.properties.maximum_packet_bytes or PACKET_BYTES_MAX


class ConnackPacket(Struct, frozen=True):
    """CONNACK: whether the client is accepted. In 3.1.1 ``reason`` is the return code."""

    reason: int = 0
    session_present: bool = False
    properties: PacketProperties = NO_PROPERTIES


class PublishPacket(Struct, frozen=True):
    """PUBLISH: a message, in either direction."""

    topic: str
    """Empty if the packet uses a topic alias."""
    payload: bytes = b""
    qos: int = 0
    packet_id: int = 0
    """0 for messages of QoS 0."""
    retain: bool = False
    is_duplicate: bool = False
    properties: PacketProperties = NO_PROPERTIES


class Acknowledgement(Struct, frozen=True):
    """A packet about one message, identified by its packet id."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: PacketProperties = NO_PROPERTIES


class PubackPacket(Acknowledgement, frozen=True):
    """PUBACK: the answer to a message of QoS 1."""


class PubrecPacket(Acknowledgement, frozen=True):
    """PUBREC: the first answer to a message of QoS 2."""


class PubrelPacket(Acknowledgement, frozen=True):
    """PUBREL: the sender has received the PUBREC for its message of QoS 2."""


class PubcompPacket(Acknowledgement, frozen=True):
    """PUBCOMP: the last answer to a message of QoS 2."""


class TopicSubscription(Struct, frozen=True):
    """A topic filter of a SUBSCRIBE, with its options (3.8.3.1)."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class SubscribePacket(Struct, frozen=True):
    """SUBSCRIBE: new subscriptions of a client."""

    packet_id: int
    subscriptions: tuple[TopicSubscription, ...]
    properties: PacketProperties = NO_PROPERTIES


class SubackPacket(Struct, frozen=True):
    """SUBACK: an answer to each filter of a SUBSCRIBE."""

    packet_id: int
    reasons: tuple[Reason, ...]
    properties: PacketProperties = NO_PROPERTIES


class UnsubscribePacket(Struct, frozen=True):
    """UNSUBSCRIBE: filters that a client removes."""

    packet_id: int
    filters: tuple[str, ...]
    properties: PacketProperties = NO_PROPERTIES


class UnsubackPacket(Struct, frozen=True):
    """UNSUBACK: an answer to each filter of an UNSUBSCRIBE; none in 3.1.1."""

    packet_id: int
    reasons: tuple[Reason, ...] = ()
    properties: PacketProperties = NO_PROPERTIES


class PingreqPacket(Struct, frozen=True):
    """PINGREQ: a client checks whether the server is alive."""


class PingrespPacket(Struct, frozen=True):
    """PINGRESP: the server is alive."""


class DisconnectPacket(Struct, frozen=True):
    """DISCONNECT: the last packet of a connection; in 3.1.1 only a client sends it."""

    reason: Reason = Reason.SUCCESS
    properties: PacketProperties = NO_PROPERTIES


class AuthPacket(Struct, frozen=True):
    """AUTH: a step of enhanced authentication; not in 3.1.1."""

    reason: Reason = Reason.SUCCESS
    properties: PacketProperties = NO_PROPERTIES


Packet = (
    ConnectPacket
    | ConnackPacket
    | PublishPacket
    | Acknowledgement
    | SubscribePacket
    | SubackPacket
    | UnsubscribePacket
    | UnsubackPacket
    | PingreqPacket
    | PingrespPacket
    | DisconnectPacket
    | AuthPacket
)
