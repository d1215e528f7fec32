"""SASL frames that a server reads and writes before an AMQP connection opens, without I/O."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from penstock_amqp.wire.types import (
    Bytes,
    Described,
    Symbol,
    UByte,
    encode,
    encode_list,
    encode_symbols,
    read,
)
from penstock_core.vocabulary.errors import RemoteProtocolViolation

PROTOCOL: Final = b"AMQP\x00\x01\x00\x00"
SASL_PROTOCOL: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8

OK: Final = 0
AUTH: Final = 1
"""Codes of the outcome of a sign-in: success, and failed authentication (5.3.3.6)."""

_FRAME_BYTES_MAX: Final = 16 << 10
"""Largest SASL frame in bytes. The standard's limit of 512 is too small for bearer tokens."""
_PIPELINED_BYTES_MAX: Final = 256 << 10
"""Maximum bytes that a client may send after its sign-in before it knows the outcome."""
_SASL: Final = 1


class Init(Struct, frozen=True):
    """The client's choice of a mechanism, with its first data."""

    mechanism: str
    response: bytes


class Response(Struct, frozen=True):
    """The client's answer to a challenge."""

    response: bytes


class SaslFrames:
    """Splits the bytes from a client into SASL frames."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: Bytes) -> None:
        """Add received bytes. Raises ``RemoteProtocolViolation`` above the limit."""
        self._data += data
        if len(self._data) > _PIPELINED_BYTES_MAX:
            raise RemoteProtocolViolation("the client sent more bytes than a sign-in needs")

    def header(self) -> bytes | None:
        """Remove and return the protocol header; None until it is complete. Raises
        ``RemoteProtocolViolation``."""
        prefix = self._data[:4]
        if prefix != b"AMQP"[: len(prefix)]:
            raise RemoteProtocolViolation(
                "this is not AMQP: the first bytes are not an AMQP protocol header"
            )
        if len(self._data) < HEADER_BYTES:
            return None
        header, self._data = self._data[:HEADER_BYTES], self._data[HEADER_BYTES:]
        return header

    def frame(self) -> Init | Response | None:
        """Remove and return the next frame; None until it is complete. Raises
        ``RemoteProtocolViolation``."""
        if len(self._data) < 8:
            return None
        size = int.from_bytes(self._data[:4], "big")
        if not 8 < size <= _FRAME_BYTES_MAX:
            raise RemoteProtocolViolation(
                f"a SASL frame has {size} bytes; allowed are 9 to {_FRAME_BYTES_MAX}"
            )
        if len(self._data) < size:
            return None
        frame, self._data = self._data[:size], self._data[size:]
        begin = 4 * frame[4]
        if frame[5] != _SASL or not 8 <= begin < size:
            raise RemoteProtocolViolation("only SASL frames are allowed during the sign-in")
        return _performative(read(frame, begin)[0])

    def rest(self) -> bytes:
        """Remove and return the bytes received after the sign-in."""
        remaining, self._data = self._data, b""
        return remaining


def _performative(value: Any) -> Init | Response:
    """Return the content of a client's SASL frame. Raises ``RemoteProtocolViolation`` for other
    values."""
    if isinstance(value, Described) and isinstance(value.value, list):
        code, fields = value.descriptor, value.value
        if code in (0x41, "amqp:sasl-init:list") and fields:
            response = fields[1] if len(fields) > 1 else None
            if isinstance(fields[0], Symbol) and isinstance(response, bytes | None):
                return Init(str(fields[0]), response or b"")
        if code in (0x43, "amqp:sasl-response:list") and fields and isinstance(fields[0], bytes):
            return Response(fields[0])
    raise RemoteProtocolViolation("a client may not send this performative during sign-in")


def mechanisms(names: list[str]) -> bytes:
    """Encode the frame that offers the mechanisms."""
    return _frame(0x40, [encode_symbols(names)])


def challenge(data: bytes) -> bytes:
    """Encode the frame with a challenge to the client."""
    return _frame(0x42, [encode(data)])


def outcome(code: int, data: bytes | None = None) -> bytes:
    """Encode the frame with the outcome of the sign-in."""
    return _frame(0x44, [encode(UByte(code))] + ([encode(data)] if data else []))


def _frame(code: int, values: list[bytes]) -> bytes:
    """Return a SASL frame with these encoded fields."""
    body = bytes((0x00, 0x53, code)) + encode_list(values)
    return (len(body) + 8).to_bytes(4, "big") + bytes((2, _SASL, 0, 0)) + body
