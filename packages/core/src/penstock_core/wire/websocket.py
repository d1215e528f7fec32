"""WebSocket (RFC 6455) as a server speaks it: the answer to the handshake, and frames. Sans-IO."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from hashlib import sha1
from typing import Final, NamedTuple

from penstock_core.vocabulary.errors import RemoteProtocolViolation

VERSION: Final = "13"
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
NORMAL, PROTOCOL_ERROR, UNSUPPORTED_DATA = 1_000, 1_002, 1_003
"""Codes that a connection is closed with (7.4.1)."""
CONTROL_BYTES_MAX: Final = 125
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES: Final = 16
_OPCODES: Final = frozenset((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG))


class WebSocketViolation(RemoteProtocolViolation):
    """The peer broke the protocol; ``status`` is the code that its connection is closed with."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Piece(NamedTuple):
    """A part of what has come: of a message, or a whole control frame."""

    opcode: int
    """That of the message; never :data:`CONTINUATION`."""
    data: bytes


def is_key(text: str) -> bool:
    """Whether a text is a key of a handshake: 16 bytes in base64 (4.1)."""
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False


def answer_to(key: str) -> str:
    """What proves that a server has understood the handshake (4.2.2)."""
    return base64.b64encode(sha1(key.encode() + _GUID).digest()).decode()


def frame_bytes(opcode: int, payload: bytes) -> bytes:
    """A frame of a server, which is whole and not masked."""
    size = len(payload)
    if size <= CONTROL_BYTES_MAX:
        return bytes((0x80 | opcode, size)) + payload
    if size <= 0xFFFF:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2) + payload
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8) + payload


def close_bytes(status: int, reason: str = "") -> bytes:
    """The frame that closes a connection, with a reason of at most 123 bytes."""
    text = reason.encode()[: CONTROL_BYTES_MAX - 2].decode(errors="ignore")
    return frame_bytes(CLOSE, status.to_bytes(2) + text.encode())


class WebSocketReader:
    """Takes what a client sends apart. Data is given on as it comes, so that no frame is kept."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._message: int | None = None
        """The opcode of a message of which more frames are to come."""
        self._left = 0
        """Bytes of the present frame that are still to come."""
        self._opcode = BINARY
        self._mask = b""
        self._at = 0
        """How many bytes of the frame have come, so which of the mask is next."""

    def receive(self, data: bytes) -> None:
        """Add bytes that were received."""
        self._data += data

    def pieces(self) -> Iterator[Piece]:
        """What is there. Raises :class:`WebSocketViolation`."""
        while True:
            if self._left:
                if not self._data:
                    return
                yield Piece(self._opcode, self._unmasked(min(self._left, len(self._data))))
                continue
            head = self._head()
            if head is None:
                return
            opcode, size = head
            if opcode >= CLOSE:
                yield Piece(opcode, self._control(size))
            else:
                self._left, self._at = size, 0

    def _head(self) -> tuple[int, int] | None:
        """The opcode and size of the next frame; None: it is not there yet. A control frame is
        there once all of it is."""
        data = self._data
        if len(data) < 2:
            return None
        is_last, opcode, size = bool(data[0] & 0x80), data[0] & 0x0F, data[1] & 0x7F
        self._check(data[0], data[1], size)
        extra = {126: 2, 127: 8}.get(size, 0)
        head = 2 + extra + 4
        if len(data) < head:
            return None
        if extra:
            size = int.from_bytes(data[2 : 2 + extra])
            if size >> 63:
                raise WebSocketViolation(PROTOCOL_ERROR, "a frame is longer than frames may be")
        if opcode >= CLOSE and len(data) < head + size:
            return None
        self._mask = bytes(data[head - 4 : head])
        del data[:head]
        if opcode < CLOSE:
            self._begin(opcode, is_last=is_last)
        return opcode, size

    def _check(self, first: int, second: int, size: int) -> None:
        is_last, opcode = bool(first & 0x80), first & 0x0F
        if first & 0x70 or opcode not in _OPCODES:
            raise WebSocketViolation(PROTOCOL_ERROR, "a frame has bits or a type that nobody knows")
        if not second & 0x80:
            raise WebSocketViolation(PROTOCOL_ERROR, "a client masks its frames")
        if opcode >= CLOSE and (size > CONTROL_BYTES_MAX or not is_last):
            text = f"a control frame is whole and has at most {CONTROL_BYTES_MAX} bytes"
            raise WebSocketViolation(PROTOCOL_ERROR, text)

    def _begin(self, opcode: int, *, is_last: bool) -> None:
        if (opcode == CONTINUATION) != (self._message is not None):
            raise WebSocketViolation(PROTOCOL_ERROR, "messages are not in one another")
        self._opcode = opcode if self._message is None else self._message
        self._message = None if is_last else self._opcode

    def _control(self, size: int) -> bytes:
        self._left, self._at = size, 0
        return self._unmasked(size)

    def _unmasked(self, count: int) -> bytes:
        data, turn = bytes(self._data[:count]), self._at % 4
        del self._data[:count]
        self._left -= count
        self._at += count
        mask = (self._mask[turn:] + self._mask[:turn]) * (count // 4 + 1)
        return (int.from_bytes(data) ^ int.from_bytes(mask[:count])).to_bytes(count)
