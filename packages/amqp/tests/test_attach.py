"""Agreements of the two ends of a link: how deliveries are settled (AMQP 1.0, transport, 2.8.2,
2.8.3), and how large a message may be (2.7.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from packages.amqp.tests.clients import WAIT_S
from packages.amqp.tests.conftest import Dial
from packages.amqp.tests.frames import (
    ACCEPTED,
    ATTACH,
    DETACH,
    DISPOSITION,
    TRANSFER,
    Raw,
    flow,
    frame_of,
    opened,
    performative,
    terminus,
    transfer,
)
from packages.amqp.tests.peers import Peer
from penstock_amqp.wire.frames import Frame
from penstock_amqp.wire.sections import DATA, section
from penstock_amqp.wire.types import Symbol, UByte, UInt, ULong

SOURCE = terminus(0x28, "jobs", capability="queue")
TARGET = terminus(0x29, "jobs", capability="queue")
NEWS = terminus(0x28, "news", capability="topic")
FIRST, SECOND = UByte(0), UByte(1)
BYTES_MAX = 2_000
TOO_LARGE = b"amqp:link:message-size-exceeded"
_RCV_SETTLE_MODE, _MAX_MESSAGE_SIZE = 4, 10


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(limits__max_event_bytes=BYTES_MAX) as running:
        yield running


def fields(frame: Frame) -> list[Any]:
    return [*frame.fields, *[None] * 14][:14]


def sender(mode: UByte = FIRST, snd: int = 0) -> bytes:
    return frame_of(ATTACH, "s", UInt(0), False, UByte(snd), mode, terminus(0x28, "c"), TARGET,
                    None, None, UInt(0))  # fmt: skip


def receiver(mode: UByte = FIRST, source: Raw = SOURCE, most: int | None = None) -> bytes:
    return frame_of(ATTACH, "r", UInt(0), True, UByte(0), mode, source, terminus(0x29, "c"),
                    None, None, None, None if most is None else ULong(most))  # fmt: skip


def sized(size: int) -> bytes:
    """A message of so many bytes."""
    message = section(DATA, b"\xb0" + (size - 8).to_bytes(4, "big") + bytes(size - 8))
    assert len(message) == size
    return message


# --- who settles when (2.8.3) ------------------------------------------------------------------


def test_a_sender_that_wants_its_receiver_to_settle_second_hears_that_it_settles_first(
    dial: Dial,
) -> None:
    """As it does: its answer is the last word."""
    peer = dial()
    peer.say(opened() + sender(SECOND))
    assert fields(peer.next(ATTACH))[_RCV_SETTLE_MODE] in (None, FIRST)
    peer.say(transfer(0, 0, sized(100)))

    _, first, _, settled, *_ = fields(peer.next(DISPOSITION))
    assert (first, settled) == (0, True)


def test_a_receiver_that_settles_second_is_told_that_the_realm_has(
    dial: Dial, session: penstock.Session
) -> None:
    """And nothing comes again, though it never says that it has settled."""
    jobs = session.queues.create("jobs")
    jobs.push(b"a")
    peer = dial()
    peer.say(opened() + receiver(SECOND) + flow(0, 1))
    assert fields(peer.next(ATTACH))[_RCV_SETTLE_MODE] == SECOND
    peer.next(TRANSFER)
    peer.say(frame_of(DISPOSITION, True, UInt(0), UInt(0), False, Raw(performative(ACCEPTED))))

    is_receiver, first, _, settled, *_ = fields(peer.next(DISPOSITION))
    assert (is_receiver, first, settled) == (False, 0, True)
    peer.hang_up()
    jobs.push(b"b")
    event = jobs.pop(timeout=WAIT_S)
    assert event is not None
    assert event.data == b"b"


# --- how long a subscription lasts (messaging, 3.5.3, 3.5.6) ------------------------------------


@pytest.mark.parametrize(
    "expiry_policy", ["link-detach", "session-end", "connection-close", "never"]
)
def test_a_durable_subscription_says_that_it_lasts(dial: Dial, expiry_policy: str) -> None:
    """Who would like it to end with its link, session or connection closes the link."""
    peer = dial()
    source = terminus(0x28, "news", UInt(2), Symbol(expiry_policy), capability="topic")
    peer.say(opened() + receiver(source=source))

    answered = fields(peer.next(ATTACH))[5]
    assert answered.value[:3] == ["news", UInt(2), Symbol("never")]


# --- how large (2.7.3) -------------------------------------------------------------------------


def send(peer: Peer, size: int, frames: int) -> None:
    message = sized(size)
    cuts = [size * number // frames for number in range(frames + 1)]
    for number in range(frames):
        part = message[cuts[number] : cuts[number + 1]]
        peer.say(transfer(0, 0, part, more=number < frames - 1))


@pytest.mark.parametrize("frames", [1, 3])
def test_the_largest_message_is_told_and_taken(
    dial: Dial, session: penstock.Session, frames: int
) -> None:
    peer = dial()
    peer.say(opened() + sender())
    assert fields(peer.next(ATTACH))[_MAX_MESSAGE_SIZE] == BYTES_MAX
    send(peer, BYTES_MAX, frames)

    assert performative(ACCEPTED)[:3] in peer.next(DISPOSITION).raw
    event = session.queues.get("jobs").pop(timeout=WAIT_S)
    assert event is not None
    assert len(event.data) == BYTES_MAX - 8


@pytest.mark.parametrize("frames", [1, 3])
def test_one_byte_more_ends_the_link_and_is_not_stored(
    dial: Dial, session: penstock.Session, frames: int
) -> None:
    peer = dial()
    peer.say(opened() + sender())
    peer.next(ATTACH)
    send(peer, BYTES_MAX + 1, frames)

    assert TOO_LARGE in peer.next(DETACH).raw
    assert list(session.queues.get("jobs").peek()) == []


def test_a_receiver_gets_what_it_takes_to_the_byte(dial: Dial, session: penstock.Session) -> None:
    """What it does not take is for others, and was not tried."""
    jobs = session.queues.create("jobs")
    for size in (88, 89):  # with header and descriptors 100 bytes, and 101
        jobs.push(bytes(size))
    peer = dial()
    peer.say(opened() + receiver(most=100) + flow(0, 2))
    peer.next(ATTACH)
    assert peer.next(TRANSFER).raw.endswith(b"\xa0\x58" + bytes(88))

    assert TOO_LARGE in peer.next(DETACH).raw
    assert {event.redelivery_count: len(event.data) for event in pop_all(jobs)} == {1: 88, 0: 89}


def pop_all(jobs: penstock.Queue) -> list[penstock.Event]:
    events = [jobs.pop(timeout=WAIT_S) for _ in range(2)]
    return [event for event in events if event is not None]


def test_a_subscriber_that_cannot_take_an_event_is_told_so(
    dial: Dial, session: penstock.Session
) -> None:
    news = session.channels.create("news", engine="jms")
    peer = dial()
    peer.say(opened() + receiver(source=NEWS, most=100) + flow(0, 5))
    peer.next(ATTACH)
    news.publish(b"small")
    peer.next(TRANSFER)
    news.publish(bytes(100))

    assert TOO_LARGE in peer.next(DETACH).raw
    assert news.info().events == 0
