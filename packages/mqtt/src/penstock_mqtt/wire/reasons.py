"""The reason codes of MQTT 5 (2.4), which packets may carry them, and the error that has one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from penstock_core.vocabulary.errors import RemoteProtocolViolation


class Reason(IntEnum):
    """A reason code. Codes below 0x80 report success."""

    SUCCESS = 0x00
    """Also the code of a normal disconnection and of granted QoS 0."""
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def is_failure(self) -> bool:
        return self >= Reason.UNSPECIFIED


class MqttViolation(RemoteProtocolViolation):
    """The peer broke the protocol; ``reason`` is the code that ends its connection (4.13)."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class UnknownVersion(MqttViolation):
    """A CONNECT names a protocol or a version that the server does not speak."""

    def __init__(self, name: bytes, version: int) -> None:
        super().__init__(
            Reason.UNSUPPORTED_VERSION,
            f"protocol {name[:16]!r}, version {version}: supported are MQTT 3.1.1 and 5",
        )
        self.version = version


def malformed(text: str) -> MqttViolation:
    """Return the error for a packet that cannot be parsed (0x81)."""
    return MqttViolation(Reason.MALFORMED_PACKET, text)


def protocol_error(text: str) -> MqttViolation:
    """Return the error for a well-formed packet that the protocol forbids (0x82)."""
    return MqttViolation(Reason.PROTOCOL_ERROR, text)


CONNACK, PUBLISHED, COMPLETED, SUBACK, UNSUBACK, DISCONNECT, AUTH = range(7)
"""Groups of packets with the same allowed reason codes: PUBACK and PUBREC are ``PUBLISHED``, PUBREL
and PUBCOMP ``COMPLETED``."""

_DISCONNECT: Final = (
    0x00,
    0x04,
    0x80,
    0x81,
    0x82,
    0x83,
    0x87,
    0x89,
    0x8B,
    0x8D,
    0x8E,
    0x8F,
    0x90,
    *range(0x93, 0xA3),
)
ALLOWED: Final[Mapping[int, frozenset[int]]] = MappingProxyType(
    {
        CONNACK: frozenset(
            (0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F)
        ),
        PUBLISHED: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
        COMPLETED: frozenset((0x00, 0x92)),
        SUBACK: frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
        UNSUBACK: frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),
        DISCONNECT: frozenset(_DISCONNECT),
        AUTH: frozenset((0x00, 0x18, 0x19)),
    }
)
"""The allowed reason codes of each group of packets."""


def reason_in(group: int, code: int) -> Reason:
    """Return the reason code of a packet. Raises :class:`MqttViolation` if the packet does not
    allow it."""
    if code not in ALLOWED[group]:
        raise protocol_error(f"reason code 0x{code:02X} is not allowed in this packet")
    return Reason(code)
