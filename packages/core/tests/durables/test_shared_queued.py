"""Shared-queued durables."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play
from penstock_core.ids.ids import Span
from penstock_core.messages.durables import PurgeOutstanding
from penstock_core.messages.publishing import Publish
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import IllegalState
from penstock_testing.play import delivered, publish, redelivered, span


@pytest.mark.spec("D8")
def test_windows_go_round_and_are_not_worked_on_at_the_same_time() -> None:
    play = durable_play("shared_queued", 2, 3)

    assert delivered(play.do(publish(8))) == {1: [0, 1]}
    assert delivered(play.do(Ack(1, (span(0),)))) == {}
    assert delivered(play.do(Ack(1, (span(1),)))) == {2: [2, 3, 4]}
    assert delivered(play.do(Ack(2, (span(2, 4),)))) == {1: [5, 6]}


@pytest.mark.spec("D9")
def test_the_window_of_a_client_that_is_alone_is_topped_up() -> None:
    play = durable_play("shared_queued", 3, events=6)
    assert delivered(play.do(Ack(1, (span(1),)))) == {1: [3]}
    play.do(TakeSeat("d", 2, "s2", window=2))
    assert delivered(play.do(Ack(1, (span(0), span(2))))) == {}
    assert delivered(play.do(Ack(1, (span(3),)))) == {2: [4, 5]}


@pytest.mark.spec("D8")
@pytest.mark.parametrize("kind", ["serial", "shared_queued", "shared"])
def test_who_comes_is_served_before_who_was_served_just_now(kind: str) -> None:
    play = durable_play(kind, 1)
    assert delivered(play.do(publish(1))) == {1: [0]}
    play.do(TakeSeat("d", 2, "s2", window=1))
    play.do(TakeSeat("d", 3, "s3", window=1))
    play.do(Ack(1, (span(0),)))
    turns = []
    for event_id in range(1, 7):
        ((seat, _),) = delivered(play.do(publish(1))).items()
        turns.append(seat)
        play.do(Ack(seat, (span(event_id),)))

    assert turns == [2, 3, 1, 2, 3, 1]


@pytest.mark.spec("D8")
def test_who_comes_goes_behind_those_who_wait_longer() -> None:
    play = durable_play("serial", 1, 1)
    assert delivered(play.do(publish(1))) == {1: [0]}
    play.do(Ack(1, (span(0),)))
    play.do(TakeSeat("d", 3, "s3", window=1))
    turns = []
    for event_id in range(1, 4):
        ((seat, _),) = delivered(play.do(publish(1))).items()
        turns.append(seat)
        play.do(Ack(seat, (span(event_id),)))

    assert turns == [2, 3, 1]


@pytest.mark.spec("E9")
def test_a_rolled_back_event_comes_with_the_next_window_counted() -> None:
    play = durable_play("shared_queued", 2, 2, events=4)
    play.do(Ack(1, (span(1),)))
    effects = play.do(RollBack(1, (span(0),)))

    assert delivered(effects) == {2: [0, 2]}
    assert redelivered(effects) == {0: 1}


@pytest.mark.spec("D13")
def test_the_next_gets_what_a_lost_client_held() -> None:
    play = durable_play("shared_queued", 2, 2, events=4)

    assert delivered(play.do(Detach(1))) == {2: [0, 1]}


def test_its_events_cannot_be_purged_for_it_alone() -> None:
    play = durable_play("shared_queued", 2, events=3)
    with pytest.raises(IllegalState, match="d is shared_queued"):
        play.do(PurgeOutstanding("d", (span(0),)))


@pytest.mark.spec("E8")
def test_transient_events_go_to_whose_turn_it_is() -> None:
    play = durable_play("shared_queued", 2, 2)

    assert delivered(play.do(Publish(Digest(2, 200, 100, transient=(Span(0, 2),))))) == {1: [0, 1]}
