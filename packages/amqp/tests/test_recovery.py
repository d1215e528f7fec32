"""A link that is taken up again: nothing unsettled is kept of it, on either side; what a
subscriber of a topic has missed meanwhile comes (SEM J5)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import penstock
from packages.amqp.tests.clients import WAIT_S
from packages.amqp.tests.conftest import Dial
from packages.amqp.tests.frames import (
    ACCEPTED,
    ATTACH,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    TRANSFER,
    Raw,
    flow,
    frame_of,
    message,
    opened,
    performative,
    receiver,
    sender,
    terminus,
    transfer,
)
from packages.amqp.tests.peers import Peer
from packages.client.tests.patience import eventually
from penstock_amqp.wire.frames import Frame
from penstock_amqp.wire.sections import sections_of
from penstock_amqp.wire.types import Symbol, UByte, UInt, encode, encode_symbols

WORK = terminus(0x29, "work", UInt(2), Symbol("never"), capability="queue")


def test_an_attach_that_lists_unsettled_deliveries_is_answered_by_one_that_lists_none(
    realm: penstock.Realm, session: penstock.Session
) -> None:
    """So their sender knows that it may send them again."""
    peer = Peer(realm.listen_amqp())
    peer.say(opened("sends") + sender("link", 0, WORK))
    peer.hear(b"work")  # its attach, and with it credit
    peer.say(transfer(0, 0, message(body="first")))
    peer.hear(performative(ACCEPTED)[:3])
    peer.say(frame_of(DETACH, UInt(0), False))
    peer.hear(performative(DETACH)[:3])
    peer.heard = b""

    tag = b"delivery 0"
    peer.say(frame_of(ATTACH, "link", UInt(0), False, UByte(0), UByte(0), terminus(0x28, "c"), WORK,
                      {tag: None}, None, UInt(0)))  # fmt: skip
    peer.hear(b"work")  # its attach, and with it credit
    assert performative(ATTACH)[:3] in peer.heard
    assert encode(tag) not in peer.heard
    peer.say(transfer(0, 1, message(body="again")))
    events = [session.queues.get("work").pop(WAIT_S) for _ in range(2)]
    peer.hang_up()

    assert [event.data for event in events if event is not None] == [b"first", b"again"]


# --- subscribers that lose their connection (SEM J5; AMQP, transport, 2.6.1) --------------------

NEWS = terminus(0x28, "news", capability="topic")


@pytest.fixture
def news(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("news", engine="jms")


def subscribed(dial: Dial, container: str = "me", name: str = "sub", credit: int = 10) -> Peer:
    peer = dial()
    peer.say(opened(container) + receiver(name, 0, NEWS, credit=credit))
    peer.next(ATTACH)
    return peer


def accept(number: int) -> bytes:
    state = Raw(performative(ACCEPTED))
    return frame_of(DISPOSITION, True, UInt(number), UInt(number), True, state)


def body_of(peer: Peer) -> bytes:
    """The body of the next message."""
    return sections_of(message_of(peer.next(TRANSFER))).body[0][1][2:]


def message_of(transfer: Frame) -> bytes:
    return transfer.raw[transfer.raw.index(b"\x00\x53\x75") :]


def synced(peer: Peer) -> None:
    """Everything it has said before was heard, and led to what it leads to in the realm."""
    peer.say(sender("sync", 9, WORK))
    peer.hear(b"sync")


@pytest.mark.spec("J5")
def test_a_subscriber_that_is_back_gets_what_it_has_missed_once(
    dial: Dial, news: penstock.Channel
) -> None:
    peer = subscribed(dial)
    for text in (b"a", b"b"):
        news.publish(text)
    assert [body_of(peer), body_of(peer)] == [b"a", b"b"]
    peer.say(accept(0))
    synced(peer)
    peer.hang_up()
    news.publish(b"c")

    again = subscribed(dial)

    news.publish(b"d")
    assert [body_of(again) for _ in range(3)] == [b"b", b"c", b"d"]


@pytest.mark.spec("J5")
def test_what_has_arrived_out_of_order_does_not_come_again(
    dial: Dial, news: penstock.Channel
) -> None:
    """Though a durable wants it still."""
    news.durables.create("later", type="shared")
    peer = subscribed(dial)
    for text in (b"a", b"b", b"c"):
        news.publish(text)
    assert [body_of(peer) for _ in range(3)] == [b"a", b"b", b"c"]
    peer.say(accept(1))
    synced(peer)
    peer.hang_up()

    again = subscribed(dial)

    assert [body_of(again) for _ in range(2)] == [b"a", b"c"]
    news.publish(b"d")
    assert body_of(again) == b"d"


@pytest.mark.spec("J5")
def test_what_was_sent_settled_does_not_come_again(dial: Dial, news: penstock.Channel) -> None:
    """Nobody confirms that it has arrived; events that waited for credit come."""
    peer = dial()
    attach = frame_of(ATTACH, "sub", UInt(0), True, UByte(1), UByte(0), NEWS, terminus(0x29, "c"))
    peer.say(opened("me") + attach + flow(0, 1))
    peer.next(ATTACH)
    for text in (b"a", b"b"):
        news.publish(text)
    assert body_of(peer) == b"a"
    synced(peer)
    peer.hang_up()

    assert body_of(subscribed(dial)) == b"b"


ORDERLY = {
    "close": (frame_of(CLOSE), CLOSE),
    "end": (frame_of(END), END),
    "detach": (frame_of(DETACH, UInt(0), False), DETACH),
    "detach for good": (frame_of(DETACH, UInt(0), True), DETACH),
}


@pytest.mark.spec("J5", "J2", "D13")
@pytest.mark.parametrize(("last", "answer"), ORDERLY.values(), ids=ORDERLY)
def test_who_leaves_in_order_leaves_nothing_behind(
    dial: Dial, news: penstock.Channel, last: bytes, answer: int
) -> None:
    peer = subscribed(dial)
    news.publish(b"a")
    assert body_of(peer) == b"a"
    peer.say(last)
    peer.next(answer)
    peer.hang_up()
    news.publish(b"b")

    assert news.info().events == 0
    again = subscribed(dial)
    news.publish(b"c")
    assert body_of(again) == b"c"


@pytest.mark.spec("J5", "J3")
@pytest.mark.parametrize(("container", "name"), [("another", "sub"), ("me", "another")])
def test_another_container_or_link_begins_anew(
    dial: Dial, news: penstock.Channel, container: str, name: str
) -> None:
    peer = subscribed(dial)
    synced(peer)
    peer.hang_up()
    news.publish(b"missed")

    other_peer = subscribed(dial, container, name)
    news.publish(b"new")

    assert body_of(other_peer) == b"new"
    assert body_of(subscribed(dial)) == b"missed"


@pytest.mark.spec("J5")
def test_who_is_back_before_the_loss_is_noticed_takes_its_link_along(
    dial: Dial, news: penstock.Channel
) -> None:
    """2.6.1: a link is attached once; by the connection that is still there it is stolen."""
    peer = subscribed(dial)
    for text in (b"a", b"b"):
        news.publish(text)
    assert [body_of(peer), body_of(peer)] == [b"a", b"b"]
    peer.say(accept(0))
    synced(peer)

    again = subscribed(dial)

    assert b"amqp:link:stolen" in peer.next(DETACH).raw
    assert body_of(again) == b"b"
    news.publish(b"c")
    assert body_of(again) == b"c"


@pytest.mark.spec("J1")
def test_a_topic_without_the_rules_of_jms_keeps_no_places(
    dial: Dial, session: penstock.Session
) -> None:
    plain = session.channels.create("news")
    peer = subscribed(dial)
    synced(peer)
    peer.hang_up()
    plain.publish(b"missed")

    again = subscribed(dial)
    plain.publish(b"new")

    assert body_of(again) == b"new"


# --- shared subscriptions that end with their last consumer --------------------------------------

SHARED = Raw(
    performative(0x28, encode("news"), *[b"\x40"] * 9, encode_symbols(["topic", "shared"])),
)


def sharing(dial: Dial) -> Peer:
    peer = dial()
    peer.say(opened("me") + receiver("sub|1", 0, SHARED))
    peer.next(ATTACH)
    return peer


@pytest.mark.spec("J5")
def test_a_shared_subscription_goes_on_when_its_last_consumer_is_back(
    dial: Dial, news: penstock.Channel
) -> None:
    peer = sharing(dial)
    news.publish(b"a")
    assert body_of(peer) == b"a"
    peer.hang_up()
    news.publish(b"b")

    again = sharing(dial)

    assert [body_of(again), body_of(again)] == [b"a", b"b"]


@pytest.mark.spec("J5", "D13")
def test_a_shared_subscription_ends_with_the_window_and_at_once_in_order() -> None:
    with (
        penstock.Realm(limits__event_timeout_s=0.2) as realm,
        realm.connect() as session,
        ExitStack() as stack,
    ):
        news = session.channels.create("news", engine="jms")
        ended = news.durables
        dial = Dial(realm.listen_amqp(), stack)
        peer = sharing(dial)
        assert [durable.name for durable in ended.list()] == ["me:sub@volatile"]
        peer.hang_up()
        eventually(lambda: ended.list() == [])

        peer = sharing(dial)
        peer.say(frame_of(DETACH, UInt(0), True))
        peer.next(DETACH)
        assert ended.list() == []
