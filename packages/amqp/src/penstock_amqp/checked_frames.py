"""Frames that the gate has checked: others that differ from one of them in two numbers or texts at
most are as good, and are compared with it, many at once."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from penstock_amqp.wire.performatives import TRANSFER, Performative
from penstock_amqp.wire.sections import field_offsets

LIKENESSES_MAX: Final = 256
"""Most checked frames that are remembered; the peer decides how many kinds there are."""
LIKE_BYTES_MAX: Final = 512
"""Largest performative in bytes that is remembered: an outcome may carry the rest of a frame."""
_LIKE_BYTES_MIN: Final = 16
_FEW: Final = 16
_MANY: Final = 4_096
"""Most frames compared at once. It begins with few, because most may differ."""
_HALF: Final = 1 << 31
_HEADER_BYTES: Final = 8
_NULL: Final = 0x40


class DeliveryIds(Struct):
    """The ids of the deliveries that the peer sends in one session: each is one more than the
    last."""

    next_id: int | None = None
    """Id of the next delivery; None before the first one."""

    def used(self, count: int) -> None:
        assert self.next_id is not None, "there was a delivery"
        self.next_id = (self.next_id + count) % (2 * _HALF)


class _Likeness(NamedTuple):
    """A checked frame. Offsets count from the beginning of a frame."""

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
    """The ids that the first number of a transfer is one of; None for a disposition, whose second
    number ends a range that the first one begins."""


class CheckedFrames:
    """The frames that were checked on one connection."""

    def __init__(self) -> None:
        self._likenesses: dict[bytes, _Likeness] = {}

    def __len__(self) -> int:
        return len(self._likenesses)

    def clear(self) -> None:
        """Forget all: sessions or links have changed."""
        self._likenesses.clear()

    def alike(self, data: bytes, at: int, size: int, end: int) -> int:
        """How many frames from an offset on are as good as one that was checked."""
        like = self._likenesses.get(data[at + 4 : at + 16])
        if like is None or not _is_like(data, at, like):
            return 0
        begin, ahead = data[at : at + 16], at + 3 * size
        count = 0
        if (
            end - ahead < size
            or data[ahead : ahead + 16] != begin
            or data[at + size : at + size + 16] != begin
        ):
            count = 1  # more are compared at once only if there are probably more
        else:
            first, step = np.frombuffer(data, np.uint8, like.end, at), _FEW
            while step := min(step, (end - at) // size - count):
                rows = np.frombuffer(data, np.uint8, step * size, at + count * size)
                alike = _alike_in(rows.reshape(step, size)[:, : like.end], first, like, count)
                count += alike
                if alike < step:
                    break
                step = min(4 * step, _MANY)
        if like.ids is not None:
            like.ids.used(count)
        return count

    def learn(self, found: Performative, frame: bytes, ids: DeliveryIds | None) -> None:
        """Remember a transfer or disposition that has passed, and is all of its delivery."""
        if len(frame) < _LIKE_BYTES_MIN or found.end > LIKE_BYTES_MAX:
            return
        places = [_HEADER_BYTES + place for place in field_offsets(frame[8:], found.begin)]
        is_transfer = found.code == TRANSFER
        if len(places) < (3 if is_transfer else 2):
            return
        if is_transfer and _NULL in (frame[places[1]], frame[places[2]]):
            return  # the rest of a delivery
        first = _free(frame, places[1])
        second = (first[1], first[1])
        if len(places) > 2:
            second = _free(frame, places[2])
        like = _Likeness(
            frame[4 : first[0]],
            *first,
            frame[first[1] : second[0]],
            *second,
            frame[second[1] : 8 + found.end],
            8 + found.end,
            ids,
        )
        if len(self._likenesses) >= LIKENESSES_MAX:
            self._likenesses.clear()
        self._likenesses[frame[4:16]] = like


def _is_like(data: bytes, at: int, like: _Likeness) -> bool:
    if (
        data[at + 4 : at + like.first_at] != like.head
        or data[at + like.first_end : at + like.second_at] != like.middle
        or data[at + like.second_end : at + like.end] != like.tail
    ):
        return False
    first = int.from_bytes(data[at + like.first_at : at + like.first_end], "big")
    if like.ids is not None:
        return first == like.ids.next_id
    if like.second_at == like.second_end:
        return True
    second = int.from_bytes(data[at + like.second_at : at + like.second_end], "big")
    return (second - first) % (2 * _HALF) < _HALF


def _alike_in(rows: Any, good: Any, like: _Likeness, before: int) -> int:
    """How many rows equal the good one, up to the first that does not; ``before`` such rows have
    come before these."""
    same = rows == good
    same[:, like.first_at : like.first_end] = True
    same[:, like.second_at : like.second_end] = True
    are = same.all(axis=1)
    first = _numbers(rows[:, like.first_at : like.first_end])
    if like.ids is not None:
        expected = np.arange(len(rows), dtype=np.uint32)
        expected += np.uint32(((like.ids.next_id or 0) + before) % (2 * _HALF))
        are &= first == expected
    elif like.second_at < like.second_end:
        are &= _numbers(rows[:, like.second_at : like.second_end]) - first < _HALF
    return len(are) if are.all() else int(are.argmin())


def _numbers(rows: Any) -> Any:
    """The numbers that are written in rows of 0, 1 or 4 bytes."""
    match rows.shape[1]:
        case 0:
            return np.zeros(len(rows), np.uint32)
        case 1:
            return rows[:, 0].astype(np.uint32)
        case _:
            return np.ascontiguousarray(rows).view(">u4")[:, 0].astype(np.uint32)


def _free(frame: bytes, at: int) -> tuple[int, int]:
    """Where the variable bytes of a number or tag begin and end."""
    code = frame[at]
    if code == 0x70:
        return at + 1, at + 5
    if code == 0x52:
        return at + 1, at + 2
    if code == 0xA0:
        return at + 2, at + 2 + frame[at + 1]
    return at + 1, at + 1
