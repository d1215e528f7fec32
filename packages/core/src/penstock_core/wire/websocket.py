"""The server's side of WebSocket (RFC 6455) without I/O: the answer to the handshake, and
frames."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from hashlib import sha1
from typing import Final, NamedTuple

import numpy as np

from penstock_core.vocabulary.errors import RemoteProtocolViolation

VERSION: Final = "13"
"""The version of the protocol in the handshake."""
# Types of frames (5.2).
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
NORMAL, PROTOCOL_ERROR, UNSUPPORTED_DATA = 1_000, 1_002, 1_003
"""Status codes of closing frames (7.4.1)."""
CONTROL_BYTES_MAX: Final = 125
"""Maximum length of a control frame, and of a frame whose length takes one byte (5.2, 5.5)."""
# The RFC defines this text, which is joined to the key of the handshake (1.3).
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES: Final = 16
_MASK_BYTES: Final = 4
_WORD_BYTES: Final = 8
_WORDS_FROM_BYTES: Final = 512
"""Size in bytes from which it is faster to unmask words of an array than one large integer."""
_OPCODES: Final = frozenset((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG))


class WebSocketViolation(RemoteProtocolViolation):
    """The peer violated the protocol; ``status`` is the status code of the closing frame."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Piece(NamedTuple):
    """A part of a received message, or a complete control frame."""

    opcode: int
    """The opcode of the message or control frame; never :data:`CONTINUATION`."""
    data: bytes


def is_key(text: str) -> bool:
    """Whether a text is a key of a handshake: 16 bytes in base64 (4.1)."""
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False


def answer_to(key: str) -> str:
    """Return the header value with which a server accepts the handshake (4.2.2)."""
    return base64.b64encode(sha1(key.encode() + _GUID).digest()).decode()


def frame_bytes(opcode: int, payload: bytes) -> bytes:
    """Return a frame of a server; it is final and not masked."""
    size = len(payload)
    if size <= CONTROL_BYTES_MAX:
        return bytes((0x80 | opcode, size)) + payload
    if size <= 0xFFFF:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2) + payload
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8) + payload


def close_bytes(status: int, reason: str = "") -> bytes:
    """Return a closing frame; the reason is truncated to 123 bytes."""
    text = reason.encode()[: CONTROL_BYTES_MAX - 2].decode(errors="ignore")
    return frame_bytes(CLOSE, status.to_bytes(2) + text.encode())


class WebSocketReader:
    """Parses the bytes of a client. Data is returned as it arrives, so that frames are not
    buffered."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._message: int | None = None
        """The opcode of an incomplete message; None between messages."""
        self._remaining = 0
        """Bytes of the current frame that have not arrived yet."""
        self._opcode = BINARY
        self._mask = b""
        self._at = 0
        """Number of received bytes of the current frame, which determines the next byte of the
        mask."""

    def receive(self, data: bytes) -> None:
        """Add bytes that were received."""
        self._data += data

    def pieces(self) -> Iterator[Piece]:
        """Yield the received pieces. Raises :class:`WebSocketViolation`."""
        while True:
            if self._remaining:
                if not self._data:
                    return
                yield Piece(self._opcode, self._unmasked(min(self._remaining, len(self._data))))
                continue
            head = self._head()
            if head is None:
                return
            opcode, size = head
            if opcode >= CLOSE:
                yield Piece(opcode, self._control(size))
            else:
                self._remaining, self._at = size, 0

    def _head(self) -> tuple[int, int] | None:
        """Return opcode and size of the next frame, or None if its head has not arrived. A control
        frame must have arrived completely."""
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
                raise WebSocketViolation(PROTOCOL_ERROR, "a frame is longer than 2^63 - 1 bytes")
        # Checked before the head is removed, so that the next call reads it again.
        if opcode >= CLOSE and len(data) < head + size:
            return None
        self._mask = bytes(data[head - 4 : head])
        del data[:head]
        if opcode < CLOSE:
            self._begin(opcode, is_last=is_last)
        return opcode, size

    def _check(self, first: int, second: int, size: int) -> None:
        """Raise :class:`WebSocketViolation` for a frame header that a client may not send."""
        is_last, opcode = bool(first & 0x80), first & 0x0F
        if first & 0x70 or opcode not in _OPCODES:
            raise WebSocketViolation(PROTOCOL_ERROR, "a frame has unknown bits or an unknown type")
        if not second & 0x80:
            raise WebSocketViolation(PROTOCOL_ERROR, "a client must mask its frames")
        if opcode >= CLOSE and (size > CONTROL_BYTES_MAX or not is_last):
            text = f"a control frame must be final and have at most {CONTROL_BYTES_MAX} bytes"
            raise WebSocketViolation(PROTOCOL_ERROR, text)

    def _begin(self, opcode: int, *, is_last: bool) -> None:
        """Begin or continue a message. Raises :class:`WebSocketViolation` if the frame does not
        follow the previous one."""
        if (opcode == CONTINUATION) != (self._message is not None):
            raise WebSocketViolation(
                PROTOCOL_ERROR,
                "a message began within another message, or continued without a beginning",
            )
        self._opcode = opcode if self._message is None else self._message
        self._message = None if is_last else self._opcode

    def _control(self, size: int) -> bytes:
        """Return the content of a control frame, which may come between frames of a message."""
        self._remaining, self._at = size, 0
        return self._unmasked(size)

    def _unmasked(self, count: int) -> bytes:
        """Remove the next ``count`` bytes of the current frame and return them without the mask."""
        masked, turn = self._data[:count], self._at % _MASK_BYTES
        del self._data[:count]
        self._remaining -= count
        self._at += count
        return _without_mask(masked, self._mask[turn:] + self._mask[:turn])


def _without_mask(masked: bytearray, mask: bytes) -> bytes:
    """Return data without the mask that is repeated over it."""
    size = len(masked)
    if size < _WORDS_FROM_BYTES:
        repeated = mask * (size // _MASK_BYTES + 1)
        return (int.from_bytes(masked) ^ int.from_bytes(repeated[:size])).to_bytes(size)
    masked += bytes(-size % _WORD_BYTES)
    word = np.frombuffer(mask * (_WORD_BYTES // _MASK_BYTES), np.uint64)
    return (np.frombuffer(masked, np.uint64) ^ word).tobytes()[:size]
