"""Frames of the native protocol, without I/O.

A connection starts with the client's eight bytes :data:`PREFACE`. Then, both ways, frames::

    u32 length of what follows | u32 length of the header | header (msgpack) | body (raw bytes)

all little endian. A body is one or more Arrow messages; the header says where each ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np

from penstock_core.vocabulary.errors import RemoteProtocolViolation

PREFACE = b"PENSTCK\x01"
"""Protocol name and wire version. A server answers another version with an error and closes."""

FRAME_BYTES_MAX = 64 << 20
"""Largest frame in bytes that either side accepts. Larger publishes are staged in parts."""

_LENGTHS = struct.Struct("<II")
PREFIX_BYTES = _LENGTHS.size
_CHUNK_BYTES_MIN = 4 << 10
_CHUNK_BYTES_MAX = 256 << 10
_JOIN_BELOW = 16 << 10
_COPY_BELOW = 64 << 10
"""Bytes below which a body is copied out of the receive buffer, so that it does not pin it."""


def frame(header: bytes, *bodies: bytes | bytearray | memoryview) -> list[bytes | memoryview]:
    """Return the buffers of one frame for a gathering write."""
    size = sum(map(len, bodies))
    prefix = _LENGTHS.pack(4 + len(header) + size, len(header)) + header
    if size == 0:
        return [prefix]
    if size < _COPY_BELOW:
        return [b"".join((prefix, *bodies))]
    return [prefix, *(memoryview(body) for body in bodies if len(body))]


def coalesced(buffers: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of ``buffers`` in fewer pieces: adjacent small buffers are joined."""
    small: list[bytes | memoryview] = []
    for buffer in buffers:
        if len(buffer) < _JOIN_BELOW:
            small.append(buffer)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield buffer
    if small:
        yield b"".join(small)


def _room(size: int) -> memoryview:
    """Return a buffer for receiving. Unlike a ``bytearray``, it is not zeroed first."""
    return np.empty(size, np.uint8).data


class FrameReader:
    """Splits received bytes into frames.

    Made for ``asyncio.BufferedProtocol``: get memory from :meth:`get_buffer`, report the number
    of received bytes to :meth:`buffer_updated`, and read complete frames from :meth:`frames`. A
    large body is received in place, without a copy.
    """

    def __init__(
        self,
        *,
        preface: bytes = b"",
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self._preface = preface
        self._header_bytes_max = header_bytes_max
        self.frame_bytes_max = frame_bytes_max
        """Largest accepted frame in bytes; lower for peers that have not signed in yet."""
        self._chunk_bytes = _CHUNK_BYTES_MIN
        self._buffer = _room(self._chunk_bytes)
        self._start = 0
        self._end = 0
        self.bytes_in = 0
        self.holds_bytes = False
        """Whether received bytes have not been returned as frames yet."""

    @property
    def incomplete_bytes(self) -> int:
        """Size of the incomplete frame in bytes; 0 if there is none or its length has not
        arrived."""
        if self._preface or self._end - self._start < PREFIX_BYTES:
            return 0
        return self._needed()

    def get_buffer(self) -> memoryview:
        """Return memory for at least one byte."""
        needed = PREFIX_BYTES if self._end - self._start < PREFIX_BYTES else self._needed()
        if self._start + needed > len(self._buffer) or self._end == len(self._buffer):
            if self._end == len(self._buffer):  # full: a busy connection gets a larger one
                self._chunk_bytes = min(2 * self._chunk_bytes, _CHUNK_BYTES_MAX)
            self._move(max(needed, self._chunk_bytes))
        return self._buffer[self._end :]

    def _needed(self) -> int:
        """Return the size of the incomplete frame, as far as it is known."""
        if self._preface:
            return PREFIX_BYTES
        length, _ = _LENGTHS.unpack_from(self._buffer, self._start)
        return min(int(length), self.frame_bytes_max) + 4

    def _move(self, size: int) -> None:
        """Continue in a new buffer. Bodies that were handed out keep the old one alive."""
        rest = self._buffer[self._start : self._end]
        fresh = _room(max(size, len(rest) + _CHUNK_BYTES_MIN))
        fresh[: len(rest)] = rest
        self._end -= self._start
        self._start = 0
        self._buffer = fresh

    def buffer_updated(self, count: int) -> None:
        self._end += count
        self.bytes_in += count
        self.holds_bytes = self._end > self._start

    def receive(self, received: bytes | bytearray | memoryview) -> None:
        """Add bytes that were received in another way (in-process transports, tests)."""
        rest = memoryview(received)
        while rest:
            room = self.get_buffer()
            part = rest[: len(room)]
            room[: len(part)] = part
            self.buffer_updated(len(part))
            rest = rest[len(part) :]

    def frames(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Yield header and body of each complete frame. Raises ``RemoteProtocolViolation``."""
        while self.holds_bytes and (parts := self.next_frame()) is not None:
            yield parts

    def next_frame(self) -> tuple[memoryview, memoryview] | None:
        """Return header and body of the next frame, or None if it is not complete yet.

        Raises ``RemoteProtocolViolation``.
        """
        if self._preface and not self._take_preface():
            return None
        if self._end - self._start < PREFIX_BYTES:
            return None
        length, header_length = _LENGTHS.unpack_from(self._buffer, self._start)
        # `length` counts the 4 bytes of `header_length`, the header and the body.
        is_sound = header_length + 4 <= length <= self.frame_bytes_max
        if not is_sound or header_length > self._header_bytes_max:
            self._refuse(length, header_length)
        if self._end - self._start < 4 + length:
            return None
        begin = self._start + PREFIX_BYTES
        end = self._start + 4 + length
        self._start = end
        self.holds_bytes = end < self._end
        header = self._buffer[begin : begin + header_length]
        body = self._buffer[begin + header_length : end]
        if 0 < len(body) < _COPY_BELOW:
            body = memoryview(bytes(body))
        return header, body

    def _take_preface(self) -> bool:
        """Consume the preface. Return False if it has not arrived completely. Raises
        ``RemoteProtocolViolation`` for other bytes."""
        got = bytes(self._buffer[self._start : min(self._end, self._start + len(self._preface))])
        if not self._preface.startswith(got):
            if got[:7] == self._preface[:7]:
                raise RemoteProtocolViolation(
                    f"the peer speaks wire version {got[7]}; this side speaks {self._preface[7]}"
                )
            raise RemoteProtocolViolation(
                f"a connection starts with {self._preface!r}, not {got!r}: "
                "this is the native Penstock port"
            )
        if len(got) < len(self._preface):
            return False
        self._start += len(self._preface)
        self.holds_bytes = self._end > self._start
        self._preface = b""
        return True

    def _refuse(self, length: int, header_length: int) -> None:
        """Raise ``RemoteProtocolViolation`` for the lengths of a frame that is not acceptable."""
        if length > self.frame_bytes_max:
            raise RemoteProtocolViolation(
                f"a frame of {length} bytes was announced; {self.frame_bytes_max} are allowed"
            )
        if header_length + 4 > length:
            raise RemoteProtocolViolation(
                f"a header of {header_length} bytes does not fit a frame of {length}"
            )
        if header_length > self._header_bytes_max:
            raise RemoteProtocolViolation(
                f"a header of {header_length} bytes was announced; {self._header_bytes_max} are "
                "allowed, apart from the body"
            )
