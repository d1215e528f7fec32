"""AMQP frames in a stream of bytes: finds their bounds, and decodes the rare ones of interest.

Proton reads frames itself, but does not expose all of their content. This second look must cost
very little per message, so only length and performative code are read of most frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from penstock_amqp.wire.types import listed, read, written
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
"""Bytes of a frame up to and including the code of its performative, in the shortest encoding."""
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
        """Decode the fields. Raises ``RemoteProtocolViolation``."""
        values, _ = read(self.raw, self.value_at)
        if not isinstance(values, list):
            raise RemoteProtocolViolation("a performative must be a list")
        return values


class Frames:
    """The frames received on one connection, from its protocol header on."""

    def __init__(self, wanted: frozenset[int], frame_bytes_max: int) -> None:
        """``wanted`` are the codes of performatives whose frames are returned individually."""
        self._wanted = wanted
        self._frame_bytes_max = frame_bytes_max
        self._left = PROTOCOL_HEADER
        """Bytes up to the start of the next frame."""
        self._held = b""
        """The first bytes of an incomplete frame that is, or may be, wanted."""
        self._is_lost = False
        """True after bytes that are not a frame: the start of the next frame is unknown then."""

    def split(self, data: bytes) -> Iterator[tuple[bytes, Frame | None]]:
        """Split received bytes into as few pieces as possible, in order.

        Each wanted frame is a piece of its own, returned when it is complete.
        """
        if self._is_lost:
            yield data, None
            return
        if self._held:
            data, self._held = self._held + data, b""
        begin, at = 0, self._left
        while end := self._end_of(data, at := self._passed(data, at)):
            frame = frame_of(data[at:end])
            if frame is not None and frame.code in self._wanted:
                if at > begin:
                    yield data[begin:at], None
                yield frame.raw, frame
                begin = end
            at = end
        if at < len(data) and not self._is_lost:
            self._held, self._left = data[at:], 0
            data = data[:at]
        else:
            self._left = at - len(data)
        if begin < len(data):
            yield data[begin:], None

    def _passed(self, data: bytes, at: int) -> int:
        """Offset of the first frame from ``at`` on that may be wanted."""
        wanted, most, head_of = self._wanted, self._frame_bytes_max, _HEAD.unpack_from
        last = len(data) - _CODED
        while at <= last:
            length, offset, constructor, code = head_of(data, at)
            if code in wanted or constructor != 0x53 or offset != 2:
                break
            if not _CODED <= length <= most:
                break
            at += length
        return at

    def _end_of(self, data: bytes, at: int) -> int:
        """Offset of the end of the frame at ``at``; 0 if it is incomplete, or not a frame."""
        if at + _HEADER > len(data):
            return 0
        length = int(_SIZE.unpack_from(data, at)[0])
        if length != _HEADER and not _CODED <= length <= self._frame_bytes_max:
            self._is_lost = True
            return 0
        return at + length if at + length <= len(data) else 0


def frames_in(data: bytes, code: int) -> Iterator[Frame]:
    """The frames with performative ``code`` in ``data``, which has only complete frames."""
    at = PROTOCOL_HEADER if data.startswith(b"AMQP") else 0
    while at + _HEADER <= len(data):
        end = at + int(_SIZE.unpack_from(data, at)[0])
        if end - at >= _CODED and data[at + 10] == code:
            found = frame_of(data[at:end])
            if found is not None and found.code == code:
                yield found
        at = max(end, at + _HEADER)


def frame_of(raw: bytes) -> Frame | None:
    """Decode a complete frame; None if it has no readable performative."""
    begin = 4 * raw[4]
    try:
        if begin < _HEADER or raw[5] != 0 or raw[begin] != 0:
            return None
        named, value_at = read(raw, begin + 1)
    except (IndexError, RemoteProtocolViolation):
        return None
    code = _NAMES.get(named, -1) if isinstance(named, str) else named
    if not isinstance(code, int) or value_at >= len(raw):
        return None
    return Frame(int(code), _CHANNEL.unpack_from(raw, 6)[0], raw, value_at)


def flow(channel: int, values: list[Any]) -> bytes:
    """Encode a flow frame; the values have the classes of :mod:`penstock_amqp.wire.types`."""
    body = b"\x00\x53" + bytes((FLOW,)) + listed([written(value) for value in values])
    return _SIZE.pack(len(body) + _HEADER) + b"\x02\x00" + _CHANNEL.pack(channel) + body
