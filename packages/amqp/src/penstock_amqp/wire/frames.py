"""Splits a stream of bytes into AMQP frames, and decodes the few that the caller needs.

Proton reads frames itself, but does not expose all of their content. This second pass must cost
very little per message, so it reads only the length and the performative code of most frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from penstock_amqp.wire.types import encode, encode_list, read
from penstock_core.vocabulary.errors import RemoteProtocolViolation

BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
END: Final = 0x17

_NAMES: Final = {
    "amqp:begin:list": BEGIN,
    "amqp:attach:list": ATTACH,
    "amqp:flow:list": FLOW,
    "amqp:end:list": END,
}

PROTOCOL_HEADER: Final = 8
_HEADER: Final = 8
_CODED: Final = 11
"""Size in bytes of a frame up to and including the code of its performative, in the shortest
encoding."""
_HEAD: Final = Struct(">IB4xBB")
"""Length, offset of the body, and constructor and code of the performative."""
_SIZE: Final = Struct(">I")
_CHANNEL: Final = Struct(">H")


class Frame(NamedTuple):
    """A complete frame."""

    code: int
    channel: int
    raw: bytes
    value_at: int
    """Offset of the list of its fields in ``raw``."""

    @property
    def fields(self) -> list[Any]:
        """The decoded fields. Raises ``RemoteProtocolViolation``."""
        values, _ = read(self.raw, self.value_at)
        if not isinstance(values, list):
            raise RemoteProtocolViolation("a performative must be a list")
        return values


class Frames:
    """Splits the bytes received on one connection, starting with its protocol header."""

    def __init__(self, wanted: frozenset[int], frame_bytes_max: int) -> None:
        """``wanted`` contains the codes of performatives whose frames are returned individually."""
        self._wanted = wanted
        self._frame_bytes_max = frame_bytes_max
        self._bytes_to_next = PROTOCOL_HEADER
        """Bytes up to the start of the next frame."""
        self._partial_frame = b""
        """First bytes of an incomplete frame that may be wanted."""
        self._is_lost = False
        """True after bytes that are not a frame: the start of the next frame is unknown then."""

    def split(self, data: bytes) -> Iterator[tuple[bytes, Frame | None]]:
        """Split received bytes into as few chunks as possible, in order.

        Each wanted frame is a separate chunk, returned when it is complete.
        """
        if self._is_lost:
            yield data, None
            return
        if self._partial_frame:
            data, self._partial_frame = self._partial_frame + data, b""
        begin, offset = 0, self._bytes_to_next
        while end := self._end_of(data, offset := self._skip_unwanted(data, offset)):
            frame = frame_of(data[offset:end])
            if frame is not None and frame.code in self._wanted:
                if offset > begin:
                    yield data[begin:offset], None
                yield frame.raw, frame
                begin = end
            offset = end
        if offset < len(data) and not self._is_lost:
            self._partial_frame, self._bytes_to_next = data[offset:], 0
            data = data[:offset]
        else:
            self._bytes_to_next = offset - len(data)
        if begin < len(data):
            yield data[begin:], None

    def _skip_unwanted(self, data: bytes, offset: int) -> int:
        """Return the offset of the first frame at or after ``offset`` that may be wanted."""
        # Runs once per frame of a stream of messages: one unpack and no object per frame.
        wanted, length_max, head_of = self._wanted, self._frame_bytes_max, _HEAD.unpack_from
        last = len(data) - _CODED
        while offset <= last:
            length, body_offset, constructor, code = head_of(data, offset)
            # Longer encodings of the code or header are rare; the caller decodes those in full.
            if code in wanted or constructor != 0x53 or body_offset != 2:
                break
            if not _CODED <= length <= length_max:
                break
            offset += length
        return offset

    def _end_of(self, data: bytes, offset: int) -> int:
        """Return the offset of the end of the frame at ``offset``; 0 if it is incomplete or not a
        frame."""
        if offset + _HEADER > len(data):
            return 0
        length = int(_SIZE.unpack_from(data, offset)[0])
        # A frame of 8 bytes is empty: it only keeps the connection alive.
        if length != _HEADER and not _CODED <= length <= self._frame_bytes_max:
            self._is_lost = True
            return 0
        return offset + length if offset + length <= len(data) else 0


def frames_in(data: bytes, code: int) -> Iterator[Frame]:
    """Return the frames with performative ``code``. ``data`` contains only complete frames."""
    offset = PROTOCOL_HEADER if data.startswith(b"AMQP") else 0
    while offset + _HEADER <= len(data):
        end = offset + int(_SIZE.unpack_from(data, offset)[0])
        if end - offset >= _CODED and data[offset + 10] == code:
            frame = frame_of(data[offset:end])
            if frame is not None and frame.code == code:
                yield frame
        offset = max(end, offset + _HEADER)


def frame_of(raw: bytes) -> Frame | None:
    """Decode a complete frame; None if it has no readable performative."""
    begin = 4 * raw[4]
    try:
        if begin < _HEADER or raw[5] != 0 or raw[begin] != 0:
            return None
        descriptor, value_at = read(raw, begin + 1)
    except (IndexError, RemoteProtocolViolation):
        return None
    code = _NAMES.get(descriptor, -1) if isinstance(descriptor, str) else descriptor
    if not isinstance(code, int) or value_at >= len(raw):
        return None
    return Frame(int(code), _CHANNEL.unpack_from(raw, 6)[0], raw, value_at)


def flow(channel: int, values: list[Any]) -> bytes:
    """Encode a flow frame; the values have the classes of :mod:`penstock_amqp.wire.types`."""
    body = b"\x00\x53" + bytes((FLOW,)) + encode_list([encode(value) for value in values])
    return _SIZE.pack(len(body) + _HEADER) + b"\x02\x00" + _CHANNEL.pack(channel) + body
