"""Reads packets strictly: every packet that it returns conforms to the standard.

Any error raises :class:`~penstock_mqtt.wire.reasons.MqttViolation` with its reason code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_core.vocabulary.topics import TOPIC_BYTES_MAX, filter_fault, name_fault
from penstock_mqtt.wire import reasons
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    Acknowledgement,
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
    TopicSubscription,
    UnsubackPacket,
    UnsubscribePacket,
    Will,
)
from penstock_mqtt.wire.plain_messages import TOPIC_BYTES_CACHED, valid_topic
from penstock_mqtt.wire.primitives import Cursor
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
    WILL,
    properties_of,
)
from penstock_mqtt.wire.reasons import (
    UnknownVersion,
    malformed,
    protocol_error,
    reason_in,
)

SHARED: Final = "$share/"
"""Prefix of the filter of a shared subscription (4.8.2)."""


def filter_of(text: str) -> str:
    """Return the topic filter of a subscription, shared or not."""
    return text.removeprefix(SHARED).partition("/")[2] if text.startswith(SHARED) else text


_RETURN_CODES: Final = 5
"""The last return code of a CONNACK of 3.1.1."""
_REFUSED_3: Final = 0x80
"""The return code of 3.1.1 for a refused filter in a SUBACK."""
_CACHED_BYTES_MAX: Final = 2 + TOPIC_BYTES_CACHED
"""End offset of the longest topic name whose validity is cached."""


def packet_of(first: int, body: bytes, version: int) -> Packet:
    """Return the packet with this first byte and body in ``version``. A CONNECT determines its own
    version."""
    kind, flags = first >> 4, first & 0x0F
    if kind == PUBLISH:
        return _publish(flags, body, version)
    if flags != (2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0):
        raise malformed(f"the flags of a packet of type {kind} are {flags}")
    if (read := _READERS.get(kind)) is None or (kind == AUTH and version == MQTT_3):
        raise malformed(f"packets of type {kind} do not exist in this version")
    cursor = Cursor(body)
    packet = read(cursor, version)
    cursor.close(type(packet).__name__)
    return packet


def _publish(flags: int, body: bytes, version: int) -> PublishPacket:
    qos = flags >> 1 & 3
    if qos == 3:
        raise malformed("a PUBLISH has QoS 3, which does not exist")
    if flags & 8 and not qos:
        raise protocol_error("a PUBLISH of QoS 0 must not be a duplicate")
    if (packet := _read_plain_publish(flags, qos, body, version)) is not None:
        return packet
    cursor = Cursor(body)
    topic = cursor.text()
    packet_id = _packet_id(cursor) if qos else 0
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties = properties_of(cursor, PUBLISH)
    if topic or properties.topic_alias is None:
        check_name(topic)
    return PublishPacket(
        topic, cursor.rest(), qos, packet_id, bool(flags & 1), bool(flags & 8), properties
    )


def _read_plain_publish(flags: int, qos: int, body: bytes, version: int) -> PublishPacket | None:
    """Return a PUBLISH without properties, the usual case. Return None if it has some or is
    invalid."""
    id_at = 2 + int.from_bytes(body[:2])
    payload_at = id_at + 2 if qos else id_at
    packet_id = int.from_bytes(body[id_at:payload_at])
    if version == MQTT_5:
        # The length of the properties; it must be 0, which is checked below.
        payload_at += 1
    is_plain = payload_at <= len(body) and (version == MQTT_3 or not body[payload_at - 1])
    if not is_plain or id_at > _CACHED_BYTES_MAX or (qos and not packet_id):
        return None
    if not (topic := valid_topic(body[2:id_at])):
        return None
    return PublishPacket(
        topic, body[payload_at:], qos, packet_id, bool(flags & 1), bool(flags & 8), NO_PROPERTIES
    )


def _packet_id(cursor: Cursor) -> int:
    if not (packet_id := cursor.two_bytes()):
        raise protocol_error("a packet identifier must not be 0")
    return packet_id


# --- CONNECT and CONNACK -----------------------------------------------------------------


def _connect(cursor: Cursor, _: int) -> ConnectPacket:
    name = cursor.binary()
    version = cursor.byte()
    if name != b"MQTT" or version not in (MQTT_3, MQTT_5):
        raise UnknownVersion(name, version)
    flags = cursor.byte()
    _check_connect_flags(flags, version)
    keep_alive_s = cursor.two_bytes()
    properties = properties_of(cursor, CONNECT) if version == MQTT_5 else NO_PROPERTIES
    client_id = cursor.text()
    will = _will(cursor, flags, version) if flags & 4 else None
    user = cursor.text() if flags & 0x80 else None
    password = cursor.binary() if flags & 0x40 else None
    return ConnectPacket(
        client_id,
        version,
        clean_start=bool(flags & 2),
        keep_alive_s=keep_alive_s,
        user=user,
        password=password,
        will=will,
        properties=properties,
    )


def _check_connect_flags(flags: int, version: int) -> None:
    """Raise :class:`~penstock_mqtt.wire.reasons.MqttViolation` for flags of a CONNECT that the
    standard forbids (3.1.2.3)."""
    if flags & 1:
        raise malformed("the reserved flag of a CONNECT is set")
    if flags & 0x18 == 0x18:
        raise malformed("a will has QoS 3, which does not exist")
    if flags & 0x38 and not flags & 4:
        raise malformed("a CONNECT without a will has its QoS or its retain flag")
    if flags & 0x40 and not flags & 0x80 and version == MQTT_3:
        raise malformed("a CONNECT of MQTT 3.1.1 has a password without a user")


def _will(cursor: Cursor, flags: int, version: int) -> Will:
    """Read the will in a CONNECT. Raises :class:`MqttViolation`."""
    properties = properties_of(cursor, WILL) if version == MQTT_5 else NO_PROPERTIES
    topic = cursor.text()
    check_name(topic)
    return Will(
        topic, cursor.binary(), flags >> 3 & 3, retain=bool(flags & 0x20), properties=properties
    )


def _connack(cursor: Cursor, version: int) -> ConnackPacket:
    flags = cursor.byte()
    if flags > 1:
        raise malformed("the reserved flags of a CONNACK are set")
    code = cursor.byte()
    properties = NO_PROPERTIES
    if version == MQTT_5:
        code = reason_in(reasons.CONNACK, code)
        properties = properties_of(cursor, CONNACK)
    elif code > _RETURN_CODES:
        raise protocol_error(f"{code} is not a return code of a CONNACK")
    if flags and code:
        raise protocol_error("a CONNACK with a refusal has the session-present flag")
    return ConnackPacket(code, bool(flags), properties)


# --- acknowledgements --------------------------------------------------------------------


def _acknowledgement(
    make: type[Acknowledgement], packet: int, group: int
) -> Callable[[Cursor, int], Packet]:
    """Return the reader of one type of acknowledgement. ``group`` is the group of its reason
    codes."""

    def read(cursor: Cursor, version: int) -> Packet:
        packet_id = _packet_id(cursor)
        if version == MQTT_3 or not cursor.remaining:
            return make(packet_id)
        reason = reason_in(group, cursor.byte())
        return make(
            packet_id, reason, properties_of(cursor, packet) if cursor.remaining else NO_PROPERTIES
        )

    return read


# --- subscriptions -----------------------------------------------------------------------


def _subscribe(cursor: Cursor, version: int) -> SubscribePacket:
    packet_id = _packet_id(cursor)
    properties = properties_of(cursor, SUBSCRIBE) if version == MQTT_5 else NO_PROPERTIES
    subscriptions = []
    while cursor.remaining:
        filter_text = cursor.text()
        check_filter(filter_text)
        subscriptions.append(_subscription(filter_text, cursor.byte(), version))
    if not subscriptions:
        raise protocol_error("a SUBSCRIBE has no topic filter")
    return SubscribePacket(packet_id, tuple(subscriptions), properties)


def _subscription(filter_text: str, options: int, version: int) -> TopicSubscription:
    if options & (0xC0 if version == MQTT_5 else 0xFC):
        raise malformed("reserved options of a subscription are set")
    qos, handling = options & 3, options >> 4
    if qos == 3:
        fault = protocol_error if version == MQTT_5 else malformed
        raise fault("a subscription has QoS 3, which does not exist")
    if handling == 3:
        raise protocol_error("a subscription has retain handling 3, which does not exist")
    if options & 4 and filter_text.startswith(SHARED):
        raise protocol_error("a shared subscription cannot have the option No Local")
    return TopicSubscription(
        filter_text,
        qos,
        no_local=bool(options & 4),
        retain_as_published=bool(options & 8),
        retain_handling=handling,
    )


def _suback(cursor: Cursor, version: int) -> SubackPacket:
    packet_id = _packet_id(cursor)
    properties = properties_of(cursor, SUBACK) if version == MQTT_5 else NO_PROPERTIES
    codes = cursor.rest()
    if version == MQTT_3 and any(code > 2 and code != _REFUSED_3 for code in codes):
        raise protocol_error("a return code of a SUBACK does not exist")
    if not codes:
        raise protocol_error("a SUBACK has no reason code")
    return SubackPacket(
        packet_id, tuple(reason_in(reasons.SUBACK, code) for code in codes), properties
    )


def _unsubscribe(cursor: Cursor, version: int) -> UnsubscribePacket:
    packet_id = _packet_id(cursor)
    properties = properties_of(cursor, UNSUBSCRIBE) if version == MQTT_5 else NO_PROPERTIES
    filters = []
    while cursor.remaining:
        filters.append(cursor.text())
        check_filter(filters[-1])
    if not filters:
        raise protocol_error("an UNSUBSCRIBE has no topic filter")
    return UnsubscribePacket(packet_id, tuple(filters), properties)


def _unsuback(cursor: Cursor, version: int) -> UnsubackPacket:
    packet_id = _packet_id(cursor)
    if version == MQTT_3:
        return UnsubackPacket(packet_id)
    properties = properties_of(cursor, UNSUBACK)
    codes = tuple(reason_in(reasons.UNSUBACK, code) for code in cursor.rest())
    if not codes:
        raise protocol_error("an UNSUBACK has no reason code")
    return UnsubackPacket(packet_id, codes, properties)


# --- DISCONNECT and AUTH -----------------------------------------------------------------


def _disconnect(cursor: Cursor, version: int) -> DisconnectPacket:
    if version == MQTT_3 or not cursor.remaining:
        return DisconnectPacket()
    reason = reason_in(reasons.DISCONNECT, cursor.byte())
    return DisconnectPacket(
        reason, properties_of(cursor, DISCONNECT) if cursor.remaining else NO_PROPERTIES
    )


def _auth(cursor: Cursor, _: int) -> AuthPacket:
    if not cursor.remaining:
        return AuthPacket()
    reason = reason_in(reasons.AUTH, cursor.byte())
    properties = properties_of(cursor, AUTH) if cursor.remaining else NO_PROPERTIES
    if properties.authentication_method is None:
        raise protocol_error("an AUTH names no authentication method")
    return AuthPacket(reason, properties)


_READERS: Final[dict[int, Callable[[Cursor, int], Packet]]] = {
    CONNECT: _connect,
    CONNACK: _connack,
    PUBACK: _acknowledgement(PubackPacket, PUBACK, reasons.PUBLISHED),
    PUBREC: _acknowledgement(PubrecPacket, PUBREC, reasons.PUBLISHED),
    PUBREL: _acknowledgement(PubrelPacket, PUBREL, reasons.COMPLETED),
    PUBCOMP: _acknowledgement(PubcompPacket, PUBCOMP, reasons.COMPLETED),
    SUBSCRIBE: _subscribe,
    SUBACK: _suback,
    UNSUBSCRIBE: _unsubscribe,
    UNSUBACK: _unsuback,
    PINGREQ: lambda _, __: PingreqPacket(),
    PINGRESP: lambda _, __: PingrespPacket(),
    DISCONNECT: _disconnect,
    AUTH: _auth,
}


# --- topics ------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """Raise :class:`~penstock_mqtt.wire.reasons.MqttViolation` if the text is not a topic name."""
    if fault := name_fault(name):
        raise protocol_error(fault)


def check_filter(text: str) -> None:
    """Raise :class:`~penstock_mqtt.wire.reasons.MqttViolation` if the text is not a topic filter,
    shared or not."""
    if fault := _shared_fault(text) if text.startswith(SHARED) else filter_fault(text):
        raise protocol_error(fault)


def _shared_fault(text: str) -> str:
    """Return why a filter that begins with ``$share/`` is invalid, or an empty text."""
    group, _, filter_text = text.removeprefix(SHARED).partition("/")
    if not group or "+" in group or "#" in group:
        return f"{text[:80]!r} must name a group without wildcards after $share/"
    if not filter_text:
        return f"{text[:80]!r} must have a topic filter after its group"
    if len(text.encode()) > TOPIC_BYTES_MAX:
        return f"a topic filter has at most {TOPIC_BYTES_MAX} bytes"
    return filter_fault(filter_text) or ("a group has no null character" if "\0" in group else "")
