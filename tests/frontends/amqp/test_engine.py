"""The engine by itself: which bytes tell what, whatever comes in one read."""

from __future__ import annotations

from proton import Delivery

from tests.frontends.amqp.pairs import Pair, encoded


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

    assert [(each.event_id, each.state) for each in pair.outcomes] == [(1, Delivery.MODIFIED)]
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

    assert [each.event_id for each in pair.outcomes] == [1, 2, 3]
