"""Priority durables."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, outstanding, play_of
from penstock_core.ids.ids import Span
from penstock_core.messages.durables import AddDurable, PurgeOutstanding
from penstock_core.messages.publishing import Publish
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_testing.play import delivered, publish, redelivered, span


@pytest.mark.spec("D8")
def test_the_first_to_come_is_served_alone() -> None:
    play = durable_play("priority", None, None)

    assert delivered(play.do(publish(3))) == {1: [0, 1, 2]}
    assert delivered(play.do(publish(2))) == {1: [3, 4]}


@pytest.mark.spec("D13")
def test_the_next_takes_over_when_it_leaves_counts_unchanged() -> None:
    play = durable_play("priority", None, None, None, events=3)
    play.do(Ack(1, (span(0),)))
    effects = play.do(Detach(1))

    assert delivered(effects) == {2: [1, 2]}
    assert redelivered(effects) == {}


@pytest.mark.spec("D13")
def test_one_that_waits_may_leave_and_nothing_changes() -> None:
    play = durable_play("priority", None, None, events=3)
    play.do(RollBack(1, (span(1),)))

    assert delivered(play.do(Detach(2))) == {}
    assert delivered(play.do(TakeSeat("d", 3, "s3"))) == {}


@pytest.mark.spec("D13")
def test_what_was_rolled_back_goes_to_whoever_takes_over() -> None:
    play = durable_play("priority", None, None, events=3)
    play.do(RollBack(1, (span(0), span(1))))
    effects = play.do(Detach(1))

    assert delivered(effects) == {2: [0, 1, 2]}
    assert redelivered(effects) == {}


@pytest.mark.spec("D15")
def test_an_ack_covers_all_lower_ids() -> None:
    play = durable_play("priority", None, None, events=5)
    play.do(Ack(1, (span(3),)))

    assert outstanding(play) == [4]


@pytest.mark.spec("D9")
def test_it_takes_no_window_and_no_selector() -> None:
    play = play_of()
    with pytest.raises(InvalidArgument, match="does not keep a selector"):
        play.do(AddDurable("d", "priority", selector="a = 1"))
    play.do(AddDurable("d", "priority"))
    with pytest.raises(InvalidArgument, match="does not take a window"):
        play.do(TakeSeat("d", 1, "s1", window=5))


def test_its_events_cannot_be_purged_for_it_alone() -> None:
    play = durable_play("priority", None, events=3)
    with pytest.raises(IllegalState, match="d is priority"):
        play.do(PurgeOutstanding("d", (span(0),)))


@pytest.mark.spec("E8")
def test_the_one_served_gets_transient_events() -> None:
    play = durable_play("priority", None, None)
    passing = Publish(Digest(2, 200, 100, transient=(Span(0, 2),)))

    assert delivered(play.do(passing)) == {1: [0, 1]}
    assert outstanding(play) == []
