"""Serial durables."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, outstanding
from penstock_core.ids.ids import Span
from penstock_core.messages.delivery import StallSession
from penstock_core.messages.durables import PurgeOutstanding
from penstock_core.messages.publishing import Publish
from penstock_core.messages.seats import Detach
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.vocabulary.digest import Digest
from penstock_testing.play import delivered, publish, redelivered, span


@pytest.mark.spec("D10")
def test_window_one_the_next_event_comes_after_the_ack() -> None:
    play = durable_play("serial", 1)

    assert delivered(play.do(publish(3))) == {1: [0]}
    assert delivered(play.do(Ack(1, (span(0),)))) == {1: [1]}


@pytest.mark.spec("D10", "E9")
def test_window_one_a_rolled_back_event_comes_next() -> None:
    play = durable_play("serial", 1, events=3)
    effects = play.do(RollBack(1, (span(0),)))

    assert delivered(effects) == {1: [0]}
    assert redelivered(effects) == {0: 1}


@pytest.mark.spec("D11")
def test_a_larger_window_what_was_sent_comes_before_what_was_rolled_back() -> None:
    play = durable_play("serial", 2)
    sent = delivered(play.do(publish(4)))
    again = delivered(play.do(RollBack(1, (span(0),))))

    assert (sent, again) == ({1: [0, 1]}, {1: [0]})


@pytest.mark.spec("D8", "D10")
def test_two_clients_with_window_one_take_turns() -> None:
    play = durable_play("serial", 1, 1)
    order = []
    holder = delivered(play.do(publish(6)))
    while holder:
        ((subscription, ids),) = holder.items()
        order.append((subscription, ids))
        holder = delivered(play.do(Ack(subscription, tuple(span(i) for i in ids))))

    assert order == [(1, [0]), (2, [1]), (1, [2]), (2, [3]), (1, [4]), (2, [5])]


@pytest.mark.spec("D12")
def test_a_client_that_frees_one_seat_gets_the_next_and_no_other_is_served() -> None:
    play = durable_play("serial", 2, 2)

    assert delivered(play.do(publish(6))) == {1: [0, 1]}
    assert delivered(play.do(Ack(1, (span(0),)))) == {1: [2]}
    assert delivered(play.do(Ack(1, (span(2),)))) == {1: [3]}


@pytest.mark.spec("D12")
def test_the_turn_passes_when_nothing_is_outstanding() -> None:
    play = durable_play("serial", 2, 2, events=6)

    assert delivered(play.do(Ack(1, (span(0, 1),)))) == {2: [2, 3]}


@pytest.mark.spec("D13")
def test_the_next_gets_what_a_lost_client_held_counted() -> None:
    play = durable_play("serial", 2, 2, events=4)
    effects = play.do(Detach(1))

    assert delivered(effects) == {2: [0, 1]}
    assert redelivered(effects) == {0: 1, 1: 1}


@pytest.mark.spec("D12")
def test_a_holder_that_cannot_take_more_holds_its_turn() -> None:
    play = durable_play("serial", 3, 3, events=2)
    play.channel.attend(StallSession("s1", stalled=True), play.now_us)

    assert delivered(play.do(publish(4))) == {}


@pytest.mark.spec("E8")
def test_transient_events_pass_by() -> None:
    play = durable_play("serial", 2)

    assert delivered(play.do(Publish(Digest(2, 200, 100, transient=(Span(0, 2),))))) == {}


def test_its_events_can_be_purged_for_it_alone() -> None:
    play = durable_play("serial", 1, events=4)
    play.do(PurgeOutstanding("d", (span(0, 1),)))

    assert play.answer == 2
    assert outstanding(play) == [2, 3]
