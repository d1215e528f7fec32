"""Shared-queued durables."""

from __future__ import annotations

import pytest

from penstock.core.errors import IllegalState
from penstock.core.ids import Span
from penstock.core.messages import Ack, Detach, Digest, Publish, PurgeDurable, RollBack
from penstock.testing.play import delivered, publish, redelivered, span
from tests.core.plays import durable_play


@pytest.mark.spec("D8")
def test_windows_go_round_and_are_not_worked_on_at_the_same_time() -> None:
    play = durable_play("shared_queued", 2, 3)

    assert delivered(play.do(publish(8))) == {1: [0, 1]}
    assert delivered(play.do(Ack(1, (span(0),)))) == {}
    assert delivered(play.do(Ack(1, (span(1),)))) == {2: [2, 3, 4]}
    assert delivered(play.do(Ack(2, (span(2, 4),)))) == {1: [5, 6]}


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
        play.do(PurgeDurable("d", (span(0),)))


@pytest.mark.spec("E8")
def test_transient_events_go_to_whose_turn_it_is() -> None:
    play = durable_play("shared_queued", 2, 2)

    assert delivered(play.do(Publish(Digest(2, 200, 100, transient=(Span(0, 2),))))) == {1: [0, 1]}
