"""Frames of WebSocket, right and wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping

from penstock.wire.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    NORMAL,
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

MASK = b"\x01\x02\xf3\x04"


def masked(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    """A frame as a client sends it."""
    plain = frame_bytes(opcode, payload)
    head = bytes((plain[0] if is_last else plain[0] & 0x7F, plain[1] | 0x80))
    extra = plain[2 : len(plain) - len(payload)]
    hidden = bytes(each ^ MASK[at % 4] for at, each in enumerate(payload))
    return head + extra + MASK + hidden


def read(*received: bytes) -> list[Piece]:
    reader = WebSocketReader()
    found: list[Piece] = []
    for each in received:
        reader.receive(each)
        found += reader.pieces()
    return found


def test_the_answer_to_a_key_is_that_of_the_standard() -> None:
    assert answer_to("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert is_key("dGhlIHNhbXBsZSBub25jZQ==")
    assert not is_key("c2hvcnQ=")
    assert not is_key("not base64")


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(1, 400))
@settings(max_examples=examples(60))
def test_data_comes_as_it_was_sent_however_it_is_cut(payloads: list[bytes], size: int) -> None:
    sent = b"".join(masked(BINARY, each) for each in payloads)
    found = read(*(sent[at : at + size] for at in range(0, len(sent), size)))

    assert {each.opcode for each in found} <= {BINARY}
    assert b"".join(each.data for each in found) == b"".join(payloads)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 70_001])
def test_each_form_of_a_length_is_read(size: int) -> None:
    data = bytes(each % 251 for each in range(size))

    assert b"".join(each.data for each in read(masked(BINARY, data))) == data


def test_a_message_in_parts_is_one_with_control_frames_between() -> None:
    found = read(
        masked(BINARY, b"a", is_last=False),
        masked(PING, b"?"),
        masked(CONTINUATION, b"b", is_last=False),
        masked(CONTINUATION, b"c"),
        masked(TEXT, b"d"),
    )

    assert found == [
        Piece(BINARY, b"a"),
        Piece(PING, b"?"),
        Piece(BINARY, b"b"),
        Piece(BINARY, b"c"),
        Piece(TEXT, b"d"),
    ]


def test_a_control_frame_is_given_once_it_is_whole() -> None:
    frame = masked(CLOSE, b"\x03\xe8bye")

    assert read(*(frame[at : at + 1] for at in range(len(frame)))) == [Piece(CLOSE, b"\x03\xe8bye")]


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


@given(st.lists(st.tuples(st.binary(max_size=70_000), st.booleans()), max_size=6), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_wsproto_reads_what_is_written_and_writes_what_is_read(
    messages: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    other = Connection(ConnectionType.CLIENT)
    sent = b"".join(
        other.send(BytesMessage(data=each, message_finished=is_last)) for each, is_last in messages
    )
    reader, at, got = WebSocketReader(), 0, b""
    while at < len(sent):
        size = data.draw(st.integers(1, len(sent)))
        reader.receive(sent[at : at + size])
        got += b"".join(piece.data for piece in reader.pieces() if piece.opcode == BINARY)
        at += size
    assert got == b"".join(each for each, _ in messages)

    other.receive_data(b"".join(frame_bytes(BINARY, each) for each, _ in messages))
    heard = [bytes(each.data) for each in other.events() if isinstance(each, BytesMessage)]
    assert b"".join(heard) == b"".join(each for each, _ in messages)
    other.receive_data(frame_bytes(PING, b"there?") + close_bytes(NORMAL, "gone"))
    ping, close = other.events()
    assert ping == Ping(payload=b"there?")
    assert close == CloseConnection(code=NORMAL, reason="gone")
