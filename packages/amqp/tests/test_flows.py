"""Flow control by the letter of the standard, frame by frame (AMQP 1.0, transport, 2.6.7 and
2.7.4)."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from packages.amqp.tests.clients import WAIT_S
from packages.amqp.tests.conftest import Dial
from packages.amqp.tests.frames import (
    ATTACH,
    BEGIN,
    DETACH,
    FLOW,
    TRANSFER,
    frame_of,
    message,
    opened,
    receiver,
    sender,
    terminus,
    transfer,
)
from packages.amqp.tests.peers import Peer
from packages.amqp.tests.serving import listen_with
from penstock_amqp.wire.frames import Frame
from penstock_amqp.wire.types import UByte, UInt

JOBS = terminus(0x28, "jobs", capability="queue")
NEWS = terminus(0x28, "news", capability="topic")
_HANDLE, _COUNT, _CREDIT, _DRAIN, _ECHO = 4, 5, 6, 8, 9


@pytest.fixture
def peer(dial: Dial) -> Peer:
    return dial()


@pytest.fixture
def jobs(session: penstock.Session) -> penstock.Queue:
    return session.queues.create("jobs")


def flow(
    handle: int | None,
    credit: int | None = None,
    *,
    count: int | None = 0,
    drain: bool = False,
    echo: bool = False,
) -> bytes:
    of_link = [None if value is None else UInt(value) for value in (handle, count, credit)]
    window = (UInt(0), UInt(2_048), UInt(0), UInt(2_048))
    return frame_of(FLOW, *window, *of_link, None, drain, echo)


def fields(frame: Frame) -> list[Any]:
    return [*frame.fields, *[None] * 11][:11]


def of_link(frame: Frame) -> tuple[Any, ...]:
    """Handle, delivery count, credit and drain of a flow."""
    values = fields(frame)
    return values[_HANDLE], values[_COUNT], values[_CREDIT], bool(values[_DRAIN])


# --- credit taken back (2.6.7) ---------------------------------------------------------------


def test_credit_that_is_taken_back_is_given_up_at_once(peer: Peer, jobs: penstock.Queue) -> None:
    """What comes then is another receiver's; and the state of the link says so."""
    peer.say(opened() + receiver("r", 0, JOBS, credit=5))
    peer.next(ATTACH)
    peer.say(flow(0, 0, echo=True))
    assert of_link(peer.next(FLOW)) == (0, 0, 0, False)
    jobs.push(b"a")

    event = jobs.pop(timeout=WAIT_S)
    assert event is not None
    assert event.data == b"a"
    jobs.push(b"b")
    peer.say(flow(0, 1))
    assert b"b" in peer.next(TRANSFER).raw


def test_credit_that_is_taken_back_in_part_is_what_is_left(
    peer: Peer, jobs: penstock.Queue
) -> None:
    peer.say(opened() + receiver("r", 0, JOBS, credit=5) + flow(0, 2, echo=True))
    assert of_link(peer.next(FLOW)) == (0, 0, 2, False)
    for text in (b"a", b"b", b"c"):
        jobs.push(text)

    for text in (b"a", b"b"):
        assert text in peer.next(TRANSFER).raw
    event = jobs.pop(timeout=WAIT_S)
    assert event is not None
    assert event.data == b"c"


def test_a_subscriber_that_takes_credit_back_gets_nothing_until_it_gives_some(
    peer: Peer, session: penstock.Session
) -> None:
    news = session.channels.create("news", engine="jms")
    peer.say(opened() + receiver("r", 0, NEWS, credit=5))
    peer.next(ATTACH)
    peer.say(flow(0, 0, echo=True))
    assert of_link(peer.next(FLOW)) == (0, 0, 0, False)
    news.publish(b"a")
    peer.say(flow(0, 0, echo=True))

    assert peer.next().code == FLOW
    peer.say(flow(0, 3))
    assert b"a" in peer.next(TRANSFER).raw


# --- drain (2.6.7, 2.7.4) --------------------------------------------------------------------


@pytest.mark.parametrize("source", [JOBS, NEWS], ids=["queue", "topic"])
def test_drain_without_credit_is_answered(
    peer: Peer, session: penstock.Session, source: Any
) -> None:
    """A client that asks whether it has everything waits for the answer."""
    peer.say(opened() + receiver("r", 0, source, credit=0))
    peer.next(ATTACH)
    peer.say(flow(0, 0, drain=True))

    assert of_link(peer.next(FLOW)) == (0, 0, 0, True)


def test_drain_with_credit_gives_it_back_once(peer: Peer, jobs: penstock.Queue) -> None:
    jobs.push(b"a")
    peer.say(opened() + receiver("r", 0, JOBS, credit=0) + flow(0, 5, drain=True))

    assert b"a" in peer.next(TRANSFER).raw
    assert of_link(peer.next(FLOW)) == (0, 5, 0, True)
    peer.say(flow(0, 0, count=5, drain=True))
    assert of_link(peer.next(FLOW)) == (0, 5, 0, True)


def test_drain_that_uses_all_credit_is_answered(peer: Peer, jobs: penstock.Queue) -> None:
    jobs.push(b"a")
    peer.say(opened() + receiver("r", 0, JOBS, credit=0) + flow(0, 1, drain=True))

    assert b"a" in peer.next(TRANSFER).raw
    assert of_link(peer.next(FLOW)) == (0, 1, 0, True)


def test_drain_is_answered_once_the_window_has_let_everything_through(
    peer: Peer, jobs: penstock.Queue
) -> None:
    """2.5.6: what is on its way waits for the session's window."""
    jobs.push(b"a")
    no_window = frame_of(FLOW, UInt(0), UInt(0), UInt(0), UInt(2_048))
    peer.say(opened() + no_window + receiver("r", 0, JOBS, credit=0))
    peer.next(ATTACH)
    closed = (UInt(0), UInt(0), UInt(0), UInt(2_048))
    peer.say(frame_of(FLOW, *closed, UInt(0), UInt(0), UInt(5), None, True))
    peer.say(frame_of(FLOW, *closed, None, None, None, None, None, True))
    assert fields(peer.next())[_HANDLE] is None  # the session's own, and no transfer
    peer.say(frame_of(FLOW, UInt(0), UInt(10), UInt(0), UInt(2_048)))

    assert b"a" in peer.next(TRANSFER).raw
    assert of_link(peer.next(FLOW)) == (0, 5, 0, True)


def test_a_link_that_brings_nothing_has_nothing_more(peer: Peer, session: penstock.Session) -> None:
    """One that names a subscription, to end it."""
    session.channels.create("news", engine="jms").durables.create("fuzz:sub", type="exclusive")
    look_up = frame_of(ATTACH, "sub", UInt(0), True, UByte(0), UByte(0), None, terminus(0x29, "c"))
    peer.say(opened() + look_up + flow(0, 3, drain=True))

    assert peer.next(ATTACH).fields[0] == "sub"
    assert of_link(peer.next(FLOW)) == (0, 3, 0, True)
    peer.say(flow(0, 0, count=3, drain=True, echo=True))
    assert of_link(peer.next(FLOW)) == (0, 3, 0, True)


# --- much credit (1.6.12: a sequence number, 2.7.4: link-credit is a uint) ---------------------


@pytest.mark.parametrize("credit", [1 << 31, (1 << 32) - 1])
def test_a_credit_of_2_31_and_more_is_large(peer: Peer, jobs: penstock.Queue, credit: int) -> None:
    for text in (b"a", b"b"):
        jobs.push(text)
    peer.say(opened() + receiver("r", 0, JOBS, credit=credit))

    for text in (b"a", b"b"):
        assert text in peer.next(TRANSFER).raw
    peer.say(flow(0, credit, count=2))
    jobs.push(b"c")
    assert b"c" in peer.next(TRANSFER).raw


# --- echo (2.7.4) ----------------------------------------------------------------------------


def test_a_session_is_asked_for_its_state(peer: Peer) -> None:
    peer.say(opened() + flow(None, count=None, echo=True))

    values = fields(peer.next(FLOW))
    assert values[0] == 0  # next-incoming-id: that of the begin, nothing has come
    assert values[_HANDLE] is None
    assert not values[_ECHO]


def test_a_link_that_events_go_out_by_is_asked_for_its_state(
    peer: Peer, jobs: penstock.Queue
) -> None:
    peer.say(opened() + receiver("q", 0, terminus(0x28, "other", capability="queue"), credit=1))
    peer.say(receiver("r", 1, JOBS, credit=5))
    attached = [fields(peer.next(ATTACH)) for _ in range(2)]
    handle = next(attach_fields[1] for attach_fields in attached if attach_fields[0] == "r")
    jobs.push(b"a")
    peer.next(TRANSFER)
    peer.say(flow(1, 4, count=1, echo=True))

    assert of_link(peer.next(FLOW)) == (handle, 1, 4, False)


def test_a_link_that_messages_come_by_is_asked_for_its_state(peer: Peer) -> None:
    target = terminus(0x29, "jobs", capability="queue")
    peer.say(opened() + sender("other", 0, target) + sender("s", 1, target))
    peer.next(BEGIN)
    answers = [peer.next() for _ in range(4)]
    handle = next(fields(frame)[1] for frame in answers if fields(frame)[0] == "s")
    credit = {of_link(frame)[0]: of_link(frame)[2] for frame in answers if frame.code == FLOW}
    peer.say(transfer(1, 0, message()))
    peer.say(flow(1, None, count=1, echo=True))

    assert of_link(peer.next(FLOW)) == (handle, 1, credit[handle] - 1, False)


def test_what_is_asked_of_a_link_before_it_is_attached_is_answered_then(peer: Peer) -> None:
    peer.say(opened() + receiver("r", 0, JOBS, credit=0) + flow(0, 7, echo=True))

    assert of_link(peer.next(FLOW)) == (0, 0, 7, False)


# --- begin (2.5.1) ---------------------------------------------------------------------------


def test_a_session_that_begins_has_no_more_to_say(peer: Peer) -> None:
    """Its begin has told its windows."""
    peer.say(opened())
    peer.next(BEGIN)
    peer.say(receiver("r", 0, JOBS, credit=0) + flow(0, 0, drain=True))

    assert peer.next().code == ATTACH
    assert of_link(peer.next()) == (0, 0, 0, True)


# --- a sender beyond its credit (2.6.7, 2.8.17: transfer-limit-exceeded) -------------------------


@pytest.mark.parametrize("settled", [False, True])
def test_a_sender_that_goes_beyond_its_credit_loses_its_link_and_nothing_it_had_credit_for(
    settled: bool,
) -> None:
    target = terminus(0x29, "jobs", capability="queue")
    with penstock.Realm() as realm, realm.connect() as session:
        peer = Peer(listen_with(realm, credit=3))
        peer.say(opened() + sender("s", 0, target))
        peer.next(ATTACH)
        assert of_link(peer.next(FLOW)) == (0, 0, 3, False)
        sends = [
            frame_of(TRANSFER, UInt(0), UInt(number), b"%d" % number, UInt(0), settled,
                     payload=message(body=f"m{number}"))
            for number in range(5)
        ]  # fmt: skip
        peer.say(b"".join(sends))

        assert b"amqp:link:transfer-limit-exceeded" in peer.next(DETACH).raw
        peer.hang_up()
        payloads = [event.data for event in session.queues.get("jobs").peek()]
    assert payloads == [b"m0", b"m1", b"m2"]


def test_all_credit_may_be_used_at_once() -> None:
    target = terminus(0x29, "jobs", capability="queue")
    with penstock.Realm() as realm, realm.connect() as session:
        peer = Peer(listen_with(realm, credit=3))
        peer.say(opened() + sender("s", 0, target))
        for first in (0, 3):
            assert of_link(peer.next(FLOW)) == (0, first, 3, False)
            numbers = range(first, first + 3)
            peer.say(b"".join(transfer(0, n, message(body=f"m{n}")) for n in numbers))
        peer.next(FLOW)
        peer.hang_up()
        assert len(list(session.queues.get("jobs").peek())) == 6
