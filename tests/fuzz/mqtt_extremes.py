"""MQTT 3.1.1 and 5 packets with extreme values: one at a time for each field, each property and
each size of each packet that a client may send.

Fields are encoded as bytes, so they include invalid values. The reader of packets decides which
packets the realm has to refuse.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from penstock_mqtt.connection import CONNECT_BYTES_MAX
from penstock_mqtt.wire import properties as numbers
from penstock_mqtt.wire.framing import CONTROL_BYTES_MAX, FILTERS_BYTES_MAX, PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    ConnectPacket,
    DisconnectPacket,
    PingreqPacket,
    PubackPacket,
    PublishPacket,
    PubrecPacket,
    SubscribePacket,
    TopicSubscription,
)
from penstock_mqtt.wire.primitives import VARIABLE_MAX, Cursor, variable_bytes
from penstock_mqtt.wire.properties import (
    PROPERTIES,
    PROPERTIES_BYTES_MAX,
    USER_PROPERTIES_MAX,
    Property,
)
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_mqtt.wire.writing import packet_bytes
from tests.fuzz.mqtt_connections import MqttServed, pieces
from tests.fuzz.values import MANY, TEXTS

PING: Final = packet_bytes(PingreqPacket(), MQTT_5)
PONG: Final = b"\xd0\0"
KINDS: Final[Mapping[str, int]] = {
    name: getattr(numbers, name.upper())
    for name in (
        "connect",
        "publish",
        "puback",
        "pubrec",
        "pubrel",
        "pubcomp",
        "subscribe",
        "unsubscribe",
        "pingreq",
        "disconnect",
        "auth",
    )
}
"""Packets that a client sends, by name."""
ANY_PUBLISH_BYTES: Final = 32 << 20
"""Larger than any PUBLISH here, and smaller than the largest length that is tried."""
_FLAGS: Final = {numbers.PUBREL: 2, numbers.SUBSCRIBE: 2, numbers.UNSUBSCRIBE: 2}
_ANSWERS: Final = ("puback", "pubrec", "pubrel", "pubcomp")
_MESSAGE: Final = b'{"n": 1}'


class Case(NamedTuple):
    what: str
    data: bytes
    """All bytes of the conversation."""
    is_refused: bool = False
    """Whether the realm has to close the connection."""


# --- values ------------------------------------------------------------------------------


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(2) + value


def _texts() -> list[bytes]:
    encoded = [text.encode()[:65_535] for text in TEXTS]
    return [
        *map(_sized, dict.fromkeys(encoded)),
        *map(_sized, (b"\xff", b"\xed\xa0\x80", b"\0", b"a/" * 30_000, b"+/" * 30_000, b"#")),
        *map(_sized, (b"$share/g/a", b"$share/" + b"g" * 60_000 + b"/a", b"$SYS/#", b"+/+/#")),
        b"\xff\xffa",  # shorter than stated
    ]


TWO_BYTES: Final = tuple(value.to_bytes(2) for value in (1, 0, 2, 255, 256, 0x7FFF, 0x8000, 0xFFFF))
FOUR_BYTES: Final = tuple(
    value.to_bytes(4) for value in (1, 0, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
)
BYTES: Final = tuple(bytes((value,)) for value in (0, 1, 2, 3, 4, 0x10, 0x7F, 0x80, 0x81, 0xFF))
VARIABLES: Final = (
    *map(variable_bytes, (1, 0, 127, 128, 16_384, VARIABLE_MAX)),
    b"\x80\0",
    b"\xff\xff\xff\xff\x7f",  # longer than necessary
)
REASONS: Final = sorted({*Reason, 0x03, 0x05, 0x7F, 0xA3, 0xFF})
"""All defined reason codes, and some undefined ones."""
_VALUES: Final[Mapping[Any, Sequence[bytes]]] = {
    Cursor.byte: BYTES,
    Cursor.two_bytes: TWO_BYTES,
    Cursor.four_bytes: FOUR_BYTES,
    Cursor.variable: VARIABLES,
}


def _values_of(property_: Property) -> Sequence[bytes]:
    if (values := _VALUES.get(property_.type.read)) is not None:
        return values
    if property_.type.read in (Cursor.text, Cursor.binary):
        return _texts()
    return [text + _sized(b"v") for text in _texts()]


def _properties() -> Iterator[tuple[str, bytes]]:
    """Yield encoded properties with their length: each property with each of its values, and
    repeatable ones many times."""
    for property_ in PROPERTIES:
        number = bytes((property_.number,))
        for value in _values_of(property_):
            yield property_.name, variable_bytes(len(number + value)) + number + value
        usual = number + _values_of(property_)[0]
        for times in (2, USER_PROPERTIES_MAX, USER_PROPERTIES_MAX + 1, 8_000):
            if times == 2 or property_.is_repeated:
                yield (
                    f"{times} times {property_.name}",
                    variable_bytes(len(usual) * times) + usual * times,
                )
    pair = b"\x26" + _sized(b"n") + _sized(b"v" * 60_000)
    for size in (PROPERTIES_BYTES_MAX, PROPERTIES_BYTES_MAX + 1, VARIABLE_MAX):
        yield f"{size} bytes of properties", variable_bytes(size) + pair
    yield "an unknown property", b"\x02\x7f\0"


# --- packets -----------------------------------------------------------------------------


def _packet(kind: int, body: bytes, flags: int | None = None) -> bytes:
    low = _FLAGS.get(kind, 0) if flags is None else flags
    return bytes((kind << 4 | low,)) + variable_bytes(len(body)) + body


def _connect(**parts: bytes) -> bytes:
    usual = {
        "name": _sized(b"MQTT"),
        "version": bytes((MQTT_5,)),
        "flags": b"\x02",
        "keep_alive": b"\0\0",
        "properties": b"\0",
        "client_id": _sized(b"c"),
        "rest": b"",
    }
    fields = {**usual, **parts}
    if fields["version"] == bytes((MQTT_3,)):
        fields["properties"] = b""
    return _packet(numbers.CONNECT, b"".join(fields.values()))


def _properties_of(version: int, encoded: bytes = b"\0") -> bytes:
    return encoded if version == MQTT_5 else b""


def _connects(version: int) -> Iterator[tuple[str, bytes]]:
    number = bytes((version,))
    for name in (b"MQIsdp", b"MQTT\0", b"", b"x" * 60_000):
        yield "name of the protocol", _connect(name=_sized(name), version=number)
    for value in BYTES:
        yield "version", _connect(version=value)
    for flags in range(0, 256, 2) if version == MQTT_5 else (0, 1, 2, 0x40, 0xFE):
        yield "flags", _connect(flags=bytes((flags,)), version=number, rest=_sized(b"a") * 4)
    for value in TWO_BYTES:
        yield "keep alive", _connect(keep_alive=value, version=number)
    for text in _texts():
        yield "client id", _connect(client_id=text, version=number)
        yield "user", _connect(flags=b"\x82", rest=text, version=number)
        secret = _sized(b"u") + text
        yield "password", _connect(flags=b"\xc2", rest=secret, version=number)
        will = _properties_of(version) + text + _sized(b"x")
        yield "topic of the will", _connect(flags=b"\x2e", rest=will, version=number)
        will = _properties_of(version) + _sized(b"a") + text
        yield "payload of the will", _connect(flags=b"\x0e", rest=will, version=number)
    if version == MQTT_5:
        for what, encoded in _properties():
            yield what, _connect(properties=encoded)
            will = encoded + _sized(b"a") + _sized(b"x")
            yield f"{what} of the will", _connect(flags=b"\x0e", rest=will)


def _publishes(version: int) -> Iterator[tuple[str, bytes]]:
    properties = _properties_of(version)
    for flags in range(16):
        body = _sized(b"a/b") + (b"\0\1" if flags & 6 else b"") + properties + _MESSAGE
        yield "flags", _packet(numbers.PUBLISH, body, flags)
    for text in _texts():
        yield "topic", _packet(numbers.PUBLISH, text + properties + _MESSAGE)
        yield (
            "topic of one retained",
            _packet(numbers.PUBLISH, text + b"\0\1" + properties + b"x", 3),
        )
    for value in TWO_BYTES:
        for flags in (2, 4):
            yield (
                "packet id",
                _packet(numbers.PUBLISH, _sized(b"a") + value + properties + b"x", flags),
            )
    for payload in payloads():
        yield "payload", _packet(numbers.PUBLISH, _sized(b"a") + b"\0\1" + properties + payload, 2)
    if version == MQTT_5:
        for what, encoded in _properties():
            body = _sized(b"a") + b"\0\1" + encoded + _MESSAGE
            yield what, _packet(numbers.PUBLISH, body, 3)


def payloads() -> Iterator[bytes]:
    """Yield JSON payloads with nesting and numbers beyond the limits of columns, and large ones."""
    for levels in (101, 3_000, 100_000):
        yield b'{"a":' + b"[" * levels + b"]" * levels + b"}"
        yield b'{"a":' * levels + b"1" + b"}" * levels
    for number in (b"1e999", b"-1e999", b"9" * 400, b"18446744073709551616", b"0." + b"0" * 400):
        yield b'{"n": %s}' % number
    yield b"{%s}" % b",".join(b'"k%d": 1' % n for n in range(MANY))
    yield b"[%s]" % b",".join([b'{"n": 1}'] * MANY)
    yield from (b"", b"\0" * 70_000, b"x" * (1 << 20), b'{"a": "\\ud800"}', b'{"\\u0000": 1}')


def _acknowledgements(kind: int, version: int) -> Iterator[tuple[str, bytes]]:
    for value in TWO_BYTES:
        yield "packet id", _packet(kind, value)
    for reason in REASONS if version == MQTT_5 else (0, 255):
        yield "reason", _packet(kind, b"\0\1" + bytes((reason,)))
    if version == MQTT_5:
        for what, encoded in _properties():
            yield what, _packet(kind, b"\0\1\0" + encoded)


def _subscribes(kind: int, version: int) -> Iterator[tuple[str, bytes]]:
    properties, option = _properties_of(version), b"\1" if kind == numbers.SUBSCRIBE else b""
    for value in TWO_BYTES:
        yield "packet id", _packet(kind, value + properties + _sized(b"a") + option)
    for text in _texts():
        yield "filter", _packet(kind, b"\0\1" + properties + text + option)
    for options in range(64) if option else ():
        yield "options", _packet(kind, b"\0\1" + properties + _sized(b"a") + bytes((options,)))
    many = b"".join(_sized(b"f/%d/+" % number) + option for number in range(MANY))
    yield "many filters", _packet(kind, b"\0\1" + properties + many)
    yield (
        "one filter many times",
        _packet(kind, b"\0\1" + properties + (_sized(b"#") + option) * MANY),
    )
    yield "no filter", _packet(kind, b"\0\1" + properties)
    if version == MQTT_5:
        for what, encoded in _properties():
            yield what, _packet(kind, b"\0\1" + encoded + _sized(b"a/#") + option)


def _ends(kind: int, version: int) -> Iterator[tuple[str, bytes]]:
    for reason in REASONS:
        yield "reason", _packet(kind, bytes((reason,)))
    for what, encoded in _properties():
        yield what, _packet(kind, (b"\x18" if kind == numbers.AUTH else b"\0") + encoded)


def _sizes(kind: int) -> Iterator[tuple[str, bytes]]:
    """Yield packets with sizes at the bounds, filled with zeros, and lengths without their
    packets."""
    first = bytes((kind << 4 | _FLAGS.get(kind, 0),))
    for bound in (CONTROL_BYTES_MAX, FILTERS_BYTES_MAX, CONNECT_BYTES_MAX, 1 << 20):
        for size in (bound - 6, bound + 1):
            yield f"{size} bytes", first + variable_bytes(size) + bytes(size)
    for size in (CONTROL_BYTES_MAX, 10_000_000, VARIABLE_MAX):
        yield f"the start of {size} bytes", first + variable_bytes(size) + b"\0\1"
    yield "a length of five bytes", first + b"\xff\xff\xff\xff\x7f"
    for flags in range(16):
        yield "flags", bytes((kind << 4 | flags, 0))


def _packets(name: str, version: int) -> Iterator[tuple[str, bytes]]:
    kind = KINDS[name]
    yield from _sizes(kind)
    match name:
        case "connect":
            yield from _connects(version)
        case "publish":
            yield from _publishes(version)
        case "puback" | "pubrec" | "pubrel" | "pubcomp":
            yield from _acknowledgements(kind, version)
        case "subscribe" | "unsubscribe":
            yield from _subscribes(kind, version)
        case "disconnect" | "auth":
            yield from _ends(kind, version)
        case _:
            pass  # a ping has no fields


# --- conversations -----------------------------------------------------------------------


def _opening(version: int) -> bytes:
    """Return the start of a conversation: the client receives its own messages, and has one of each
    kind in flight."""
    subscribe = SubscribePacket(1, (TopicSubscription("a/#", 2),))
    packets = (
        ConnectPacket("fuzz", version),
        subscribe,
        PublishPacket("a", _MESSAGE, 1, packet_id=1),
    )
    return b"".join(packet_bytes(packet, version) for packet in packets)


def working(version: int = MQTT_5) -> bytes:
    """Return a conversation in which a client receives its own message."""
    ends = packet_bytes(DisconnectPacket(), version)
    answers = (PubackPacket(1), PubrecPacket(2))
    return (
        _opening(version)
        + b"".join(packet_bytes(answer, version) for answer in answers)
        + PING
        + ends
    )


def cases(name: str) -> Iterator[Case]:
    """Yield conversations about one packet, in both versions."""
    for version in (MQTT_5, MQTT_3):
        for what, packet in _packets(name, version):
            opening = b"" if name == "connect" else _opening(version)
            description = f"{what} of {name}, version {version}"
            yield Case(description, opening + packet + PING, _is_refused(packet, version, opening))


def _is_refused(packet: bytes, version: int, opening: bytes) -> bool:
    """Return whether the reader of packets refuses a packet; an incomplete one may be completed."""
    reader = PacketReader(ANY_PUBLISH_BYTES if opening else CONNECT_BYTES_MAX)
    reader.is_strict = bool(opening)
    reader.receive(packet)
    try:
        for first, body in reader.packets():
            packet_of(first, body, version)
    except MqttViolation:
        return True
    return False


def delivers(answer: bytes) -> bool:
    """Return whether the realm sent a message."""
    return any(packet[0] >> 4 == numbers.PUBLISH for packet in pieces(answer))


def check(case: Case, answer: bytes, *, has_closed: bool) -> None:
    """Raise ``AssertionError`` if a malformed packet was accepted."""
    assert has_closed or not case.is_refused, f"{case.what} is accepted"


@lru_cache
def served() -> MqttServed:
    server = MqttServed()
    atexit.register(server.close)
    return server
