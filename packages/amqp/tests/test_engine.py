"""The engine by itself: which bytes tell what, whatever comes in one read."""

from __future__ import annotations

from typing import Any

from cproton_ffi import lib as pn
from proton import Delivery

from packages.amqp.tests.pairs import Pair, encoded
from penstock_amqp.kept import retain
from penstock_amqp.link_ends import IncomingLink


def test_a_delivery_is_decided_once_whatever_is_said_of_it_before_the_answer() -> None:
    pair = Pair()
    receiver = pair.receiver()
    pair.engine.send(pair.outgoing[0], 1, encoded(b"a"))
    pair.pump()
    delivery = receiver.current

    delivery.update(Delivery.MODIFIED)
    pair.pump()
    delivery.update(Delivery.ACCEPTED)
    delivery.settle()
    pair.pump()

    assert [(outcome.event_id, outcome.state) for outcome in pair.outcomes] == [
        (1, Delivery.MODIFIED)
    ]
    assert pair.accepted == []


def test_the_next_delivery_in_the_place_of_one_that_was_decided_is_heard() -> None:
    pair = Pair()
    receiver = pair.receiver()
    for event_id in (1, 2, 3):
        pair.engine.send(pair.outgoing[0], event_id, encoded(b"a"))
        pair.pump()
        delivery = receiver.current
        receiver.advance()
        delivery.update(Delivery.RELEASED)
        delivery.settle()
        pair.pump()
        pair.engine.forget(pair.outgoing[0], pair.outcomes[-1].delivery)
        pair.pump()

    assert [outcome.event_id for outcome in pair.outcomes] == [1, 2, 3]


def test_parts_of_messages_by_many_links_have_a_room_of_their_own() -> None:
    pair = Pair(parts_bytes_max=25_000)
    senders = [pair.sender(f"s{number}") for number in range(3)]
    for number, sender in enumerate(senders):
        sender.delivery(f"d{number}")
        sender.stream(b"x" * 10_000)
        pair.pump()

    assert pair.too_many_parts_by == [pair.incoming[2]]
    for sender in senders[:2]:  # what was begun may end, and another begin
        sender.stream(b"y")
        sender.advance()
        pair.pump()
    assert pair.messages == [b"x" * 10_000 + b"y"] * 2
    senders[0].delivery("next")
    senders[0].stream(b"x" * 24_000)
    pair.pump()
    assert len(pair.too_many_parts_by) == 1


def test_parts_of_messages_have_what_other_connections_of_the_user_leave() -> None:
    pair = Pair()
    pair.parts_room = 15_000
    senders = [pair.sender(f"s{number}") for number in range(2)]
    for number, sender in enumerate(senders):
        sender.delivery(f"d{number}")
        sender.stream(b"x" * 10_000)
        pair.pump()

    assert pair.too_many_parts_by == [pair.incoming[1]]
    assert pair.held_parts_bytes == 10_000
    senders[0].advance()
    pair.pump()
    assert pair.held_parts_bytes == 0


def test_one_message_may_be_larger_than_the_room_for_parts() -> None:
    pair = Pair(parts_bytes_max=1_000)
    sender = pair.sender()
    sender.delivery("d")
    for _ in range(3):
        sender.stream(b"x" * 10_000)
        pair.pump()
    sender.advance()
    pair.pump()

    assert pair.messages == [b"x" * 30_000]


def is_dropped(pair: Pair, now_s: float) -> bool:
    """Whether the engine ends the connection at a time because its peer is silent."""
    pair.engine.tick(now_s)
    return b"local-idle-timeout" in pair.engine.output()


def test_the_silence_of_a_peer_counts_from_when_it_is_listened_to() -> None:
    pair = Pair(idle_timeout_s=10)
    assert not is_dropped(pair, 1_000)
    pair.engine.excuse(1_009)

    assert not is_dropped(pair, 1_010)
    assert pair.engine.tick(1_011) == 1_019
    assert not is_dropped(pair, 1_018.9)
    assert is_dropped(pair, 1_019)


def test_a_peer_that_was_excused_and_speaks_lives_on() -> None:
    pair = Pair(idle_timeout_s=10)
    assert not is_dropped(pair, 1_000)
    pair.engine.excuse(1_009)
    assert not is_dropped(pair, 1_012)
    pair.sender()

    assert not is_dropped(pair, 1_019)
    assert not is_dropped(pair, 1_028.9)
    assert is_dropped(pair, 1_029)


def test_a_message_that_is_given_up_is_none_and_frees_its_room() -> None:
    pair = Pair(parts_bytes_max=25_000)
    sender = pair.sender()
    for number in range(4):
        delivery = sender.delivery(f"d{number}")
        sender.stream(b"x" * 10_000)
        pair.pump()
        delivery.abort()
        pair.pump()
    sender.delivery("whole")
    sender.stream(b"y")
    sender.advance()
    pair.pump()

    assert pair.messages == [b"y"]
    assert pair.too_many_parts_by == []


class LatePair(Pair):
    """Its engine's peer answers later."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        super().__init__()

    def received(self, link: IncomingLink) -> None:
        self.waiting += link.deliveries
        super().received(link)


def test_a_session_waits_for_the_answers_to_a_link_that_was_detached_before_it_ended() -> None:
    """Freed before, it would take the link along, and the delivery that is to be answered."""
    pair = LatePair()
    sender = pair.sender()
    sender.delivery("d")
    sender.send(b"x")
    sender.advance()
    sender.close()
    pair.pump()
    (link,), (delivery,) = pair.incoming, pair.waiting
    session = retain(link.link.session)
    pair.engine.drop(link)
    link.link.close()
    pair.engine.free(link)
    pair.session.close()
    pair.pump()

    session.close()
    pair.engine.free_session(session, [])
    pair.pump()
    assert pn.pn_delivery_link(delivery) == link.pointer
    assert pair.engine.connection.session_head(0) == session._wrap(session._impl)

    pair.engine.settle(delivery)
    link.unanswered -= 1
    pair.engine.free_if_answered(link)
    assert link.is_freed
    assert pair.engine.connection.session_head(0) is None
