"""The 27 properties of MQTT 5 (2.2.2), in one table: number, type, bounds and packets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock_core.vocabulary.topics import name_fault
from penstock_mqtt.wire.primitives import (
    VARIABLE_MAX,
    Cursor,
    binary_bytes,
    text_bytes,
    variable_bytes,
)
from penstock_mqtt.wire.reasons import MqttViolation, Reason, malformed, protocol_error

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)
"""The packet types (2.1.2)."""
WILL: Final = 16
"""Stands for the properties of a will, which are part of a CONNECT."""


PROPERTIES_BYTES_MAX: Final = 65 << 10
"""Maximum number of bytes of the properties of a packet: one property of the largest size and some
others."""
USER_PROPERTIES_MAX: Final = 1_000
"""Maximum number of user properties of a packet."""


class PacketProperties(Struct, frozen=True, omit_defaults=True):
    """The properties of one packet. A missing property is None, or empty if it can be repeated."""

    payload_format: int | None = None
    """1 if the payload is UTF-8."""
    message_expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: tuple[int, ...] = ()
    session_expiry_s: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive_s: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_s: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_bytes: int | None = None
    wildcards_available: int | None = None
    subscription_ids_available: int | None = None
    shared_available: int | None = None


NO_PROPERTIES: Final = PacketProperties()


def without_problem(properties: PacketProperties) -> PacketProperties:
    """Return the properties of an answer without its explanation."""
    return replace(properties, reason=None, user_properties=())


class WireType(NamedTuple):
    """The functions that read and write the values of one data type."""

    read: Callable[[Cursor], Any]
    write: Callable[[Any], bytes]


def _pair(cursor: Cursor) -> tuple[str, str]:
    return cursor.text(), cursor.text()


def _unsigned(size: int) -> Callable[[int], bytes]:
    return lambda value: value.to_bytes(size)


_BYTE: Final = WireType(Cursor.byte, _unsigned(1))
_TWO: Final = WireType(Cursor.two_bytes, _unsigned(2))
_FOUR: Final = WireType(Cursor.four_bytes, _unsigned(4))
_VARIABLE: Final = WireType(Cursor.variable, variable_bytes)
_TEXT: Final = WireType(Cursor.text, text_bytes)
_BINARY: Final = WireType(Cursor.binary, binary_bytes)
_PAIR: Final = WireType(_pair, lambda pair: text_bytes(pair[0]) + text_bytes(pair[1]))


_LARGEST: Final = {_BYTE: 0xFF, _TWO: 0xFFFF}
"""The largest values of the types that are smaller than four bytes."""


class Property(NamedTuple):
    """One property: its encoding, the packets that may contain it and its bounds."""

    number: int
    name: str
    """The property's field of :class:`PacketProperties`."""
    type: WireType
    packets: frozenset[int]
    minimum: int = 0
    maximum: int = (1 << 32) - 1
    is_repeated: bool = False

    @property
    def largest(self) -> int:
        """The largest value that the bounds and the encoding of the property allow."""
        return min(self.maximum, _LARGEST.get(self.type, self.maximum))


def _in(*packets: int) -> frozenset[int]:
    return frozenset(packets)


_MESSAGES: Final = _in(PUBLISH, WILL)
_ENDS: Final = _in(CONNECT, CONNACK)
_SIGNING_IN: Final = _in(CONNECT, CONNACK, AUTH)
_SERVER: Final = _in(CONNACK)
_ANSWERS: Final = _in(CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)
_ALL: Final = _in(CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE, *_ANSWERS)

PROPERTIES: Final = (
    Property(0x01, "payload_format", _BYTE, packets=_MESSAGES, maximum=1),
    Property(0x02, "message_expiry_s", _FOUR, packets=_MESSAGES),
    Property(0x03, "content_type", _TEXT, packets=_MESSAGES),
    Property(0x08, "response_topic", _TEXT, packets=_MESSAGES),
    Property(0x09, "correlation_data", _BINARY, packets=_MESSAGES),
    Property(
        0x0B,
        "subscription_ids",
        _VARIABLE,
        packets=_in(PUBLISH, SUBSCRIBE),
        minimum=1,
        maximum=VARIABLE_MAX,
        is_repeated=True,
    ),
    Property(0x11, "session_expiry_s", _FOUR, packets=_in(CONNECT, CONNACK, DISCONNECT)),
    Property(0x12, "assigned_client_id", _TEXT, packets=_SERVER),
    Property(0x13, "server_keep_alive_s", _TWO, packets=_SERVER),
    Property(0x15, "authentication_method", _TEXT, packets=_SIGNING_IN),
    Property(0x16, "authentication_data", _BINARY, packets=_SIGNING_IN),
    Property(0x17, "request_problem_information", _BYTE, packets=_in(CONNECT), maximum=1),
    Property(0x18, "will_delay_s", _FOUR, packets=_in(WILL)),
    Property(0x19, "request_response_information", _BYTE, packets=_in(CONNECT), maximum=1),
    Property(0x1A, "response_information", _TEXT, packets=_SERVER),
    Property(0x1C, "server_reference", _TEXT, packets=_in(CONNACK, DISCONNECT)),
    Property(0x1F, "reason", _TEXT, packets=_ANSWERS),
    Property(0x21, "receive_maximum", _TWO, packets=_ENDS, minimum=1),
    Property(0x22, "topic_alias_maximum", _TWO, packets=_ENDS),
    Property(0x23, "topic_alias", _TWO, packets=_in(PUBLISH), minimum=1),
    Property(0x24, "maximum_qos", _BYTE, packets=_SERVER, maximum=1),
    Property(0x25, "retain_available", _BYTE, packets=_SERVER, maximum=1),
    Property(0x26, "user_properties", _PAIR, packets=_ALL, is_repeated=True),
    Property(0x27, "maximum_packet_bytes", _FOUR, packets=_ENDS, minimum=1),
    Property(0x28, "wildcards_available", _BYTE, packets=_SERVER, maximum=1),
    Property(0x29, "subscription_ids_available", _BYTE, packets=_SERVER, maximum=1),
    Property(0x2A, "shared_available", _BYTE, packets=_SERVER, maximum=1),
)
"""All properties of MQTT 5."""

BY_NUMBER: Final[Mapping[int, Property]] = MappingProxyType(
    {property_.number: property_ for property_ in PROPERTIES}
)


def properties_of(cursor: Cursor, packet: int) -> PacketProperties:
    """Read the properties of a packet after their length. Raises
    :class:`~penstock_mqtt.wire.reasons.MqttViolation`."""
    size = cursor.variable()
    if not size:
        return NO_PROPERTIES
    if size > PROPERTIES_BYTES_MAX:
        text = (
            f"a packet has {size} bytes of properties; at most {PROPERTIES_BYTES_MAX} are allowed"
        )
        raise MqttViolation(Reason.PACKET_TOO_LARGE, text)
    section = cursor.part(size)
    values: dict[str, Any] = {}
    while section.remaining:
        number = section.variable()
        property_ = BY_NUMBER.get(number)
        if property_ is None or packet not in property_.packets:
            raise malformed(f"packets of type {packet} cannot have property 0x{number:02X}")
        value = property_.type.read(section)
        _check(property_, value)
        if property_.is_repeated:
            values.setdefault(property_.name, []).append(value)
        elif property_.name in values:
            raise protocol_error(f"a packet has the property {property_.name} twice")
        else:
            values[property_.name] = value
    if len(values.get("user_properties", ())) > USER_PROPERTIES_MAX:
        text = f"a packet has more than {USER_PROPERTIES_MAX} user properties; send fewer"
        raise MqttViolation(Reason.QUOTA_EXCEEDED, text)
    _check_together(values, packet)
    for name in ("subscription_ids", "user_properties"):
        if name in values:
            values[name] = tuple(values[name])
    return PacketProperties(**values)


def _check(property_: Property, value: Any) -> None:
    """Raise :class:`MqttViolation` if a number is outside the bounds of its property."""
    if isinstance(value, int) and not property_.minimum <= value <= property_.largest:
        reason = Reason.PROTOCOL_ERROR
        if property_.name == "topic_alias":
            reason = Reason.TOPIC_ALIAS_INVALID
        bounds = f"{property_.minimum} to {property_.largest}"
        raise MqttViolation(reason, f"{property_.name} is {value}; allowed are {bounds}")


def _check_together(values: Mapping[str, Any], packet: int) -> None:
    """Raise :class:`MqttViolation` if the properties of a packet contradict each other."""
    if packet == SUBSCRIBE and len(values.get("subscription_ids", ())) > 1:
        raise protocol_error("a SUBSCRIBE can have only one subscription identifier")
    if "authentication_data" in values and "authentication_method" not in values:
        raise protocol_error("authentication data needs an authentication method")
    if "response_topic" in values and (fault := name_fault(values["response_topic"])):
        raise protocol_error(f"response topic: {fault}")


def properties_bytes(properties: PacketProperties) -> bytes:
    """Write properties after their length. Raises ``ValueError`` if MQTT cannot express a value."""
    if properties is NO_PROPERTIES:
        return b"\0"
    parts: list[bytes] = []
    for property_ in PROPERTIES:
        value = getattr(properties, property_.name)
        if value is None or value == ():
            continue
        head = bytes((property_.number,))
        for item in value if property_.is_repeated else (value,):
            parts += head, property_.type.write(item)
    written = b"".join(parts)
    return variable_bytes(len(written)) + written
