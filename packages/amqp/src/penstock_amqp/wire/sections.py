"""The sections of an AMQP message: finds their bounds without decoding their values."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from penstock_amqp.wire.types import Bytes, listed, read, skip
from penstock_core.vocabulary.errors import RemoteProtocolViolation

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

_NAMES: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}


class Sections(Struct):
    """The encoded values of the sections of one message; empty for absent sections."""

    header: bytes = b""
    message_annotations: bytes = b""
    properties: bytes = b""
    application_properties: bytes = b""
    body: list[tuple[int, bytes]] = []
    """Code and encoded value of each body section."""
    footer: bytes = b""


_FIELDS: Final = {
    HEADER: "header",
    MESSAGE_ANNOTATIONS: "message_annotations",
    PROPERTIES: "properties",
    APPLICATION_PROPERTIES: "application_properties",
    FOOTER: "footer",
}


_EMPTY: Final = (b"\x45", b"\xc0\x01\x00", b"\xc1\x01\x00")
"""Encodings of empty sections."""


def sections_of(message: bytes) -> Sections:
    """Split a message into its sections. Delivery annotations, meant for one hop, are left out.

    Raises ``RemoteProtocolViolation`` for sections that are unknown, out of order or truncated.
    """
    found = Sections(body=[])
    at, last = 0, HEADER - 1
    while at < len(message):
        code, begin = _descriptor(message, at)
        end = skip(message, begin)
        is_body = DATA <= code <= VALUE
        if code < last or (code == last and (not is_body or code == VALUE)):
            raise RemoteProtocolViolation(f"section 0x{code:02x} after section 0x{last:02x}")
        if is_body and DATA <= last <= VALUE and code != last:
            raise RemoteProtocolViolation("a message has body sections of several kinds")
        last = code
        if is_body:
            found.body.append((code, message[begin:end]))
        elif code != DELIVERY_ANNOTATIONS and message[begin:end] not in _EMPTY:
            setattr(found, _FIELDS[code], message[begin:end])
        at = end
    return found


def _descriptor(message: bytes, at: int) -> tuple[int, int]:
    if message[at : at + 2] == b"\x00\x53" and at + 2 < len(message):
        code, begin = message[at + 2], at + 3
        if HEADER <= code <= FOOTER:
            return code, begin
    if message[at] != 0:
        raise RemoteProtocolViolation("a message section has no descriptor")
    named, begin = read(message, at + 1)
    code = _NAMES.get(named, -1) if isinstance(named, str) else named
    if not isinstance(code, int) or not HEADER <= code <= FOOTER:
        raise RemoteProtocolViolation(f"{str(named)[:40]!r} is not a section of a message")
    return int(code), begin


def places_of(message: bytes) -> dict[int, int]:
    """Offset of the value of each section, by code; of several with one code, the last one.

    The message must have passed :func:`sections_of`.
    """
    found = {}
    at = 0
    while at < len(message):
        code, begin = _descriptor(message, at)
        found[code] = begin
        at = skip(message, begin)
    return found


def field_places(message: bytes, at: int) -> list[int]:
    """Offsets of the fields of a section that is a list and was decoded before."""
    if message[at] == 0x45:
        return []
    is_wide = message[at] == 0xD0
    count = int.from_bytes(message[at + 5 : at + 9], "big") if is_wide else message[at + 2]
    at += 9 if is_wide else 3
    found = []
    for _ in range(count):
        found.append(at)
        at = skip(message, at)
    return found


def fields(encoded: bytes) -> list[Any]:
    """Decode the fields of a section that is a list. Raises ``RemoteProtocolViolation``."""
    if not encoded:
        return []
    value, _ = read(encoded)
    if not isinstance(value, list):
        raise RemoteProtocolViolation(f"a section is {type(value).__name__}, not a list")
    return value


def entries(encoded: bytes) -> dict[Any, Any]:
    """Decode the entries of a section that is a map. Raises ``RemoteProtocolViolation``."""
    if not encoded:
        return {}
    value, _ = read(encoded)
    if not isinstance(value, dict):
        raise RemoteProtocolViolation(f"a section is {type(value).__name__}, not a map")
    return value


def section(code: int, encoded: Bytes) -> bytes:
    """A section with its descriptor."""
    return bytes((0x00, 0x53, code)) + encoded


def header_of(
    *, durable: bool, priority: int | None, ttl: int | None = None, deliveries: int = 0
) -> bytes:
    """The header section; empty if all fields have their defaults."""
    values = [b"\x41" if durable else b"\x42"]
    values.append(b"\x40" if priority is None else bytes((0x50, priority)))
    values.append(b"\x40" if ttl is None else _uint(ttl))
    values.append(b"\x40")
    values.append(_uint(deliveries) if deliveries else b"\x40")
    while values and values[-1] == b"\x40":
        values.pop()
    if values == [b"\x42"]:
        return b""
    return section(HEADER, listed(values))


def _uint(value: int) -> bytes:
    if value < 256:
        return bytes((0x52, value))
    return b"\x70" + value.to_bytes(4, "big")
