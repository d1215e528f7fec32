"""Frames in a stream: whole, whatever comes in one read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packages.amqp.tests.frames import AMQP, performative
from packages.amqp.tests.frames import frame as framed
from penstock_amqp.wire import frames
from penstock_amqp.wire.frames import Frame, Frames, flow, frame_of, frames_in
from penstock_amqp.wire.types import Symbol, UInt, ULong, encode
from penstock_core.vocabulary.errors import RemoteProtocolViolation

TRANSFER = framed(b"\x00\x53\x14\xc0\x04\x01\x70\x00\x00" + bytes(40))
HEARTBEAT = framed(b"")
FLOW = flow(3, [UInt(1), UInt(2), UInt(3), UInt(4)])
LONG = framed(b"\x00" + b"\x80" + (0x13).to_bytes(8, "big") + b"\xc0\x02\x01\x43", channel=7)
NAMED = framed(b"\x00" + encode(Symbol("amqp:flow:list")) + b"\x45")
WIDE = (23).to_bytes(4, "big") + b"\x03\x00\x00\x05" + bytes(4) + FLOW[8:19]
"""A header with something more in it."""
STREAM = AMQP + TRANSFER + HEARTBEAT + FLOW + LONG + TRANSFER + NAMED + TRANSFER + FLOW + HEARTBEAT


def split_frames(pieces: list[bytes], frame_bytes_max: int = 1 << 16) -> tuple[list[Frame], bytes]:
    splitter = Frames(frozenset({frames.FLOW}), frame_bytes_max)
    split = [part for data in pieces for part in splitter.split(data)]
    return [frame for _, frame in split if frame], b"".join(data for data, _ in split)


@given(st.lists(st.integers(0, len(STREAM))))
def test_what_is_wanted_is_told_whole_and_everything_passes_in_order(cuts: list[int]) -> None:
    offsets = [0, *sorted(cuts), len(STREAM)]

    wanted, passed = split_frames([STREAM[a:b] for a, b in pairwise(offsets)])

    assert [(frame.raw, frame.channel) for frame in wanted] == [
        (FLOW, 3),
        (LONG, 7),
        (NAMED, 0),
        (FLOW, 3),
    ]
    assert passed == STREAM


def test_nothing_is_cut_where_nothing_is_wanted() -> None:
    data = AMQP + TRANSFER * 5

    assert list(Frames(frozenset({frames.FLOW}), 1 << 16).split(data)) == [(data, None)]


@pytest.mark.parametrize(
    "wrong",
    [b"\x00\x00\x00\x07\x02\x00\x00\x00\x00\x53\x13", b"\xff" * 16, FLOW[:4] + b"\x02\x00"],
    ids=["too short", "too long", "not whole"],
)
def test_what_is_no_frame_passes_for_whoever_says_what_is_wrong(wrong: bytes) -> None:
    wanted, passed = split_frames([AMQP + FLOW + wrong + bytes(30)])

    assert [frame.raw for frame in wanted][:1] == [FLOW]
    assert (AMQP + FLOW + wrong + bytes(30)).startswith(passed)


def test_a_frame_longer_than_any_may_be_is_not_waited_for() -> None:
    large = framed(FLOW[8:11] + bytes(100))

    for size in (8, 20):
        assert split_frames([AMQP + large[:size]], frame_bytes_max=64) == ([], AMQP + large[:size])


def test_the_fields_of_a_frame_are_read_however_its_header_is_written() -> None:
    frame = frame_of(WIDE)

    assert frame is not None
    assert (frame.code, frame.channel, frame.value_at) == (frames.FLOW, 5, 15)
    values = frame_of(flow(0, [UInt(1), None, True]))
    assert values is not None
    assert values.fields == [1, None, True]


def test_a_performative_that_is_no_list_is_none() -> None:
    frame = frame_of(framed(b"\x00\x53\x13\x43"))

    assert frame is not None
    with pytest.raises(RemoteProtocolViolation):
        _ = frame.fields


@pytest.mark.parametrize(
    "raw",
    [
        framed(b"\x00\x53\x13", kind=1),
        framed(b"\x53\x13\x45"),
        framed(b"\x00\x53"),
        framed(b"\x00"),
    ],
    ids=["of a sign-in", "no description", "no value", "no descriptor"],
)
def test_what_cannot_be_read_is_no_frame(raw: bytes) -> None:
    assert frame_of(raw) is None


def test_frames_of_a_kind_are_found_among_others() -> None:
    stream = AMQP + TRANSFER + FLOW + HEARTBEAT + framed(performative(0x12, encode(ULong(1))))

    assert [frame.code for frame in frames_in(stream, frames.FLOW)] == [frames.FLOW]
    assert [frame.fields for frame in frames_in(stream, frames.ATTACH)] == [[1]]
