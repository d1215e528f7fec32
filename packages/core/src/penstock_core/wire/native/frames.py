"""Frames of the native protocol, without I/O.

A connection starts with the client's eight bytes :data:`PREFACE`. Then, both ways, frames::

    u32 length of what follows | u32 length of the header | header (msgpack) | body (raw bytes)

all little endian. A body is one or more Arrow messages; the header has the length of each.
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
"""Bytes of the two lengths before the header."""
_CHUNK_BYTES_MIN = 4 << 10
"""Size of the receive buffer of a new connection."""
_CHUNK_BYTES_MAX = 256 << 10
"""Largest size of the receive buffer of a busy connection, unless a frame is larger."""
_JOIN_BELOW = 16 << 10
"""Buffers with fewer bytes than this are joined before they are sent."""
_COPY_BELOW = 64 << 10
"""A body with fewer bytes than this is copied out of the receive buffer, so that it does not keep
the whole buffer in memory."""


def frame(header: bytes, *bodies: bytes | bytearray | memoryview) -> list[bytes | memoryview]:
    """Return the buffers of one frame for a gathering write."""
    size = sum(map(len, bodies))
    prefix = _LENGTHS.pack(4 + len(header) + size, len(header)) + header
    if size == 0:
        return [prefix]
    # Copying a small body costs less than sending one more buffer.
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


def _receive_buffer(size: int) -> memoryview:
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
        self._buffer = _receive_buffer(self._chunk_bytes)
        self._start = 0
        self._end = 0
        self.bytes_in = 0
        """Number of bytes received so far."""
        self.holds_bytes = False
        """Whether received bytes have not been returned as frames yet."""

    @property
    def incomplete_bytes(self) -> int:
        """Size of the incomplete frame in bytes; 0 if no frame is incomplete, or if its length has
        not arrived."""
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
        # next_frame() refuses longer frames, so they must not claim memory first.
        return min(int(length), self.frame_bytes_max) + 4

    def _move(self, size: int) -> None:
        """Continue in a new buffer. Bodies that were handed out keep the old one alive."""
        unread = self._buffer[self._start : self._end]
        new_buffer = _receive_buffer(max(size, len(unread) + _CHUNK_BYTES_MIN))
        new_buffer[: len(unread)] = unread
        self._end -= self._start
        self._start = 0
        self._buffer = new_buffer

    def buffer_updated(self, count: int) -> None:
        """Record that ``count`` bytes were received into the memory of :meth:`get_buffer`."""
        self._end += count
        self.bytes_in += count
        self.holds_bytes = self._end > self._start

    def receive(self, received: bytes | bytearray | memoryview) -> None:
        """Add bytes that were received in another way (in-process transports, tests)."""
        remaining = memoryview(received)
        while remaining:
            free = self.get_buffer()
            part = remaining[: len(free)]
            free[: len(part)] = part
            self.buffer_updated(len(part))
            remaining = remaining[len(part) :]

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
        is_valid = header_length + 4 <= length <= self.frame_bytes_max
        if not is_valid or header_length > self._header_bytes_max:
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
        begun = bytes(self._buffer[self._start : min(self._end, self._start + len(self._preface))])
        if not self._preface.startswith(begun):
            # The last of the eight bytes is the version of the protocol.
            if begun[:7] == self._preface[:7]:
                raise RemoteProtocolViolation(
                    f"the peer speaks wire version {begun[7]}; this side speaks {self._preface[7]}"
                )
            raise RemoteProtocolViolation(
                f"a connection starts with {self._preface!r}, not {begun!r}: "
                "this is the native Penstock port"
            )
        if len(begun) < len(self._preface):
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
