"""Plain subscriptions."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import play_of
from penstock_core.messages.delivery import EndChoosing, Skip, Withhold
from penstock_core.messages.retention import EndRelay, PurgeEvents
from penstock_core.messages.seats import Detach
from penstock_core.messages.subscribers import AddSubscriber, GrantCredit
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_testing.play import delivered, finished, publish, span


@pytest.mark.spec("E6")
def test_stored_events_then_live_ones_without_gap_or_repeat() -> None:
    play = play_of(events=5)
    got = delivered(play.do(AddSubscriber(1, "s", 2, credit=100)))[1]
    got += delivered(play.do(publish(2)))[1]
    got += delivered(play.do(publish(1)))[1]

    assert got == [2, 3, 4, 5, 6, 7]


@pytest.mark.spec("E6")
def test_a_subscription_from_an_id_to_come_waits_for_it() -> None:
    play = play_of(events=2)
    assert not delivered(play.do(AddSubscriber(1, "s", 4, credit=100)))

    assert delivered(play.do(publish(4))) == {1: [4, 5]}


@pytest.mark.spec("J1")
def test_any_number_of_subscribers_replay_from_any_id() -> None:
    play = play_of(events=4)
    for start in range(5):
        got = delivered(play.do(AddSubscriber(start + 1, "s", start, credit=9)))

        assert got.get(start + 1, []) == list(range(start, 4))
    assert len(play.channel.state.stored) == 4


def test_credit_is_what_a_subscriber_can_take() -> None:
    play = play_of(events=5)
    assert delivered(play.do(AddSubscriber(1, "s", 0, credit=2))) == {1: [0, 1]}
    assert not delivered(play.do(publish(1)))
    assert delivered(play.do(GrantCredit(1, 3))) == {1: [2, 3, 4]}
    with pytest.raises(InvalidArgument, match="the credit is -1; it must be 0 or more"):
        play.do(GrantCredit(1, -1))


def test_credit_may_be_taken_back_also_more_than_is_left_of_it() -> None:
    play = play_of(events=5)
    play.do(AddSubscriber(1, "s", 0, credit=2))

    assert not delivered(play.do(GrantCredit(1, 0, withdrawn=2)))
    assert not delivered(play.do(GrantCredit(1, 2)))
    assert delivered(play.do(GrantCredit(1, 1))) == {1: [2]}


def test_what_a_selector_left_out_takes_no_credit() -> None:
    play = play_of(events=5)
    play.do(AddSubscriber(1, "s", 0, credit=2))
    play.channel.attend(Skip(1, (span(0, 1),)), play.now_us)

    assert delivered(play.offers()) == {1: [2, 3]}


@pytest.mark.spec("E4")
def test_a_purge_leaves_a_gap() -> None:
    play = play_of(events=5)
    play.do(PurgeEvents((span(1, 2),)))

    assert delivered(play.do(AddSubscriber(1, "s", 0, credit=9))) == {1: [0, 3, 4]}


def test_a_browse_ends_where_the_channel_ended_when_it_began() -> None:
    play = play_of(events=3)
    effects = play.do(AddSubscriber(1, "s", 0, stop_id=3, credit=2))
    assert (delivered(effects), finished(effects)) == ({1: [0, 1]}, [])
    assert not play.do(publish(1))
    effects = play.do(GrantCredit(1, 5))

    assert (delivered(effects), finished(effects)) == ({1: [2]}, [1])
    assert not play.channel.state.subscribers


def test_a_browse_of_nothing_ends_at_once() -> None:
    assert finished(play_of().do(AddSubscriber(1, "s", 0, stop_id=0))) == [1]


def test_a_subscriber_that_left_gets_nothing() -> None:
    play = play_of()
    play.do(AddSubscriber(1, "s", 0, credit=9))
    play.do(Detach(1))

    assert not play.do(publish(1))


@pytest.mark.spec("E6")
def test_what_a_client_has_no_room_for_comes_when_it_has() -> None:
    play = play_of(events=6)
    assert delivered(play.do(AddSubscriber(1, "s", 0, credit=5))) == {1: [0, 1, 2, 3, 4]}
    assert not delivered(play.do(Withhold(1, (span(2, 4),), is_full=True)))
    assert not delivered(play.do(publish(1)))
    assert not delivered(play.do(GrantCredit(1, 2)))

    assert delivered(play.do(GrantCredit(1, 0, has_room=True))) == {1: [2, 3, 4, 5, 6]}
    assert not delivered(play.do(Withhold(1, (), is_full=True)))
    assert not delivered(play.do(publish(1)))
    assert not delivered(play.do(GrantCredit(1, 9)))
    assert delivered(play.do(GrantCredit(1, 0, has_room=True))) == {1: [7]}
    assert not delivered(play.do(Withhold(7, (span(2, 4),), is_full=True)))  # nobody


@pytest.mark.spec("F5")
def test_what_its_selector_takes_long_for_comes_once_it_is_chosen_whatever_room_there_is() -> None:
    play = play_of(events=6)
    assert delivered(play.do(AddSubscriber(1, "s", 0, credit=5))) == {1: [0, 1, 2, 3, 4]}
    assert not delivered(play.do(Withhold(1, (span(2, 4),), is_full=True, is_choosing=True)))
    assert not delivered(play.do(publish(1)))
    assert not delivered(play.do(GrantCredit(1, 2, has_room=True)))

    assert delivered(play.do(EndChoosing(1))) == {1: [2, 3, 4, 5, 6]}
    assert not delivered(play.do(Withhold(1, (span(6),), is_full=True, is_choosing=True)))
    assert not delivered(play.do(EndChoosing(1))), "there is no room"
    assert delivered(play.do(GrantCredit(1, 0, has_room=True))) == {1: [6]}
    assert not play.do(EndChoosing(7))  # nobody


@pytest.mark.spec("E8", "F5")
def test_transient_events_wait_for_a_selector_that_takes_long_while_there_is_memory() -> None:
    play = play_of(events=2)
    play.do(AddSubscriber(1, "slow", 0, credit=9))
    play.do(Withhold(1, (span(1),), is_full=False, is_choosing=True))
    play.do(AddSubscriber(2, "there", 2, credit=9))
    passing = publish(1, transient=(span(0),))
    assert delivered(play.do(passing)) == {2: [2]}
    assert list(play.channel.state.relayed) == [2]

    assert delivered(play.do(EndChoosing(1))) == {1: [1, 2]}
    assert not play.channel.state.relayed
    assert play.channel.state.counters.relayed == 1

    play.do(Withhold(1, (), is_full=False, is_choosing=True))
    play.do(passing)
    play.do(EndRelay(spares=False))
    assert not delivered(play.do(EndChoosing(1)))
    assert play.channel.state.counters.relayed == 2


@pytest.mark.spec("E6")
def test_a_browse_does_not_end_before_what_was_withheld() -> None:
    play = play_of(events=3)
    assert delivered(play.do(AddSubscriber(1, "s", 0, stop_id=3, credit=2))) == {1: [0, 1]}
    effects = play.do(Withhold(1, (span(1, 1),), is_full=False))
    assert delivered(effects) == {1: [1]}
    assert not finished(effects)

    effects = play.do(GrantCredit(1, 5))
    assert delivered(effects) == {1: [2]}
    assert finished(effects)
