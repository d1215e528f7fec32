"""Recognizes frames that need no full check, because they differ from a checked frame only in two
numbers or tags. Many frames are compared at once, with numpy."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from penstock_amqp.wire.performatives import TRANSFER, Performative
from penstock_amqp.wire.sections import field_offsets

LIKENESSES_MAX: Final = 256
"""Maximum number of checked frames that are kept; without it, the peer would decide the number."""
LIKE_BYTES_MAX: Final = 512
"""Largest performative kept, in bytes: the outcome in it can be as long as a frame."""
_LIKE_BYTES_MIN: Final = 16
_FIRST_ROWS: Final = 16
_MOST_ROWS: Final = 4_096
"""Number of frames compared in the first step, and the largest number in a later step. The first
step is small because the next frames may differ."""
_HALF: Final = 1 << 31
_HEADER_BYTES: Final = 8
_NULL: Final = 0x40


class DeliveryIds(Struct):
    """The ids of the deliveries that the peer sends in one session; they are consecutive."""

    next_id: int | None = None
    """Id of the next delivery; None before the first delivery."""

    def advance(self, count: int) -> None:
        """Move the next id past ``count`` deliveries; ids are 32-bit serial numbers."""
        assert self.next_id is not None, "called after a delivery with an id"
        self.next_id = (self.next_id + count) % (2 * _HALF)


class _KnownFrame(NamedTuple):
    """A checked frame, split around its variable bytes. Offsets count from the frame's start."""

    head: bytes
    """The frame's first bytes, after its size."""
    first_at: int
    first_end: int
    middle: bytes
    second_at: int
    second_end: int
    tail: bytes
    end: int
    ids: DeliveryIds | None
    """The session's delivery ids if the frame is a transfer, whose first number is one of them.
    None for a disposition, whose two numbers are the ends of a range."""


class CheckedFrames:
    """The checked frames of one connection."""

    def __init__(self) -> None:
        self._likenesses: dict[bytes, _KnownFrame] = {}

    def __len__(self) -> int:
        return len(self._likenesses)

    def clear(self) -> None:
        """Drop all frames, because sessions or links have changed."""
        self._likenesses.clear()

    def count_equal(self, data: bytes, offset: int, size: int, end: int) -> int:
        """Return the number of consecutive frames from ``offset`` on that match a checked frame."""
        # The key has the channel, the descriptor and the head of the list; the frame's size, which
        # the key leaves out, depends on the payload.
        known_frame = self._likenesses.get(data[offset + 4 : offset + 16])
        if known_frame is None or not _matches(data, offset, known_frame):
            return 0
        first_bytes, third_offset = data[offset : offset + 16], offset + 3 * size
        count = 0
        # If the second or the fourth frame differs, only one frame is counted here.
        if (
            end - third_offset < size
            or data[third_offset : third_offset + 16] != first_bytes
            or data[offset + size : offset + size + 16] != first_bytes
        ):
            count = 1  # few similar frames follow, so numpy would cost more than it saves
        else:
            first, step = np.frombuffer(data, np.uint8, known_frame.end, offset), _FIRST_ROWS
            while step := min(step, (end - offset) // size - count):
                rows = np.frombuffer(data, np.uint8, step * size, offset + count * size)
                equal_count = _count_matches(
                    rows.reshape(step, size)[:, : known_frame.end], first, known_frame, count
                )
                count += equal_count
                if equal_count < step:
                    break
                step = min(4 * step, _MOST_ROWS)
        if known_frame.ids is not None:
            known_frame.ids.advance(count)
        return count

    def learn(self, performative: Performative, frame: bytes, ids: DeliveryIds | None) -> None:
        """Keep a valid disposition, or a valid transfer that is a whole delivery."""
        if len(frame) < _LIKE_BYTES_MIN or performative.end > LIKE_BYTES_MAX:
            return
        offsets = [
            _HEADER_BYTES + field_offset
            for field_offset in field_offsets(frame[8:], performative.begin)
        ]
        is_transfer = performative.code == TRANSFER
        if len(offsets) < (3 if is_transfer else 2):
            return
        if is_transfer and _NULL in (frame[offsets[1]], frame[offsets[2]]):
            return  # without id or tag: not the first transfer of its delivery
        first = _variable_bytes(frame, offsets[1])
        second = (first[1], first[1])
        if len(offsets) > 2:
            second = _variable_bytes(frame, offsets[2])
        known_frame = _KnownFrame(
            frame[4 : first[0]],
            *first,
            frame[first[1] : second[0]],
            *second,
            frame[second[1] : 8 + performative.end],
            8 + performative.end,
            ids,
        )
        if len(self._likenesses) >= LIKENESSES_MAX:  # frames in use are learned again immediately
            self._likenesses.clear()
        self._likenesses[frame[4:16]] = known_frame


def _matches(data: bytes, offset: int, known_frame: _KnownFrame) -> bool:
    """Return True if the frame at ``offset`` equals a checked frame except for its variable bytes,
    and if these are valid: the next delivery id, or a range whose end is not before its start."""
    if (
        data[offset + 4 : offset + known_frame.first_at] != known_frame.head
        or data[offset + known_frame.first_end : offset + known_frame.second_at]
        != known_frame.middle
        or data[offset + known_frame.second_end : offset + known_frame.end] != known_frame.tail
    ):
        return False
    first = int.from_bytes(
        data[offset + known_frame.first_at : offset + known_frame.first_end], "big"
    )
    if known_frame.ids is not None:
        return first == known_frame.ids.next_id
    if known_frame.second_at == known_frame.second_end:
        return True
    second = int.from_bytes(
        data[offset + known_frame.second_at : offset + known_frame.second_end], "big"
    )
    return (second - first) % (2 * _HALF) < _HALF


def _count_matches(rows: Any, model: Any, known_frame: _KnownFrame, count_before: int) -> int:
    """Return the number of leading rows that match ``model``. ``count_before`` rows have matched
    before them, which matters for the delivery ids."""
    is_equal = rows == model
    is_equal[:, known_frame.first_at : known_frame.first_end] = True
    is_equal[:, known_frame.second_at : known_frame.second_end] = True
    matches = is_equal.all(axis=1)
    first = _decode_numbers(rows[:, known_frame.first_at : known_frame.first_end])
    if known_frame.ids is not None:
        expected = np.arange(len(rows), dtype=np.uint32)
        expected += np.uint32(((known_frame.ids.next_id or 0) + count_before) % (2 * _HALF))
        matches &= first == expected
    elif known_frame.second_at < known_frame.second_end:
        matches &= (
            _decode_numbers(rows[:, known_frame.second_at : known_frame.second_end]) - first < _HALF
        )
    return len(matches) if matches.all() else int(matches.argmin())


def _decode_numbers(rows: Any) -> Any:
    """Decode a big-endian number from each row of 0, 1 or 4 bytes."""
    match rows.shape[1]:
        case 0:
            return np.zeros(len(rows), np.uint32)
        case 1:
            return rows[:, 0].astype(np.uint32)
        case _:
            return np.ascontiguousarray(rows).view(">u4")[:, 0].astype(np.uint32)


def _variable_bytes(frame: bytes, offset: int) -> tuple[int, int]:
    """Return begin and end of the variable bytes of a number or tag."""
    code = frame[offset]
    # A uint has 4 bytes, a smalluint 1, and a tag (vbin8) states its length in 1 byte. All other
    # codes, such as uint0, have none.
    if code == 0x70:
        return offset + 1, offset + 5
    if code == 0x52:
        return offset + 1, offset + 2
    if code == 0xA0:
        return offset + 2, offset + 2 + frame[offset + 1]
    return offset + 1, offset + 1
