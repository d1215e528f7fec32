"""The frames of a sign-in."""

from __future__ import annotations

import pytest

from penstock_amqp.wire import sasl
from penstock_amqp.wire.sasl import Init, Response, SaslFrames
from penstock_amqp.wire.types import Described, Symbol, ULong, encode
from penstock_core.vocabulary.errors import RemoteProtocolViolation


def frame(value: object) -> bytes:
    body = encode(value)
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


INIT = frame(Described(ULong(0x41), [Symbol("PLAIN"), b"\0u\0p"]))


def test_a_sign_in_comes_byte_by_byte() -> None:
    frames = SaslFrames()
    units: list[object] = []
    for byte in sasl.SASL_PROTOCOL + INIT + frame(Described(ULong(0x43), [b"r"])) + b"rest":
        frames.feed(bytes((byte,)))
        if not units:
            units += [header] if (header := frames.header()) else []
        elif len(units) < 3 and (sasl_frame := frames.frame()) is not None:
            units.append(sasl_frame)

    assert units == [sasl.SASL_PROTOCOL, Init("PLAIN", b"\0u\0p"), Response(b"r")]
    assert frames.rest() == b"rest"


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x05\x02\x01\x00\x00",
        b"\xff\xff\xff\xff\x02\x01\x00\x00",
        frame(Described(ULong(0x44), [])),
        frame(Described(ULong(0x41), [])),
        frame("x"),
        INIT[:5] + b"\x00" + INIT[6:],
        INIT[:4] + b"\x01" + INIT[5:],
    ],
)
def test_what_no_client_says_is_a_violation(data: bytes) -> None:
    frames = SaslFrames()
    frames.feed(data)

    with pytest.raises(RemoteProtocolViolation):
        frames.frame()


def test_another_protocol_is_seen_at_its_first_byte() -> None:
    frames = SaslFrames()
    frames.feed(b"G")

    with pytest.raises(RemoteProtocolViolation, match="not AMQP"):
        frames.header()


def test_what_the_server_says_is_small_frames() -> None:
    assert sasl.mechanisms(["PLAIN"])[8:11] == b"\x00\x53\x40"
    assert sasl.challenge(b"c").endswith(b"\xa0\x01c")
    assert sasl.outcome(sasl.OK).endswith(b"\x50\x00")
    assert sasl.outcome(sasl.OK, b"v=1").endswith(b"\xa0\x03v=1")


def test_only_so_much_is_taken_before_anybody_is_let_in() -> None:
    frames = SaslFrames()
    frames.feed(bytes(200 << 10))

    with pytest.raises(RemoteProtocolViolation, match="more bytes than a sign-in needs"):
        frames.feed(bytes(100 << 10))
