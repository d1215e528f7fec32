"""Frames of AMQP in a stream of bytes: where they begin and end, and what the rare ones say.

The engine reads frames by itself and does not tell everything they say. What looks over its
shoulder must cost next to nothing for each message: of most frames no more is read than how long
they are and what they are called.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from penstock.core.vocabulary.errors import RemoteProtocolViolation
from penstock.wire.amqp.types import listed, read, written

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
"""Bytes of a frame up to the code of its performative, where that is written as short as it
can be."""
_HEAD: Final = Struct(">IB4xBB")
"""Length, where the body begins, and of its performative the constructor and the code."""
_SIZE: Final = Struct(">I")
_CHANNEL: Final = Struct(">H")


class Frame(NamedTuple):
    """One that is whole."""

    code: int
    channel: int
    raw: bytes
    value_at: int
    """Where the list of its fields begins in ``raw``."""

    @property
    def fields(self) -> list[Any]:
        """Raises ``RemoteProtocolViolation``."""
        values, _ = read(self.raw, self.value_at)
        if not isinstance(values, list):
            raise RemoteProtocolViolation("a performative must be a list")
        return values


class Frames:
    """The frames that come by one connection, from its protocol header on."""

    def __init__(self, wanted: frozenset[int], frame_bytes_max: int) -> None:
        """``wanted``: codes of the performatives that are told one by one."""
        self._wanted = wanted
        self._frame_bytes_max = frame_bytes_max
        self._left = PROTOCOL_HEADER
        """Bytes until the next frame begins."""
        self._held = b""
        """The beginning of a frame that is, or may be, wanted."""
        self._is_lost = False
        """Something came that is no frame: there is no telling where the next one begins."""

    def split(self, data: bytes) -> Iterator[tuple[bytes, Frame | None]]:
        """All bytes in order, in as few pieces as may be; those of a wanted frame by themselves,
        once it is whole."""
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
        """Where the first frame from ``at`` on begins that is to be looked at."""
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
        """Where the frame at ``at`` ends; 0: it is not all here, or there is none."""
        if at + _HEADER > len(data):
            return 0
        length = int(_SIZE.unpack_from(data, at)[0])
        if length != _HEADER and not _CODED <= length <= self._frame_bytes_max:
            self._is_lost = True
            return 0
        return at + length if at + length <= len(data) else 0


def frames_in(data: bytes, code: int) -> Iterator[Frame]:
    """Those with performative ``code`` of what is nothing but whole frames."""
    at = PROTOCOL_HEADER if data.startswith(b"AMQP") else 0
    while at + _HEADER <= len(data):
        end = at + int(_SIZE.unpack_from(data, at)[0])
        if end - at >= _CODED and data[at + 10] == code:
            found = frame_of(data[at:end])
            if found is not None and found.code == code:
                yield found
        at = max(end, at + _HEADER)


def frame_of(raw: bytes) -> Frame | None:
    """A frame that is whole; None where it has no performative that could be read."""
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
    """A flow frame; the values are of the classes of :mod:`penstock.wire.amqp.types`."""
    body = b"\x00\x53" + bytes((FLOW,)) + listed([written(value) for value in values])
    return _SIZE.pack(len(body) + _HEADER) + b"\x02\x00" + _CHANNEL.pack(channel) + body
