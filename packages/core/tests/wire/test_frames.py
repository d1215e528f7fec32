"""Frames do not depend on how their bytes are divided, and damaged bytes raise only the documented
error."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_core.wire.native.frames import FRAME_BYTES_MAX, PREFACE, FrameReader, coalesced, frame

FRAMES = ((b"header", b"body"), (b"h", b""), (b"", b"b"), (b"", b""), (b"x" * 300, b"y" * 9_000))
STREAM = b"".join(bytes(part) for header, body in FRAMES for part in frame(header, body))
LARGE = 300_000


def read_frames(reader: FrameReader) -> list[tuple[bytes, bytes]]:
    return [(bytes(header), bytes(body)) for header, body in reader.frames()]


def read(reader: FrameReader, *pieces: bytes) -> list[tuple[bytes, bytes]]:
    frames_read = []
    for chunk in pieces:
        reader.receive(chunk)
        frames_read += read_frames(reader)
    return frames_read


@pytest.mark.parametrize("at", range(40))
def test_a_stream_cut_in_two_anywhere_gives_the_same_frames(at: int) -> None:
    assert read(FrameReader(), STREAM[:at], STREAM[at:]) == list(FRAMES)


def test_a_stream_that_comes_byte_by_byte_gives_the_same_frames() -> None:
    assert read(FrameReader(), *(STREAM[i : i + 1] for i in range(len(STREAM)))) == list(FRAMES)


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=200)), max_size=8),
    st.lists(st.integers(1, 64), min_size=1),
)
def test_frames_survive_any_cutting(frames: list[tuple[bytes, bytes]], sizes: list[int]) -> None:
    stream = b"".join(bytes(part) for header, body in frames for part in frame(header, body))
    reader, frames_read, offset, turn = FrameReader(), [], 0, 0
    while offset < len(stream):
        size = sizes[turn % len(sizes)]
        frames_read += read(reader, stream[offset : offset + size])
        offset, turn = offset + size, turn + 1

    assert frames_read == frames


def test_much_may_be_received_before_frames_are_taken() -> None:
    stream = b"".join(bytes(part) for _ in range(400) for part in frame(b"h", b"b" * 2_000))

    assert len(read(FrameReader(), stream)) == 400


def test_a_large_body_comes_whole_and_its_buffer_stays_untouched_by_what_follows() -> None:
    reader = FrameReader()
    reader.receive(b"".join(map(bytes, frame(b"h", b"a" * LARGE))))
    [(_, body)] = list(reader.frames())
    reader.receive(b"".join(map(bytes, frame(b"h", b"b" * LARGE))))

    assert bytes(body) == b"a" * LARGE
    assert read_frames(reader) == [(b"h", b"b" * LARGE)]


def test_a_frame_of_several_bodies_is_their_bytes_one_after_the_other() -> None:
    small = b"".join(map(bytes, frame(b"h", b"ab", bytearray(b"cd"), memoryview(b"ef"))))
    large = b"".join(map(bytes, frame(b"h", b"x" * LARGE, b"", b"y" * LARGE)))

    assert read(FrameReader(), small) == [(b"h", b"abcdef")]
    assert read(FrameReader(), large) == [(b"h", b"x" * LARGE + b"y" * LARGE)]


@given(st.lists(st.binary(max_size=20).map(lambda part: part * 1_000), max_size=12))
def test_coalescing_changes_no_byte_and_leaves_no_small_neighbours(parts: list[bytes]) -> None:
    joined = list(coalesced(parts))

    assert b"".join(joined) == b"".join(parts)
    assert len(joined) <= 2 * sum(len(part) >= 16_384 for part in parts) + 1


@pytest.mark.parametrize("at", range(1, len(PREFACE)))
def test_a_preface_in_pieces_is_understood(at: int) -> None:
    reader = FrameReader(preface=PREFACE)

    assert read(reader, PREFACE[:at]) == []
    assert read(reader, PREFACE[at:] + STREAM) == list(FRAMES)


@pytest.mark.parametrize(
    "first", [b"G", b"GET / HTTP/1.1\r\n", b"PENSTCX", b"\x16\x03\x01\x02\x00"]
)
def test_another_protocol_is_told_what_this_port_is(first: bytes) -> None:
    with pytest.raises(RemoteProtocolViolation, match="this is the native Penstock port"):
        read(FrameReader(preface=PREFACE), first)


def test_another_wire_version_is_told_both_versions() -> None:
    with pytest.raises(RemoteProtocolViolation, match="wire version 9; this side speaks 1"):
        read(FrameReader(preface=PREFACE), PREFACE[:7] + b"\x09")


def test_an_oversized_frame_is_refused_before_it_is_received() -> None:
    with pytest.raises(RemoteProtocolViolation, match=f"{FRAME_BYTES_MAX + 1} bytes was announced"):
        read(FrameReader(), struct.pack("<II", FRAME_BYTES_MAX + 1, 4))


def test_a_peer_may_be_held_to_smaller_frames() -> None:
    reader = FrameReader(frame_bytes_max=100)
    with pytest.raises(RemoteProtocolViolation, match="101 bytes was announced; 100 are allowed"):
        read(reader, struct.pack("<II", 101, 4))


@pytest.mark.parametrize(("length", "header"), [(0, 0), (3, 0), (4, 1), (10, 7), (10, 1 << 31)])
def test_a_header_longer_than_its_frame_is_refused(length: int, header: int) -> None:
    with pytest.raises(RemoteProtocolViolation, match="does not fit a frame"):
        read(FrameReader(), struct.pack("<II", length, header) + bytes(16))


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_raise_nothing_but_a_violation(junk: bytes, greeted: bool) -> None:
    reader = FrameReader(preface=PREFACE)
    try:
        read(reader, (PREFACE if greeted else b"") + junk)
    except RemoteProtocolViolation:
        return
    assert reader.bytes_in <= len(junk) + len(PREFACE)


def test_the_room_kept_for_a_connection_stays_small() -> None:
    """A frame that was announced and never arrives costs at most its size; small frames cost
    less."""
    reader = FrameReader(frame_bytes_max=64 << 10)
    reader.receive(struct.pack("<II", 64 << 10, 4))
    assert read_frames(reader) == []

    assert len(reader.get_buffer()) <= (64 << 10) + 4

    busy = FrameReader()
    for _ in range(2_000):
        read(busy, STREAM)
    assert len(busy.get_buffer()) <= 512 << 10
