"""A durable that one client holds as a whole: attaching, acknowledging and burying."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, dying, outstanding, play_of, reader, removals
from penstock_core.durable.queue import READERS
from penstock_core.ids.ids import Span
from penstock_core.messages.delivery import HoldEvents
from penstock_core.messages.durables import AddDurable, PurgeOutstanding
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, Buried, BuryEvents
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import DurableInUse, IllegalState, InvalidArgument
from penstock_testing.play import Play, delivered, publish, redelivered, span

KINDS = ("exclusive", "priority", "shared", "serial", "shared_queued")
COUNTING = ("shared", "serial", "shared_queued")


def sole(durable: str = "d", subscription: int = 9) -> TakeSeat:
    return TakeSeat(durable, subscription, f"s{subscription}", sole=True)


def held_play(kind: str, *, events: int = 10, dead: bool = False) -> Play:
    """Return a channel with a durable ``d`` that subscription 9 holds as a whole."""
    play = dying() if dead else durable_play(kind)
    if dead:
        play.do(AddDurable("d", kind))
    play.do(sole())
    play.do(publish(events))
    return play


def in_hands(play: Play, subscription: int = 9) -> list[int]:
    return list(play.channel.state.seats[subscription][1].in_flight)


@pytest.mark.spec("D14")
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_sits_beside_a_sole_client_whatever_the_type(kind: str) -> None:
    play = held_play(kind)
    with pytest.raises(DurableInUse, match="held as a whole by session s9"):
        play.do(TakeSeat("d", 1, "s1"))
    with pytest.raises(DurableInUse, match="held as a whole"):
        play.do(sole(subscription=2))
    play.do(Detach(9))
    play.do(TakeSeat("d", 1, "s1"))
    with pytest.raises(DurableInUse, match="in use by session s1"):
        play.do(sole())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_delivered_to_it_and_it_takes_what_it_names(kind: str) -> None:
    play = held_play(kind)
    assert delivered(play.do(publish(3))) == {}
    assert delivered(play.do(HoldEvents(9, Span(2, 5)))) == {}

    assert in_hands(play) == [2, 3, 4]
    assert outstanding(play) == list(range(13))
    play.do(HoldEvents(9, Span(4, 7)))
    assert in_hands(play) == [2, 3, 4, 5, 6]


def test_what_is_settled_or_gone_is_not_taken() -> None:
    play = durable_play("shared", 10, events=10)
    play.do(Ack(1, (span(1), span(4))))
    play.do(Detach(1))
    play.do(sole())
    play.do(PurgeEvents((span(2),)))
    play.do(PurgeOutstanding("d", (span(3),)))
    play.do(HoldEvents(9, Span(0, 7)))

    assert in_hands(play) == [0, 5, 6]


def test_ids_that_were_not_given_yet_are_not_held() -> None:
    """The client does not hold ids that were not assigned yet, not even after they are assigned."""
    play = held_play("shared", events=2)
    play.do(AddDurable("even", "serial", selector="even"))
    play.do(sole("even", 8))
    for subscription in (8, 9):
        play.do(HoldEvents(subscription, Span(0, 100)))
    play.do(publish(4, matched={"even": (Span(0, 1), Span(2, 3))}))

    assert in_hands(play) == [0, 1]
    assert outstanding(play) == [0, 1, 2, 3, 4, 5]
    assert outstanding(play, "even") == [2, 4]
    assert in_hands(play, 8) == []


@pytest.mark.parametrize("kind", KINDS)
def test_it_acknowledges_all_that_is_outstanding_up_to_an_event(kind: str) -> None:
    """The events need not be held: after a reconnect none is, but the client knows its committed
    position."""
    play = held_play(kind)
    play.do(HoldEvents(9, Span(3, 6)))
    play.do(AckPrevious(9, 5))
    assert outstanding(play) == [6, 7, 8, 9]
    assert in_hands(play) == []

    facts = len(play.recorded)
    play.do(AckPrevious(9, 5))
    assert len(play.recorded) == facts


@pytest.mark.spec("D13", "E9")
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_held_comes_back_as_from_any_client(kind: str) -> None:
    play = held_play(kind, events=4)
    play.do(HoldEvents(9, Span(0, 2)))
    play.do(Detach(9))
    assert outstanding(play) == [0, 1, 2, 3]

    play.do(sole(subscription=10))
    play.do(HoldEvents(10, Span(0, 4)))
    counts = {n: list(ids) for n, ids in play.channel.state.durables["d"].levels.items()}
    assert counts == ({1: [0, 1]} if kind in COUNTING else {})
    assert in_hands(play, 10) == [0, 1, 2, 3]
    play.do(Detach(10))
    effects = play.do(TakeSeat("d", 11, "s11"))
    assert redelivered(effects) == ({0: 2, 1: 2, 2: 1, 3: 1} if kind in COUNTING else {})


@pytest.mark.spec("T10")
def test_what_a_sole_client_holds_too_often_is_dead() -> None:
    play = dying()
    play.do(AddDurable("d", "serial", max_deliveries=2))
    play.do(publish(3))
    for subscription in (9, 10):
        play.do(sole(subscription=subscription))
        play.do(HoldEvents(subscription, Span(0, 2)))
        play.do(Detach(subscription))

    assert removals(play) == [(Cause.UNDELIVERABLE, [0, 1], [0, 1])]
    assert outstanding(play) == [2]


@pytest.mark.spec("T7", "T8", "T10")
@pytest.mark.parametrize("kind", KINDS)
def test_a_buried_event_is_dead_and_the_others_stay(kind: str) -> None:
    play = held_play(kind, dead=True)
    play.do(HoldEvents(9, Span(0, 5)))
    play.do(BuryEvents(9, (span(3), span(7))))

    assert play.answer == 2
    assert removals(play) == [(Cause.REJECTED, [3, 7], [3, 7])]
    assert in_hands(play) == [0, 1, 2, 4]
    assert outstanding(play) == [0, 1, 2, 4, 5, 6, 8, 9]
    counters = play.channel.state.counters
    assert (counters.dead, counters.departed_count) == (2, 2)
    play.do(BuryEvents(9, (span(3),)))
    assert play.answer == 0
    play.restart()
    assert outstanding(play) == [0, 1, 2, 4, 5, 6, 8, 9]


@pytest.mark.spec("T6", "T10")
def test_an_event_buried_for_one_durable_stays_for_the_others() -> None:
    play = held_play("serial", dead=True)
    reader(play, "other", "shared", subscription=2)
    play.do(BuryEvents(9, (span(3),)))

    assert play.recorded[-1] == Buried("d", (span(3),), Cause.REJECTED)
    assert 3 not in outstanding(play)
    assert 3 in outstanding(play, "other")
    play.do(Ack(2, (span(3),)))
    assert removals(play) == [(Cause.CONSUMED, [3], [])]


@pytest.mark.spec("D15", "T10")
def test_a_client_that_is_not_alone_buries_what_it_holds() -> None:
    play = dying()
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", window=2))
    play.do(TakeSeat("d", 2, "s2", window=2))
    play.do(publish(4))
    mine = list(play.channel.state.seats[1][1].in_flight)
    theirs = list(play.channel.state.seats[2][1].in_flight)
    with pytest.raises(IllegalState, match="only the subscription that holds it may settle it"):
        play.do(BuryEvents(1, (span(theirs[0]),)))
    play.do(BuryEvents(1, (span(mine[0]),)))

    assert removals(play) == [(Cause.REJECTED, [mine[0]], [mine[0]])]
    assert in_hands(play, 1) == mine[1:]


def test_without_a_dead_event_store_nothing_is_buried() -> None:
    play = held_play("serial")
    with pytest.raises(IllegalState, match="no dead event store"):
        play.do(BuryEvents(9, (span(3),)))


def test_no_more_is_buried_in_one_step_than_may_move_in_one() -> None:
    play = held_play("serial", dead=True, events=10_001)
    with pytest.raises(InvalidArgument, match="10001 events are too many to reject in one step"):
        play.do(BuryEvents(9, (Span(0, 10_001),)))


def test_only_a_sole_client_takes_by_id() -> None:
    play = durable_play("shared", 1, events=3)
    with pytest.raises(IllegalState, match="does not hold durable d as a whole"):
        play.do(HoldEvents(1, Span(0, 3)))


def test_a_durable_with_lanes_is_not_held() -> None:
    play = durable_play("shared")
    play.do(AddDurable("lanes", "serial", order_by="account"))
    with pytest.raises(InvalidArgument, match="order_by"):
        play.do(sole("lanes"))


def test_a_queue_is_not_held() -> None:
    play = play_of(Definition(kind="queue"))
    with pytest.raises(IllegalState, match="is a queue"):
        play.do(sole(READERS))
