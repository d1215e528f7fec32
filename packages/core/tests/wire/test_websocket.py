"""Valid and invalid WebSocket frames."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.core.tests.wire.frames import MASK, masked
from penstock_core.wire.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PROTOCOL_ERROR,
    TEXT,
    Piece,
    WebSocketReader,
    WebSocketViolation,
    answer_to,
    close_bytes,
    frame_bytes,
    is_key,
)
from tests.thorough import examples


def read(*received: bytes) -> list[Piece]:
    reader = WebSocketReader()
    pieces: list[Piece] = []
    for chunk in received:
        reader.receive(chunk)
        pieces += reader.pieces()
    return pieces


def test_the_answer_to_a_key_is_that_of_the_standard() -> None:
    assert answer_to("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert is_key("dGhlIHNhbXBsZSBub25jZQ==")
    assert not is_key("c2hvcnQ=")
    assert not is_key("not base64")


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(1, 400))
@settings(max_examples=examples(60))
def test_data_comes_as_it_was_sent_however_it_is_cut(payloads: list[bytes], size: int) -> None:
    sent = b"".join(masked(BINARY, payload) for payload in payloads)
    pieces = read(*(sent[offset : offset + size] for offset in range(0, len(sent), size)))

    assert {fragment.opcode for fragment in pieces} <= {BINARY}
    assert b"".join(fragment.data for fragment in pieces) == b"".join(payloads)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 70_001])
def test_each_form_of_a_length_is_read(size: int) -> None:
    data = bytes(number % 251 for number in range(size))

    assert b"".join(fragment.data for fragment in read(masked(BINARY, data))) == data


@pytest.mark.parametrize("size", [*range(71), *range(505, 530), 16_384, 16_389])
def test_the_mask_continues_at_each_offset(size: int) -> None:
    """The first bytes of the frame arrive separately, so the rest begins within the mask."""
    data = bytes(byte % 251 for byte in range(4 + size))
    frame = masked(BINARY, data)
    head_bytes = len(frame) - len(data)

    for first in range(5):
        cut = head_bytes + first
        assert b"".join(fragment.data for fragment in read(frame[:cut], frame[cut:])) == data


def test_a_message_in_parts_is_one_with_control_frames_between() -> None:
    pieces = read(
        masked(BINARY, b"a", is_last=False),
        masked(PING, b"?"),
        masked(CONTINUATION, b"b", is_last=False),
        masked(CONTINUATION, b"c"),
        masked(TEXT, b"d"),
    )

    assert pieces == [
        Piece(BINARY, b"a"),
        Piece(PING, b"?"),
        Piece(BINARY, b"b"),
        Piece(BINARY, b"c"),
        Piece(TEXT, b"d"),
    ]


def test_a_control_frame_is_given_once_it_is_whole() -> None:
    frame = masked(CLOSE, b"\x03\xe8bye")

    assert read(*(frame[offset : offset + 1] for offset in range(len(frame)))) == [
        Piece(CLOSE, b"\x03\xe8bye")
    ]


@pytest.mark.parametrize(
    "frames",
    [
        frame_bytes(BINARY, b"not masked"),
        bytes((0x80 | 0x40 | BINARY, 0x80)) + MASK,
        bytes((0x80 | 0x3, 0x80)) + MASK,
        masked(CONTINUATION, b"of nothing"),
        masked(BINARY, b"", is_last=False) + masked(BINARY, b""),
        masked(PING, b"", is_last=False),
        masked(PING, bytes(126)),
        bytes((0x80 | BINARY, 0xFF)) + b"\xff" * 8 + MASK,
    ],
)
def test_what_is_wrong_is_refused(frames: bytes) -> None:
    with pytest.raises(WebSocketViolation) as refused:
        read(frames)

    assert refused.value.status == PROTOCOL_ERROR


def test_a_reason_to_close_is_cut_to_what_fits() -> None:
    frame = close_bytes(1_000, "ü" * 100)

    assert frame[1] == len(frame) - 2 <= 125
    assert frame[4:].decode() == "ü" * 61
