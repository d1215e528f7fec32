"""Encodes AMQP frames as a client does, for tests that need slightly wrong ones."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from penstock_amqp.wire.sections import section
from penstock_amqp.wire.types import (
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    encode,
    encode_list,
    encode_symbols,
)

SASL: Final = b"AMQP\x03\x01\x00\x00"
AMQP: Final = b"AMQP\x00\x01\x00\x00"

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
COORDINATOR, DECLARE, DISCHARGE, TRANSACTIONAL = 0x30, 0x31, 0x32, 0x34
ACCEPTED, MODIFIED = 0x24, 0x27
SASL_INIT: Final = 0x41


def performative(code: int, *values: bytes) -> bytes:
    """Return a described list of the standard; its fields are already encoded."""
    return b"\x00" + encode(ULong(code)) + encode_list(list(values))


def frame(body: bytes, *, channel: int = 0, kind: int = 0) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + bytes((2, kind)) + channel.to_bytes(2, "big") + body


NULL: Final = b"\x40"
YES: Final = b"\x41"
NO: Final = b"\x42"


def frame_of(code: int, *values: Any, payload: bytes = b"") -> bytes:
    """Return a frame of channel 0. Python values are encoded; those in ``Raw`` already are."""
    encoded = [value.data if isinstance(value, Raw) else encode(value) for value in values]
    return frame(performative(code, *encoded) + payload)


class Raw:
    """A value that is already encoded."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def terminus(code: int, address: str | Raw | None, *more: Any, capability: str = "") -> Raw:
    """Return a source (0x28) or target (0x29): address, durable, expiry, timeout, dynamic,
    properties, and the fields that only one of them has."""
    encoded = [
        field.data if isinstance(field, Raw) else encode(field) for field in (address, *more)
    ]
    if capability:
        last = 9 if code == 0x28 else 6
        encoded += [NULL] * (last - len(encoded) + (code == 0x28))
        encoded.append(encode_symbols([capability]))
    return Raw(performative(code, *encoded))


def opened(container: str = "fuzz") -> bytes:
    """Return all frames up to a session, without SASL."""
    return (
        AMQP
        + frame_of(OPEN, container, "host", UInt(65_536), UShort(10), UInt(30_000))
        + frame_of(BEGIN, None, UInt(0), UInt(2_048), UInt(2_048))
    )


def sender(name: str | Raw, handle: int, target: Raw) -> bytes:
    return frame_of(ATTACH, name, UInt(handle), False, UByte(0), UByte(0), terminus(0x28, "c"),
                    target, None, None, UInt(0))  # fmt: skip


def receiver(name: str, handle: int, source: Raw, credit: int = 10) -> bytes:
    attach = frame_of(
        ATTACH, name, UInt(handle), True, UByte(0), UByte(0), source, terminus(0x29, "c")
    )
    return attach + flow(handle, credit)


def flow(handle: int, credit: int, *, drain: bool = False) -> bytes:
    window = (UInt(0), UInt(2_048), UInt(0), UInt(2_048))
    return frame_of(FLOW, *window, UInt(handle), UInt(0), UInt(credit), None, drain)


def transfer(
    handle: int, number: int, message: bytes, *, more: bool = False, state: Any = None
) -> bytes:
    tag = b"%d" % number
    return frame_of(TRANSFER, UInt(handle), UInt(number), tag, UInt(0), False, more, None, state,
                    payload=message)  # fmt: skip


def message(*, to: str | None = None, body: Any = "text") -> bytes:
    """Return a message with all sections."""
    properties: list[Any] = [
        "id",
        b"user",
        to,
        "subject",
        "answers",
        ULong(7),
        Symbol("text/plain"),
    ]
    properties += [None, Timestamp(2_000_000_000_000), Timestamp(1_700_000_000_000), "g", UInt(1)]
    mine = {"n": 3, "text": "t", "half": 0.5, "yes": True, "none": None, "u": UUID(int=5)}
    return b"".join(
        (
            section(0x70, performative(0x70, YES, encode(UByte(7)), encode(UInt(60_000)))[3:]),
            section(0x72, encode({Symbol("x-opt-jms-dest"): UByte(0)})),
            section(0x73, encode(properties)),
            section(0x74, encode(mine)),
            section(0x77, encode(body)),
            section(0x78, encode({Symbol("x-opt-sum"): b"abc"})),
        )
    )
