"""Frames are looked at before Proton gets them: what is good arrives as it came."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.amqp.tests.dialogue import attach_sender, begin, opening
from packages.amqp.tests.frames import DETACH, DISPOSITION, TRANSFER, Raw, frame_of, transfer
from penstock_amqp.checked_frames import LIKENESSES_MAX
from penstock_amqp.gate import Gate
from penstock_amqp.wire.types import UByte, UInt
from tests.thorough import examples

ACCEPTED = Raw(b"\x00\x53\x24\x45")


class Watched:
    """Takes what it is given, and makes a session of everything that begins one."""

    def __init__(self) -> None:
        self.gate = Gate(self, 65_536, 100)
        self.fed = b""
        self.said: list[tuple[str, str]] = []

    def feed(self, data: bytes | memoryview) -> None:
        self.fed += bytes(data)
        if b"\x00\x53\x11" in bytes(data):
            self.gate.began(object())
            self.gate.wrote()

    def note_transfer_state(self) -> None:
        self.said.append(("connection", "has states"))

    def fail(self, condition: str, text: str) -> None:
        self.said.append(("connection", condition))

    def fail_session(self, session: Any, condition: str, text: str) -> None:
        self.said.append(("session", condition))

    def fail_link(self, session: Any, name: str, condition: str, text: str, **_: Any) -> None:
        self.said.append((name, condition))

    def take_away(self, session: Any, name: str, **_: Any) -> None:
        self.said.append((name, "taken away"))


OPENED = opening() + begin() + attach_sender("s", 0) + attach_sender("t", 1)


def sent(number: int, handle: int = 0, tag: int = 4) -> bytes:
    """A transfer as clients write them: numbers of one width, tags of one length."""
    wide = Raw(b"\x70" + number.to_bytes(4, "big"))
    return frame_of(TRANSFER, UInt(handle), wide, number.to_bytes(tag, "big"), UInt(0), False,
                    False, payload=b"\x00\x53\x75\xa0\x03abc")  # fmt: skip


def disposed(first: int, last: int) -> bytes:
    wide = [Raw(b"\x70" + delivery_id.to_bytes(4, "big")) for delivery_id in (first, last)]
    return frame_of(DISPOSITION, True, *wide, True, ACCEPTED)


@settings(max_examples=examples(100))
@given(
    forms=st.lists(
        st.tuples(st.sampled_from([0, 0, 0, 1]), st.sampled_from([4, 4, 4, 5])), max_size=120
    ),
    begin=st.integers(0, (1 << 32) - 1),
    cuts=st.lists(st.integers(1, 4_000), max_size=12),
)
def test_good_frames_arrive_as_they_came_however_they_are_cut(
    forms: list[tuple[int, int]], begin: int, cuts: list[int]
) -> None:
    frames = [
        sent((begin + number) % (1 << 32), handle, tag)
        for number, (handle, tag) in enumerate(forms)
    ]
    watched, data = Watched(), OPENED + b"".join(frames)
    remaining = data
    for cut in cuts:
        watched.gate.feed(remaining[:cut])
        remaining = remaining[cut:]
    watched.gate.feed(remaining)

    assert watched.fed == data
    assert watched.said == []


@pytest.mark.parametrize("place", [0, 1, 2, 17, 63, 64, 499, 999])
@pytest.mark.parametrize(
    ("wrong", "condition"),
    [
        (sent(5, handle=7), "amqp:session:unattached-handle"),
        (sent(5).replace(b"\x42\x42", b"\x45\x42", 1), "amqp:decode-error"),
    ],
    ids=["handle", "type"],
)
def test_one_among_a_thousand_that_are_alike_is_found(
    place: int, wrong: bytes, condition: str
) -> None:
    watched = Watched()
    frames = [sent(number) for number in range(1_000)]
    watched.gate.feed(OPENED + b"".join(frames[:place]) + wrong + b"".join(frames[place:]))

    assert watched.fed == OPENED + b"".join(frames[:place]), "what is behind it does not count"
    assert watched.said == [("session", condition)]


@pytest.mark.parametrize("wrong", [0, 4_999], ids=["a step back", "a gap"])
@pytest.mark.parametrize("place", [1, 2, 17, 63, 64, 499, 999])
def test_an_id_out_of_turn_is_found_among_a_thousand(place: int, wrong: int) -> None:
    watched = Watched()
    frames = [sent(number) for number in range(1_000)]
    frames[place:place] = [sent(wrong)]
    watched.gate.feed(OPENED + b"".join(frames))

    assert watched.fed == OPENED + b"".join(frames[:place])
    assert watched.said == [("session", "amqp:invalid-field")]


@pytest.mark.parametrize("place", [0, 1, 40, 99])
def test_a_range_that_ends_before_it_begins_is_found_among_good_ones(place: int) -> None:
    watched = Watched()
    frames = [disposed(number, number + 3) for number in range(100)]
    frames.insert(place, disposed(7, 6))
    watched.gate.feed(OPENED + b"".join(frames))

    assert watched.fed == OPENED + b"".join(frames[:place])
    assert watched.said == [("session", "amqp:invalid-field")]


def test_ranges_may_pass_the_highest_number() -> None:
    watched = Watched()
    frames = [disposed((1 << 32) - 50 + number, (number + 5) % (1 << 32)) for number in range(40)]
    watched.gate.feed(OPENED + b"".join(frames))

    assert watched.said == []


def test_what_was_good_by_a_link_is_not_once_it_is_detached() -> None:
    watched = Watched()
    watched.gate.feed(OPENED + sent(1) + sent(2) + frame_of(DETACH, UInt(0), True) + sent(3))

    assert watched.said == [("session", "amqp:session:unattached-handle")]


def test_the_rest_of_a_delivery_needs_no_number_and_a_new_one_does() -> None:
    watched = Watched()
    rest = frame_of(TRANSFER, UInt(0), payload=b"abc")
    watched.gate.feed(OPENED + transfer(0, 0, b"x", more=True) + rest + sent(1))
    assert watched.said == []

    watched.gate.feed(rest)
    assert watched.said == [("session", "amqp:invalid-field")]


def test_sorts_of_frames_that_are_remembered_are_bounded() -> None:
    watched = Watched()
    sorts = [
        (UInt(handle), bytes(tag), bool(form & 1), bool(form & 2), bool(form & 4))
        for handle in (0, 1)
        for tag in range(33)
        for form in range(8)
    ]
    watched.gate.feed(OPENED)
    for number, (handle, tag, settled, batchable, says) in enumerate(sorts):
        mode = UByte(0) if says else None
        fields = (handle, UInt(number), tag, UInt(0), settled, False, mode)
        watched.gate.feed(frame_of(TRANSFER, *fields, None, False, False, batchable))

    assert 0 < len(watched.gate._checked) <= LIKENESSES_MAX
    assert watched.said == []
