"""Frames: what a journal's stream consists of, as bytes and as an index of blocks. No I/O.

A block is one frame or several, and the last of them makes it true. Two more kinds take a place in
the stream and no block number: ``EPOCH``, with which an owner begins, and ``FLOOR``, which keeps
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
    """The block it belongs to; of an ``EPOCH`` or a ``FLOOR``, the newest block before it."""
    sequence: int
    """Its place in the stream."""
    previous: int
    """Checksum of the frame before."""
    checksum: int
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
    """The bytes of one frame."""
    head = _HEAD.pack(MAGIC, kind, part, parts, epoch, block, sequence, previous)
    checksum = xxh3_64_intdigest(data, seed=xxh3_64_intdigest(head))
    return b"".join((head, _CHECKSUM.pack(checksum), data))


def decode_frame(raw: Buffer) -> BlockFrame:
    """The frame in these bytes. Raises ``Damaged`` unless they are what was written."""
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
        known = FrameKind(kind)
    except ValueError:
        raise Damaged(f"a frame of kind {kind} is unknown") from None
    return BlockFrame(
        known,
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
    """The frames of one block, of at most ``frame_bytes`` each. Each is made when it is asked for:
    a large block is not in memory twice."""
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
    """The checksum that these bytes of a frame say they have."""
    checksum: int = _CHECKSUM.unpack_from(raw, _HEAD.size)[0]
    return checksum


def join_block(frames: Sequence[BlockFrame], block: int) -> bytes:
    """The data of a block, from all of its frames. Raises ``Damaged`` when they are others."""
    for part, frame in enumerate(frames):
        is_next = part == 0 or frame.previous == frames[part - 1].checksum
        expected = (FrameKind.DATA, block, part, len(frames))
        if (frame.kind, frame.block, frame.part, frame.parts) != expected or not is_next:
            raise Damaged(f"sequence {frame.sequence} is not part {part + 1} of block {block}")
    return b"".join(frame.data for frame in frames)


class Extent(NamedTuple):
    """Where a block lies in the stream."""

    sequence: int
    """The place of its first frame."""
    parts: int
    size: int
    """Bytes of its data."""


class FrameIndex:
    """Which blocks a stream holds: its frames, taken one after the other, say so.

    What an owner appends is taken the same way, so the index is right at any time.
    """

    def __init__(self) -> None:
        self.floor = 0
        """The newest block that is not held any more; what was begun behind counts, too."""
        self.tail = 0
        self.last = 0
        """The newest frame's place in the stream; 0 for none."""
        self.checksum = 0
        """The newest frame's."""
        self.epoch = 0
        """The newest owner's."""
        self.size = 0
        """Bytes of data held."""
        self._extents: dict[int, Extent] = {}
        self._begun = Extent(0, 0, 0)
        """Frames of a block that is not whole yet."""

    def take(self, frame: BlockFrame) -> int | None:
        """Add the next frame; gives the number of the block that is whole now.

        Raises ``Damaged`` when it is not the next, and has changed nothing then.
        """
        if self.last:
            self._check_next(frame)
        else:
            self._begin_at(frame)
        whole = None
        if frame.kind is FrameKind.DATA:
            whole = self._add(frame)
        else:
            self._begun = Extent(0, 0, 0)
        self.last, self.checksum, self.epoch = frame.sequence, frame.checksum, frame.epoch
        return whole

    def begin(self, floor: int) -> None:
        """Say where the blocks of an empty stream begin: behind ``floor``."""
        assert not self.last, "only an empty stream can be told"
        self.floor = self.tail = floor

    def extent(self, block: int) -> Extent:
        """Where a block lies that is above the floor and not above the tail."""
        return self._extents[block]

    def keeps_from(self, through: int) -> int:
        """The first frame that stays when blocks up to ``through`` go: the first of the next block,
        or the newest there is."""
        return self._extents[through + 1].sequence if through < self.tail else self.last

    def trim(self, through: int) -> None:
        """Forget blocks up to ``through``."""
        for block in range(self.floor + 1, through + 1):
            self.size -= self._extents.pop(block).size
        self.floor = max(self.floor, through)

    def trim_below(self, sequence: int) -> None:
        """Forget the blocks of which a frame lies below this place of the stream."""
        gone = [block for block, extent in self._extents.items() if extent.sequence < sequence]
        if gone:
            self.trim(max(gone))

    def _begin_at(self, frame: BlockFrame) -> None:
        """A stream is cut at the first frame of a block, or at a frame without one."""
        if frame.part:
            raise Damaged(
                f"the stream begins with part {frame.part + 1} of block {frame.block}: "
                f"what is before it is missing"
            )
        is_data = frame.kind is FrameKind.DATA
        self.floor = self.tail = frame.block - 1 if is_data else frame.block

    def _check_next(self, frame: BlockFrame) -> None:
        if frame.sequence != self.last + 1:
            raise Damaged(f"sequence {frame.sequence} follows {self.last}: those between are gone")
        if frame.previous != self.checksum:
            raise Damaged(f"sequence {frame.sequence} does not follow what lies before it")
        if frame.epoch < self.epoch:
            raise Damaged(
                f"sequence {frame.sequence} is of epoch {frame.epoch}, behind one of {self.epoch}"
            )
        expected = self.tail + (frame.kind is FrameKind.DATA)
        if frame.block != expected:
            raise Damaged(
                f"sequence {frame.sequence} is of block {frame.block} instead of {expected}"
            )
        if frame.kind is FrameKind.DATA and frame.part not in (0, self._begun.parts):
            raise Damaged(
                f"sequence {frame.sequence} is part {frame.part + 1} of block {frame.block}, "
                f"after {self._begun.parts} parts"
            )

    def _add(self, frame: BlockFrame) -> int | None:
        begun = self._begun if frame.part else Extent(frame.sequence, 0, 0)
        self._begun = Extent(begun.sequence, begun.parts + 1, begun.size + len(frame.data))
        if self._begun.parts < frame.parts:
            return None
        self._extents[frame.block] = self._begun
        self.tail = frame.block
        self.size += self._begun.size
        self._begun = Extent(0, 0, 0)
        return frame.block
