"""Subscribers of the JMS engine wait for the events that their selectors match, and for no
others."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.engines.jms_channels import conserved, jms, live, removed_by_cause
from packages.core.tests.plays import play_of
from penstock_core.ids.ids import IdSet
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.publishing import Appended, Publish
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack
from penstock_core.messages.subscribers import AddSubscriber, Disconnect, GrantCredit
from penstock_core.vocabulary.definitions import Storage
from penstock_testing.play import Play, delivered, publish, span


def picky(*, credit: int = 100, confirms: bool = False, **attributes: Any) -> Play:
    """A subscriber to events that match ``x``."""
    play = jms(**attributes)
    play.do(AddSubscriber(1, "s", 0, credit=credit, selector="x", confirms=confirms))
    return play


def some(count: int, *matching: int, **more: Any) -> Publish:
    """``count`` events; those of these offsets match ``x``."""
    return publish(count, matched={"x": tuple(span(offset) for offset in matching)}, **more)


@pytest.mark.spec("J2", "T8")
def test_what_it_does_not_match_is_dropped_as_it_is_published() -> None:
    play = picky(credit=0)

    play.do(some(5, 1, 4))

    assert live(play) == [1, 4]
    assert play.channel.state.counters.dropped == 3
    assert delivered(play.do(GrantCredit(1, 10))) == {1: [1, 4]}
    assert live(play) == []
    assert conserved(play)


@pytest.mark.spec("J2", "J4")
def test_what_matches_nobody_costs_no_memory_and_evicts_nothing() -> None:
    play = picky(credit=0, type="mixed", capacity=2, storage=Storage(honour_capacity=True))
    play.do(some(2, 0, 1))

    play.do(some(3))

    assert live(play) == [0, 1]
    assert not any(isinstance(fact, Appended) for fact in play.recorded)
    assert conserved(play)


@pytest.mark.spec("J2", "J6")
def test_each_event_stays_for_those_it_matches() -> None:
    play = picky(credit=0)
    play.do(AddSubscriber(2, "t", 0, credit=100, selector="y"))
    play.do(publish(3, matched={"x": (span(0, 1),), "y": (span(1),)}))

    assert live(play) == [0, 1]
    play.do(Detach(1))

    assert live(play) == []
    assert conserved(play)


@pytest.mark.spec("J2")
def test_one_without_a_selector_waits_for_all() -> None:
    play = picky(credit=0)
    play.do(AddSubscriber(2, "t", 0, credit=0))

    play.do(some(3, 1))

    assert live(play) == [0, 1, 2]
    play.do(Detach(2))
    assert live(play) == [1]


@pytest.mark.spec("J6", "D6")
def test_what_only_a_durable_wants_leaves_with_its_acknowledgement() -> None:
    play = picky(credit=0)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 2, "w"))
    play.do(some(3, 1))
    assert live(play) == [0, 1, 2]

    play.do(Ack(2, (span(0, 2),)))

    assert live(play) == [1]
    assert removed_by_cause(play) == {"consumed": 2}
    assert conserved(play)


@pytest.mark.spec("E8")
def test_a_transient_event_reaches_it_if_it_matches() -> None:
    play = picky()

    assert delivered(play.do(some(4, 1, 2, transient=(span(0, 1),)))) == {1: [1, 2]}
    assert live(play) == []
    assert conserved(play)


@pytest.mark.spec("J5")
def test_while_it_is_absent_what_matches_waits_and_comes_once() -> None:
    play = picky(confirms=True)
    play.do(some(2, 0, 1))
    play.do(GrantCredit(1, 0, 1))
    play.do(Disconnect(1))
    play.do(some(4, 0, 3))
    assert live(play) == [1, 2, 5]

    back = play.do(AddSubscriber(2, "s", 1, credit=100, selector="x", resumes=1, confirms=True))

    assert delivered(back) == {2: [1, 2, 5]}
    play.do(GrantCredit(2, 0, 6))
    assert live(play) == []
    assert removed_by_cause(play) == {"dropped": 4}
    assert conserved(play)


@pytest.mark.spec("J5", "J3")
def test_who_comes_back_with_another_selector_begins_anew() -> None:
    play = picky()
    play.do(Disconnect(1))
    play.do(some(2, 0))
    assert live(play) == [0]

    assert play.do(AddSubscriber(2, "s", 0, credit=100, selector="y", resumes=1)) == []

    assert live(play) == []
    assert conserved(play)


def test_a_subscriber_that_reads_nothing_remembers_nothing_of_what_has_left() -> None:
    play = picky(credit=0)
    for _ in range(100):
        play.do(some(3, 0))
        play.do(PurgeEvents((span(0, 1_000),)))

    assert play.channel.state.subscribers[1].only == IdSet()


def test_the_default_engine_asks_no_subscriber() -> None:
    play = play_of()
    play.do(AddSubscriber(1, "s", 0, credit=100))
    play.do(AddSubscriber(2, "s", 0, credit=100, selector=""))

    assert play.channel.state.selectors == set()
    assert delivered(play.do(publish(2))) == {1: [0, 1], 2: [0, 1]}


def test_a_selector_is_asked_once_however_many_have_it() -> None:
    play = picky()
    for subscription in range(2, 100):
        play.do(AddSubscriber(subscription, "t", 0, credit=1, selector="x"))
    play.do(Disconnect(2))

    assert play.channel.state.selectors == {"x"}
    play.wait(60_000)
    play.sweep()
    for subscription in (1, *range(3, 100)):
        play.do(Detach(subscription))
    assert play.channel.state.selectors == set()
