"""Frames of a journal on a stream: bytes, and the index of blocks that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_cluster.storage.jetstream.frames import (
    HEAD_BYTES,
    BlockFrame,
    Extent,
    FrameIndex,
    FrameKind,
    decode_frame,
    encode_block,
    encode_frame,
    join_block,
)
from penstock_core.vocabulary.errors import Damaged


class Written:
    """A stream as its owners write it."""

    def __init__(self, frame_bytes: int = HEAD_BYTES + 10) -> None:
        self.frame_bytes = frame_bytes
        self.frames: list[bytes] = []
        self.index = FrameIndex()
        self.epoch = 0

    def begins(self, epoch: int) -> None:
        self.epoch = epoch
        self.add([self.mark(FrameKind.EPOCH)])

    def mark(self, kind: FrameKind) -> bytes:
        return encode_frame(
            kind,
            epoch=self.epoch,
            block=self.index.tail,
            sequence=self.index.last + 1,
            previous=self.index.checksum,
        )

    def block(self, data: bytes) -> list[bytes]:
        return list(
            encode_block(
                data,
                self.frame_bytes,
                epoch=self.epoch,
                block=self.index.tail + 1,
                sequence=self.index.last + 1,
                previous=self.index.checksum,
            )
        )

    def add(self, frames: Iterable[bytes]) -> None:
        for raw in frames:
            self.index.take(decode_frame(raw))
            self.frames.append(raw)


def written(*blocks: bytes, epoch: int = 1) -> Written:
    stream = Written()
    stream.begins(epoch)
    for block in blocks:
        stream.add(stream.block(block))
    return stream


def read(frames: Sequence[bytes]) -> FrameIndex:
    index = FrameIndex()
    for raw in frames:
        index.take(decode_frame(raw))
    return index


def state_of(index: FrameIndex) -> tuple[int, int, int, int, int]:
    return index.floor, index.tail, index.last, index.checksum, index.size


@given(st.binary(max_size=200), st.integers(1, 60))
def test_a_block_is_what_its_frames_join_to(data: bytes, room: int) -> None:
    frames = [
        decode_frame(raw)
        for raw in encode_block(data, HEAD_BYTES + room, epoch=3, block=7, sequence=40, previous=11)
    ]

    assert join_block(frames, 7) == data
    assert [frame.sequence for frame in frames] == list(range(40, 40 + len(frames)))
    assert {(frame.epoch, frame.block, frame.parts) for frame in frames} == {(3, 7, len(frames))}
    assert len(frames) == max(1, -(-len(data) // room))
    assert frames[0].previous == 11
    assert all(len(frame.data) <= room for frame in frames)


@given(st.binary(min_size=1, max_size=40), st.data())
def test_any_bit_that_changed_is_damage(data: bytes, drawn: st.DataObject) -> None:
    raw = bytearray(
        encode_frame(FrameKind.DATA, epoch=1, block=1, sequence=1, previous=0, data=data)
    )
    raw[drawn.draw(st.integers(0, len(raw) - 1))] ^= 1 << drawn.draw(st.integers(0, 7))

    with pytest.raises(Damaged):
        decode_frame(raw)


@given(st.integers(0, HEAD_BYTES + 3))
def test_a_frame_that_was_cut_is_damage(size: int) -> None:
    raw = encode_frame(FrameKind.DATA, epoch=1, block=1, sequence=1, previous=0, data=b"data")

    with pytest.raises(Damaged):
        decode_frame(raw[:size])


def test_the_bytes_of_a_frame_are_these() -> None:
    """Streams outlive the version that wrote them."""
    raw = encode_frame(
        FrameKind.DATA, epoch=2, block=5, sequence=9, previous=77, data=b"data", part=1, parts=3
    )

    assert raw.hex() == (
        "504e4a31010000000100000003000000020000000000000005000000000000000900000000000000"
        "4d0000000000000020ba64148398375364617461"
    )


def test_an_index_knows_where_blocks_lie() -> None:
    stream = written(b"", b"0123456789abc", b"x")

    assert (stream.index.floor, stream.index.tail, stream.index.size) == (0, 3, 14)
    assert [stream.index.extent(block) for block in (1, 2, 3)] == [
        Extent(2, 1, 0),
        Extent(3, 2, 13),
        Extent(5, 1, 1),
    ]
    assert state_of(read(stream.frames)) == state_of(stream.index)


def test_a_torn_block_is_not_there_and_its_number_is_given_again() -> None:
    stream = written(b"whole")
    stream.add(stream.block(b"torn" * 10)[:2])
    assert stream.index.tail == 1

    stream.begins(2)
    stream.add(stream.block(b"next"))

    assert (stream.index.tail, stream.index.size) == (2, 9)
    assert stream.index.extent(2) == Extent(6, 1, 4)
    assert state_of(read(stream.frames)) == state_of(stream.index)


def test_a_journal_begins_where_it_is_told() -> None:
    stream = Written()
    stream.index.begin(40)
    stream.begins(1)
    stream.add(stream.block(b"x"))

    index = read(stream.frames)

    assert (index.floor, index.tail) == (40, 41)


@pytest.mark.parametrize("through", [1, 2, 3])
def test_what_stays_of_a_trimmed_stream_tells_its_floor(through: int) -> None:
    stream = written(b"a" * 25, b"b" * 25, b"c" * 25)
    if through == 3:
        stream.add([stream.mark(FrameKind.FLOOR)])
    kept = stream.index.keeps_from(through)

    index = read(stream.frames[kept - 1 :])
    stream.index.trim(through)

    assert (index.floor, index.tail) == (through, 3)
    assert state_of(index) == state_of(stream.index)


def test_blocks_that_somebody_else_removed_are_below_the_floor() -> None:
    stream = written(b"a" * 25, b"b" * 25, b"c" * 25)

    stream.index.trim_below(stream.index.extent(2).sequence + 1)

    assert (stream.index.floor, stream.index.size) == (2, 25)
    stream.index.trim_below(1)
    assert stream.index.floor == 2


def without(frames: Sequence[bytes], at: int) -> list[bytes]:
    return [*frames[:at], *frames[at + 1 :]]


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_hole_is_damage(at: int) -> None:
    stream = written(b"a" * 25, b"b" * 25)

    with pytest.raises(Damaged, match="those between are missing"):
        read(without(stream.frames, at))


def test_a_stream_that_begins_in_the_middle_of_a_block_is_damaged() -> None:
    stream = written(b"a" * 25)

    with pytest.raises(Damaged, match="begins with part 2 of block 1"):
        read(stream.frames[2:])


def test_a_frame_of_another_stream_is_damage() -> None:
    stream, other_stream = written(b"one", b"two"), written(b"other", b"two")

    with pytest.raises(Damaged, match="has another predecessor than the frame before it"):
        read([*stream.frames[:2], other_stream.frames[2]])


def frame_after(
    stream: Written,
    kind: FrameKind,
    *,
    block: int | None = None,
    epoch: int | None = None,
    part: int = 0,
    parts: int = 1,
) -> BlockFrame:
    """The next frame, but for what is given."""
    number = stream.index.tail + (kind is FrameKind.DATA)
    raw = encode_frame(
        kind,
        epoch=stream.epoch if epoch is None else epoch,
        block=number if block is None else block,
        sequence=stream.index.last + 1,
        previous=stream.index.checksum,
        part=part,
        parts=parts,
    )
    return decode_frame(raw)


@pytest.mark.parametrize(
    ("kind", "other", "text"),
    [
        (FrameKind.DATA, {"block": 3}, "of block 3 instead of 2"),
        (FrameKind.EPOCH, {"block": 2}, "of block 2 instead of 1"),
        (FrameKind.FLOOR, {"block": 0}, "of block 0 instead of 1"),
        (FrameKind.DATA, {"epoch": 4}, "has epoch 4, after a frame of epoch 5"),
        (FrameKind.DATA, {"part": 1, "parts": 2}, "is part 2 of block 2, after 0 parts"),
    ],
)
def test_a_frame_that_cannot_be_next_is_damage_and_changes_nothing(
    kind: FrameKind, other: dict[str, int], text: str
) -> None:
    stream = written(b"one", epoch=5)
    before = state_of(stream.index)

    with pytest.raises(Damaged, match=text):
        stream.index.take(frame_after(stream, kind, **other))
    assert state_of(stream.index) == before


def test_parts_of_other_blocks_do_not_make_one() -> None:
    stream = written(b"a" * 15, b"b" * 15)
    frames = [decode_frame(raw) for raw in stream.frames]

    assert join_block(frames[1:3], 1) == b"a" * 15
    for wrong in (frames[1:2], frames[3:5], [frames[1], frames[4]], [frames[2], frames[1]]):
        with pytest.raises(Damaged):
            join_block(wrong, 1)


@given(st.lists(st.sampled_from(["block", "torn", "owner", "trim", "all"]), max_size=25))
def test_an_index_read_anew_is_the_one_its_owner_has(steps: list[str]) -> None:
    stream = written()
    first = 1
    for number, step in enumerate(steps):
        match step:
            case "block":
                stream.add(stream.block(bytes([number]) * (number * 3)))
            case "torn":
                stream.add(stream.block(b"torn" * 9)[:2])
                stream.begins(stream.epoch + 1)
            case "owner":
                stream.begins(stream.epoch + 1)
            case _ if stream.index.tail > stream.index.floor:
                through = stream.index.tail if step == "all" else stream.index.floor + 1
                if through == stream.index.tail:
                    stream.add([stream.mark(FrameKind.FLOOR)])
                first = stream.index.keeps_from(through)
                stream.index.trim(through)
            case _:
                pass

    index = read(stream.frames[first - 1 :])

    assert state_of(index) == state_of(stream.index)
    blocks = range(index.floor + 1, index.tail + 1)
    assert [index.extent(n) for n in blocks] == [stream.index.extent(n) for n in blocks]
