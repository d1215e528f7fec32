"""Finds the bounds of an AMQP message's sections without decoding their values."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from penstock_amqp.wire.types import Bytes, encode_list, read, skip
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
"""Encoded values of empty sections."""


def sections_of(message: bytes) -> Sections:
    """Split a message into its sections. Delivery annotations are dropped: they concern one hop.

    Raises ``RemoteProtocolViolation`` for sections that are unknown, out of order or truncated.
    """
    sections = Sections(body=[])
    offset, previous = 0, HEADER - 1
    while offset < len(message):
        code, begin = _descriptor(message, offset)
        end = skip(message, begin)
        is_body = DATA <= code <= VALUE
        if code < previous or (code == previous and (not is_body or code == VALUE)):
            raise RemoteProtocolViolation(
                f"section 0x{code:02x} follows section 0x{previous:02x}; sections must be in "
                "ascending order"
            )
        if is_body and DATA <= previous <= VALUE and code != previous:
            raise RemoteProtocolViolation("a message has body sections of several kinds")
        previous = code
        if is_body:
            sections.body.append((code, message[begin:end]))
        elif code != DELIVERY_ANNOTATIONS and message[begin:end] not in _EMPTY:
            setattr(sections, _FIELDS[code], message[begin:end])
        offset = end
    return sections


def _descriptor(message: bytes, offset: int) -> tuple[int, int]:
    """Return the code of the section at ``offset``, and the offset of its value. Raises
    ``RemoteProtocolViolation``."""
    # Nearly all senders use the short form of the descriptor: read it without the type system.
    if message[offset : offset + 2] == b"\x00\x53" and offset + 2 < len(message):
        code, begin = message[offset + 2], offset + 3
        if HEADER <= code <= FOOTER:
            return code, begin
    if message[offset] != 0:
        raise RemoteProtocolViolation("a message section has no descriptor")
    descriptor, begin = read(message, offset + 1)
    code = _NAMES.get(descriptor, -1) if isinstance(descriptor, str) else descriptor
    if not isinstance(code, int) or not HEADER <= code <= FOOTER:
        raise RemoteProtocolViolation(f"{str(descriptor)[:40]!r} is not a section of a message")
    return int(code), begin


def section_offsets(message: bytes) -> dict[int, int]:
    """Return the offset of each section's value, by code; if several sections have one code, that
    of the last one.

    The message must have passed :func:`sections_of`.
    """
    offsets = {}
    offset = 0
    while offset < len(message):
        code, begin = _descriptor(message, offset)
        offsets[code] = begin
        offset = skip(message, begin)
    return offsets


def field_offsets(message: bytes, offset: int) -> list[int]:
    """Return the offsets of the fields of a section that is a list and has been decoded before."""
    if message[offset] == 0x45:
        return []
    is_wide = message[offset] == 0xD0
    count = (
        int.from_bytes(message[offset + 5 : offset + 9], "big") if is_wide else message[offset + 2]
    )
    offset += 9 if is_wide else 3
    offsets = []
    for _ in range(count):
        offsets.append(offset)
        offset = skip(message, offset)
    return offsets


def fields(encoded: bytes) -> list[Any]:
    """Decode the fields of a section that is a list. Raises ``RemoteProtocolViolation``."""
    if not encoded:
        return []
    value, _ = read(encoded)
    if not isinstance(value, list):
        raise RemoteProtocolViolation(
            f"a message section is {type(value).__name__}, but must be a list"
        )
    return value


def entries(encoded: bytes) -> dict[Any, Any]:
    """Decode the entries of a section that is a map. Raises ``RemoteProtocolViolation``."""
    if not encoded:
        return {}
    value, _ = read(encoded)
    if not isinstance(value, dict):
        raise RemoteProtocolViolation(
            f"a message section is {type(value).__name__}, but must be a map"
        )
    return value


def section(code: int, encoded: Bytes) -> bytes:
    """Return an encoded section: the descriptor and the value."""
    return bytes((0x00, 0x53, code)) + encoded


def header_of(
    *, durable: bool, priority: int | None, ttl: int | None = None, deliveries: int = 0
) -> bytes:
    """Encode the header section; empty if all fields have their defaults."""
    values = [b"\x41" if durable else b"\x42"]
    values.append(b"\x40" if priority is None else bytes((0x50, priority)))
    values.append(b"\x40" if ttl is None else _encode_uint(ttl))
    values.append(b"\x40")  # first-acquirer is not stated
    values.append(_encode_uint(deliveries) if deliveries else b"\x40")
    while values and values[-1] == b"\x40":
        values.pop()
    if values == [b"\x42"]:  # durable is false by default (3.2.1)
        return b""
    return section(HEADER, encode_list(values))


def _encode_uint(value: int) -> bytes:
    if value < 256:
        return bytes((0x52, value))
    return b"\x70" + value.to_bytes(4, "big")
