"""Releases: clients return events that they have not processed."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, play_of
from penstock_core.durable.queue import READERS
from penstock_core.ids.ids import Span
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.kinds import Command
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, Release, RollBack
from penstock_core.vocabulary.errors import IllegalState
from penstock_testing.play import delivered, publish, redelivered


@pytest.mark.spec("E9")
@pytest.mark.parametrize("kind", ["shared", "serial"])
def test_what_is_released_comes_again_and_is_not_counted(kind: str) -> None:
    play = durable_play(kind)
    play.do(TakeSeat("d", 1, "s1", window=2))
    play.do(publish(2))

    effects = play.do(Release(1, (Span(0, 1),)))

    assert delivered(effects) == {1: [0]}
    assert redelivered(effects) == {}


def test_what_is_released_goes_to_another_client() -> None:
    play = durable_play("shared")
    play.do(TakeSeat("d", 1, "s1", pull=True))
    play.do(publish(1))
    play.do(SetDemand(1, 1))
    play.do(TakeSeat("d", 2, "s2"))

    effects = play.do(Release(1, (Span(0, 1),)))

    assert delivered(effects) == {2: [0]}


@pytest.mark.spec("D15")
def test_only_what_a_client_holds_can_be_released() -> None:
    play = durable_play("shared")
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(publish(1))
    play.do(TakeSeat("d", 2, "s2", window=1))

    with pytest.raises(IllegalState, match="was not delivered to this subscription"):
        play.do(Release(2, (Span(0, 1),)))


def test_what_an_exclusive_client_releases_waits_for_the_next_one() -> None:
    play = durable_play("exclusive")
    play.do(TakeSeat("d", 1, "s1"))
    play.do(publish(2))

    assert delivered(play.do(Release(1, (Span(1, 2),)))) == {}

    play.do(Detach(1))
    assert delivered(play.do(TakeSeat("d", 2, "s2"))) == {2: [0, 1]}


FIRST = (Span(0, 1),)
ELSEWHERE = [Release(1, FIRST, elsewhere=True), RollBack(1, FIRST, elsewhere=True)]


@pytest.mark.parametrize("back", ELSEWHERE, ids=["untried", "tried"])
@pytest.mark.parametrize("kind", ["shared", "serial", "shared_queued"])
def test_what_a_client_leaves_to_others_is_not_for_itself(kind: str, back: Command) -> None:
    play = durable_play(kind, 5, events=1)

    effects = play.do(back)

    assert delivered(effects) == {}
    assert len(play.channel.state.durables["d"].ready) == 1, "it is in nobody's hands"
    effects = play.do(TakeSeat("d", 2, "s2", window=5))
    assert delivered(effects) == {2: [0]}
    assert redelivered(effects) == ({0: 1} if isinstance(back, RollBack) else {})


@pytest.mark.parametrize("kind", ["shared", "serial"])
def test_whoever_leaves_some_to_others_gets_the_rest(kind: str) -> None:
    play = durable_play(kind, 1, events=3)

    assert delivered(play.do(ELSEWHERE[0])) == {1: [1]}
    assert delivered(play.do(Ack(1, (Span(1, 2),)))) == {1: [2]}
    assert delivered(play.do(Ack(1, (Span(2, 3),)))) == {}
    assert delivered(play.do(publish(1))) == {1: [3]}


@pytest.mark.spec("D12")
def test_a_turn_passes_to_who_takes_what_its_holder_has_left() -> None:
    play = durable_play("serial", 1, 1, events=1)

    assert delivered(play.do(ELSEWHERE[1])) == {2: [0]}


def test_a_reader_of_a_queue_leaves_events_to_those_whose_selectors_want_them() -> None:
    play = play_of(kind="queue")
    play.do(TakeSeat(READERS, 1, "s1", window=5))
    play.do(publish(2))
    play.do(TakeSeat(READERS, 2, "s2", window=5, selector="n = 1", matched=(Span(1, 2),)))
    play.do(Release(1, (Span(0, 2),), elsewhere=True))
    assert delivered(play.do(Detach(2))) == {}

    assert delivered(play.do(TakeSeat(READERS, 3, "s3", window=5))) == {3: [0, 1]}


def test_what_has_left_is_not_remembered_as_left_to_others() -> None:
    play = durable_play("shared", 5, events=2)
    play.do(Release(1, (Span(0, 2),), elsewhere=True))
    seat = play.channel.state.seats[1][1]
    assert len(seat.refused) == 2

    play.do(PurgeEvents(FIRST))

    assert list(seat.refused) == [1]


@pytest.mark.spec("D11")
def test_a_lane_that_begins_with_what_its_client_does_not_want_is_anothers() -> None:
    play = play_of()
    play.do(AddDurable("d", "serial", order_by="lane"))
    play.lane_of = "aab".__getitem__
    play.do(TakeSeat("d", 1, "s1", window=1))
    assert delivered(play.do(publish(3))) == {1: [0]}

    assert delivered(play.do(ELSEWHERE[0])) == {1: [2]}
    assert delivered(play.do(TakeSeat("d", 2, "s2", window=5))) == {2: [0, 1]}
