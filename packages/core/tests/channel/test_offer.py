"""Which events a channel sends to which clients, and when."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, play_of
from penstock_core.ids.ids import Span
from penstock_core.messages.delivery import SetDemand, Skip, StallSession
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.subscribers import AddSubscriber, GrantCredit
from penstock_core.vocabulary.effects import Deliver, ReportEnd
from penstock_testing.play import delivered, finished, publish


@pytest.mark.parametrize("durable", [False, True])
def test_a_session_that_cannot_take_more_gets_nothing_and_costs_nobody(durable: bool) -> None:
    play = durable_play("shared")
    for subscription, session in ((1, "slow"), (2, "quick")):
        if durable:
            play.do(TakeSeat("d", subscription, session, window=5))
        else:
            play.do(AddSubscriber(subscription, session, 0, credit=9))
    play.channel.attend(StallSession("slow", stalled=True), play.now_us)
    assert delivered(play.do(publish(3))) == {2: [0, 1, 2]}
    play.channel.attend(StallSession("slow", stalled=False), play.now_us)

    assert delivered(play.offers()) == ({} if durable else {1: [0, 1, 2]})


def test_nothing_is_offered_twice() -> None:
    play = play_of(events=2)
    assert play.do(AddSubscriber(1, "s", 0, credit=9))

    assert not play.channel.has_offers
    assert list(play.channel.offer()) == []


@pytest.mark.parametrize("credit", [2, 3, 9])
def test_who_has_everything_is_not_looked_at_again(credit: int) -> None:
    play = play_of(events=3)
    play.channel.attend(AddSubscriber(1, "s", 0, credit=credit), play.now_us)
    assert delivered(list(play.channel.offer())) == {1: list(range(min(credit, 3)))}

    has_all = credit >= 3
    assert play.channel.has_offers is not has_all
    play.do(GrantCredit(1, 1))
    assert delivered(play.do(publish(1))) == ({1: [3]} if has_all else {})


@pytest.mark.spec("D17")
def test_a_durable_remembers_when_it_was_last_read() -> None:
    play = durable_play("shared")
    play.wait(5)
    play.do(TakeSeat("d", 1, "s", window=5))
    durable = play.channel.state.durables["d"]

    assert durable.read_us == play.now_us
    assert [seat.session for seat in durable.seats] == ["s"]
    play.do(Detach(1))
    assert durable.seats == []


def test_while_a_block_is_written_only_events_stored_before_it_go_out() -> None:
    play = durable_play("shared")
    play.do(publish(3))
    for command in (TakeSeat("d", 1, "s", window=10), AddSubscriber(2, "t", 0), GrantCredit(2, 10)):
        play.channel.attend(command, play.now_us)
    for fact in play.channel.decide(publish(2), play.now_us).facts:
        play.channel.apply(fact)

    assert delivered(list(play.channel.offer(below=3))) == {1: [0, 1, 2], 2: [0, 1, 2]}
    assert delivered(play.offers()) == {1: [3, 4], 2: [3, 4]}


def test_a_filtered_durable_waits_for_the_block_too() -> None:
    play = play_of()
    play.do(AddDurable("d", "shared", selector="n > 1"))
    every = {"n > 1": (Span(0, 2),)}
    play.do(publish(2, matched=every))
    play.channel.attend(TakeSeat("d", 1, "s", window=10), play.now_us)
    for fact in play.channel.decide(publish(2, matched=every), play.now_us).facts:
        play.channel.apply(fact)

    assert delivered(list(play.channel.offer(below=2))) == {1: [0, 1]}
    assert delivered(play.offers()) == {1: [2, 3]}


def test_a_subscriber_that_asks_is_told_when_it_has_all_there_is_now() -> None:
    play = play_of(events=3)
    play.do(AddSubscriber(1, "s", 0, credit=0))
    play.do(AddSubscriber(2, "t", 3, credit=9))
    play.do(GrantCredit(1, 9))

    assert finished(play.do(SetDemand(1, 0))) == [1]
    assert finished(play.do(publish(1))) == [], "once"
    assert finished(play.do(SetDemand(2, 0))) == [2]
    assert finished(play.do(SetDemand(3, 0))) == [], "there is no such one"


def test_all_there_is_goes_out_first_as_far_as_there_is_credit() -> None:
    play = play_of(events=5)
    play.do(AddSubscriber(1, "s", 0, credit=0))
    play.channel.attend(SetDemand(1, 0), play.now_us)
    play.channel.attend(GrantCredit(1, 3), play.now_us)

    effects = play.offers()

    assert delivered(effects) == {1: [0, 1, 2]}
    assert isinstance(effects[-1], ReportEnd)


def test_what_was_not_for_it_leaves_credit_for_the_rest() -> None:
    play = play_of(events=5)
    play.do(AddSubscriber(1, "s", 0, credit=0))
    for command in (GrantCredit(1, 3), SetDemand(1, 0)):
        play.channel.attend(command, play.now_us)
    effects = []
    for effect in play.channel.offer():
        effects.append(effect)
        if isinstance(effect, Deliver):
            play.channel.attend(Skip(1, effect.spans), play.now_us)
    assert finished(effects) == []

    assert finished(play.offers()) == [1]


def test_who_cannot_take_more_is_not_told_before_it_has_the_rest() -> None:
    play = play_of(events=2)
    play.do(AddSubscriber(1, "s", 0, credit=0))
    play.channel.attend(StallSession("s", stalled=True), play.now_us)
    play.do(GrantCredit(1, 9))
    assert play.do(SetDemand(1, 0)) == []
    assert not play.channel.has_offers, "nobody looks again and again"

    play.channel.attend(StallSession("s", stalled=False), play.now_us)

    assert finished(play.offers()) == [1]


def test_who_asks_is_not_told_while_a_block_is_written() -> None:
    play = play_of(events=2)
    play.do(AddSubscriber(1, "s", 0, credit=9))
    play.channel.attend(SetDemand(1, 0), play.now_us)

    assert list(play.channel.offer(below=2)) == []

    assert finished(play.offers()) == [1]


@pytest.mark.spec("D5")
def test_a_demand_that_is_taken_back_at_once_is_met_by_nothing() -> None:
    play = durable_play("shared")
    play.do(TakeSeat("d", 1, "s", pull=True))
    play.do(SetDemand(1, 5))
    play.channel.attend(SetDemand(1, 0, at_once=True), play.now_us)

    effects = play.do(publish(1))

    assert delivered(effects) == {}
    assert finished(effects) == [], "nobody waits for it"
    assert delivered(play.do(SetDemand(1, 1))) == {1: [0]}
