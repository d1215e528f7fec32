"""Frames, the messages of a journal's stream: their bytes, and an index of the blocks. No I/O.

A block is one frame or several, and its last frame completes it. Two other kinds take a place in
the stream without a block number: ``EPOCH``, with which an owner begins, and ``FLOOR``, which keeps
the number of the newest block when every block is trimmed.

Layout, little endian: magic, kind, part, parts, epoch, block, sequence, checksum of the frame
before, checksum of this one; then data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from penstock_core.vocabulary.errors import Damaged
from penstock_core.vocabulary.ports import Buffer

MAGIC: Final = b"PNJ1"
_HEAD: Final = struct.Struct("<4sBxxxIIQQQQ")
_CHECKSUM: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size + _CHECKSUM.size
"""Bytes of a frame before its data."""


class FrameKind(IntEnum):
    """Kinds of frames: part of a block, begin of an owner, number of the newest block."""

    DATA = 1
    EPOCH = 2
    FLOOR = 3


class BlockFrame(NamedTuple):
    """A frame that has passed its own checksum."""

    kind: FrameKind
    part: int
    parts: int
    epoch: int
    block: int
    """Block that the frame belongs to; for an ``EPOCH`` or a ``FLOOR``, the newest block before
    the frame."""
    sequence: int
    """Sequence of the frame in the stream."""
    previous: int
    """Checksum of the previous frame."""
    checksum: int
    """Checksum of this frame, of its head and its data."""
    data: memoryview


def encode_frame(
    kind: FrameKind,
    *,
    epoch: int,
    block: int,
    sequence: int,
    previous: int,
    data: Buffer = b"",
    part: int = 0,
    parts: int = 1,
) -> bytes:
    """Return the bytes of one frame."""
    head = _HEAD.pack(MAGIC, kind, part, parts, epoch, block, sequence, previous)
    checksum = xxh3_64_intdigest(data, seed=xxh3_64_intdigest(head))
    return b"".join((head, _CHECKSUM.pack(checksum), data))


def decode_frame(raw: Buffer) -> BlockFrame:
    """Decode a frame. Raises ``Damaged`` if its bytes differ from those written."""
    view = memoryview(raw)
    if len(view) < HEAD_BYTES:
        raise Damaged(f"a frame has at least {HEAD_BYTES} bytes; these are {len(view)}")
    magic, kind, part, parts, epoch, block, sequence, previous = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise Damaged(f"a frame begins with {MAGIC!r}; these bytes begin with {magic!r}")
    (checksum,) = _CHECKSUM.unpack_from(view, _HEAD.size)
    data = view[HEAD_BYTES:]
    if checksum != xxh3_64_intdigest(data, seed=xxh3_64_intdigest(view[: _HEAD.size])):
        raise Damaged("the frame fails its checksum")
    try:
        frame_kind = FrameKind(kind)
    except ValueError:
        raise Damaged(f"a frame of kind {kind} is unknown") from None
    return BlockFrame(
        frame_kind,
        part,
        parts,
        epoch=epoch,
        block=block,
        sequence=sequence,
        previous=previous,
        checksum=checksum,
        data=data,
    )


def encode_block(
    data: Buffer, frame_bytes: int, *, epoch: int, block: int, sequence: int, previous: int
) -> Iterator[bytes]:
    """Yield the frames of one block, of at most ``frame_bytes`` each. Each frame is built on
    demand, so that a large block is not in memory twice."""
    view = memoryview(data)
    room = frame_bytes - HEAD_BYTES
    parts = max(1, -(-len(view) // room))
    for part in range(parts):
        raw = encode_frame(
            FrameKind.DATA,
            epoch=epoch,
            block=block,
            sequence=sequence + part,
            previous=previous,
            data=view[part * room : (part + 1) * room],
            part=part,
            parts=parts,
        )
        previous = decode_checksum(raw)
        yield raw


def decode_checksum(raw: Buffer) -> int:
    """Return the checksum stored in the head of a frame."""
    checksum: int = _CHECKSUM.unpack_from(raw, _HEAD.size)[0]
    return checksum


def join_block(frames: Sequence[BlockFrame], block: int) -> bytes:
    """Return the data of a block from its frames. Raises ``Damaged`` if a frame is missing or
    belongs to another block."""
    for part, frame in enumerate(frames):
        is_next = part == 0 or frame.previous == frames[part - 1].checksum
        expected = (FrameKind.DATA, block, part, len(frames))
        if (frame.kind, frame.block, frame.part, frame.parts) != expected or not is_next:
            raise Damaged(f"sequence {frame.sequence} is not part {part + 1} of block {block}")
    return b"".join(frame.data for frame in frames)


class Extent(NamedTuple):
    """The position and size of a block in the stream."""

    sequence: int
    """Sequence of its first frame."""
    parts: int
    size: int
    """Bytes of its data."""


class FrameIndex:
    """The blocks that a stream holds, derived from its frames in order.

    Frames that the owner appends are added in the same way, so the index is always up to date.
    """

    def __init__(self) -> None:
        self.floor = 0
        """Newest block that the stream no longer holds, or the block after which it began."""
        self.tail = 0
        """Newest complete block; equal to the floor without one."""
        self.last = 0
        """Sequence of the newest frame; 0 without one."""
        self.checksum = 0
        """Checksum of the newest frame."""
        self.epoch = 0
        """Epoch of the newest owner."""
        self.size = 0
        """Bytes of data in the blocks above the floor."""
        self._extents: dict[int, Extent] = {}
        self._incomplete = Extent(0, 0, 0)
        """Extent of an incomplete block at the end of the stream; 0 parts without one."""

    def take(self, frame: BlockFrame) -> int | None:
        """Add the next frame. Returns the number of the block that it completes, or None.

        Raises ``Damaged``, and changes nothing, if it is not the next frame.
        """
        if self.last:
            self._check_next(frame)
        else:
            self._begin_at(frame)
        completed = None
        if frame.kind is FrameKind.DATA:
            completed = self._add(frame)
        else:
            self._incomplete = Extent(0, 0, 0)
        self.last, self.checksum, self.epoch = frame.sequence, frame.checksum, frame.epoch
        return completed

    def begin(self, floor: int) -> None:
        """Set the position after which the blocks of an empty stream begin."""
        assert not self.last, "only an empty stream can be positioned"
        self.floor = self.tail = floor

    def extent(self, block: int) -> Extent:
        """Return the extent of a block above the floor and not above the tail."""
        return self._extents[block]

    def keeps_from(self, through: int) -> int:
        """Return the sequence of the first frame that remains when blocks up to ``through`` are
        removed: the first frame of the next block, or the newest frame."""
        return self._extents[through + 1].sequence if through < self.tail else self.last

    def trim(self, through: int) -> None:
        """Forget blocks up to ``through``."""
        for block in range(self.floor + 1, through + 1):
            self.size -= self._extents.pop(block).size
        self.floor = max(self.floor, through)

    def trim_below(self, sequence: int) -> None:
        """Forget all blocks that have a frame below this sequence of the stream."""
        removed = [block for block, extent in self._extents.items() if extent.sequence < sequence]
        if removed:
            self.trim(max(removed))

    def _begin_at(self, frame: BlockFrame) -> None:
        """Begin at the first frame of a stream. Trimming may have removed frames before it, but
        never a part of a block. Raises ``Damaged`` for a part that is not the first."""
        if frame.part:
            raise Damaged(
                f"the stream begins with part {frame.part + 1} of block {frame.block}: "
                f"its beginning is missing"
            )
        is_data = frame.kind is FrameKind.DATA
        self.floor = self.tail = frame.block - 1 if is_data else frame.block

    def _check_next(self, frame: BlockFrame) -> None:
        """Raise ``Damaged`` unless a frame follows the newest one: by sequence, checksum, epoch,
        block and part."""
        if frame.sequence != self.last + 1:
            raise Damaged(
                f"sequence {frame.sequence} follows {self.last}: those between are missing"
            )
        if frame.previous != self.checksum:
            raise Damaged(
                f"the frame with sequence {frame.sequence} has another predecessor than the frame "
                "before it"
            )
        if frame.epoch < self.epoch:
            raise Damaged(
                f"sequence {frame.sequence} has epoch {frame.epoch}, after a frame of epoch "
                f"{self.epoch}"
            )
        expected = self.tail + (frame.kind is FrameKind.DATA)
        if frame.block != expected:
            raise Damaged(
                f"sequence {frame.sequence} is of block {frame.block} instead of {expected}"
            )
        if frame.kind is FrameKind.DATA and frame.part not in (0, self._incomplete.parts):
            raise Damaged(
                f"sequence {frame.sequence} is part {frame.part + 1} of block {frame.block}, "
                f"after {self._incomplete.parts} parts"
            )

    def _add(self, frame: BlockFrame) -> int | None:
        """Add a part of a block. Return the number of the block if it is complete now."""
        # An owner that was interrupted in a block leaves parts; its successor begins it again.
        incomplete = self._incomplete if frame.part else Extent(frame.sequence, 0, 0)
        self._incomplete = Extent(
            incomplete.sequence, incomplete.parts + 1, incomplete.size + len(frame.data)
        )
        if self._incomplete.parts < frame.parts:
            return None
        self._extents[frame.block] = self._incomplete
        self.tail = frame.block
        self.size += self._incomplete.size
        self._incomplete = Extent(0, 0, 0)
        return frame.block
