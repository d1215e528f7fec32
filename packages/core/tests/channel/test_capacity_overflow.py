"""Events that leave because of the capacity before they were offered still go to connected
clients."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, dying, outstanding, play_of, removals
from penstock_core.messages.delivery import HoldEvents, SetDemand
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.messages.subscribers import AddSubscriber, GrantCredit
from penstock_core.vocabulary.causes import Cause
from penstock_testing.play import Play, delivered, publish, span

KINDS = ("exclusive", "priority", "shared", "serial", "shared_queued")


def pipelined(play: Play, publishes: int, count: int = 1) -> dict[int, list[int]]:
    """Publish several times before the channel offers any event; return the deliveries."""
    for _ in range(publishes):
        play.step(publish(count))
    return delivered(play.offers())


@pytest.mark.spec("T3", "E6")
@pytest.mark.parametrize(("publishes", "count"), [(50, 1), (1, 50), (10, 5)])
@pytest.mark.parametrize("engine", ["default", "jms"])
def test_a_subscriber_with_credit_gets_what_was_published(
    publishes: int, count: int, engine: str
) -> None:
    play = play_of(capacity=10, engine=engine)
    play.do(AddSubscriber(1, "s", 0, credit=1_000))

    assert pipelined(play, publishes, count) == {1: list(range(50))}
    state = play.channel.state
    assert len(state.stored) == (10 if engine == "default" else 0)
    assert not state.leaving
    assert state.counters.published == len(state.stored) + state.counters.departed_count
    assert delivered(play.do(publish(1))) == {1: [50]}


@pytest.mark.spec("T3", "J2")
def test_on_the_jms_engine_a_selector_and_a_lost_connection_are_no_hindrance() -> None:
    play = play_of(capacity=1, engine="jms")
    play.do(AddSubscriber(1, "s", 0, credit=1_000, confirms=True, selector="even"))
    for _ in range(5):
        play.step(publish(2, matched={"even": (span(0),)}))

    assert delivered(play.offers()) == {1: [0, 2, 4, 6, 8]}
    assert list(play.channel.state.subscribers[1].unconfirmed) == [8]
    assert play.channel.state.subscribers[1].only is not None
    assert len(play.channel.state.subscribers[1].only) == 1


@pytest.mark.spec("T3")
def test_who_has_no_credit_does_not_hold_anything_back() -> None:
    play = play_of(capacity=10)
    play.do(AddSubscriber(1, "s", 0, credit=4))
    play.do(AddSubscriber(2, "t", 0))

    assert pipelined(play, 30) == {1: [0, 1, 2, 3]}
    assert list(play.channel.state.stored) == list(range(20, 30))
    assert delivered(play.do(GrantCredit(1, 100))) == {1: list(range(20, 30))}
    assert delivered(play.do(GrantCredit(2, 1))) == {2: [20]}


@pytest.mark.spec("T3")
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_a_durable_gets_as_much_as_its_window_has_room_for(kind: str) -> None:
    window = None if kind in ("exclusive", "priority") else 20
    play = durable_play(kind, window, capacity=10)
    got = pipelined(play, 50)

    assert got == {1: list(range(50 if window is None else 20))}
    assert outstanding(play) == list(range(40, 50))
    if window is None:
        play.do(Ack(1, (span(49),)))
    else:
        effects = play.do(Ack(1, (span(0, 19),)))
        assert delivered(effects) == {1: list(range(40, 50))}
        play.do(Ack(1, (span(40, 49),)))
    assert outstanding(play) == []
    state = play.channel.state
    assert (state.counters.published, state.counters.evicted, state.counters.consumed) == (
        50,
        40,
        10,
    )


@pytest.mark.spec("T3")
@pytest.mark.parametrize("kind", KINDS)
def test_an_event_in_a_clients_hands_that_makes_room_does_not_come_twice(kind: str) -> None:
    """The event was offered while later events were being written, so only a part of the channel
    was offered."""
    window = None if kind in ("exclusive", "priority") else 2
    play = durable_play(kind, window, capacity=2)
    play.step(publish(1))
    assert delivered(list(play.channel.offer(below=1))) == {1: [0]}
    play.step(publish(2))

    assert delivered(play.offers()) == {1: [1, 2]}


@pytest.mark.spec("T3", "D18")
def test_an_event_that_waits_after_a_rollback_and_makes_room_does_not_come_sooner() -> None:
    play = play_of(capacity=2)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.step(publish(1))
    assert delivered(list(play.channel.offer(below=1))) == {1: [0]}
    play.step(RollBack(1, (span(0),), delay_ms=1_000))
    play.step(publish(2))

    assert delivered(play.offers()) == {1: [1]}


@pytest.mark.spec("T3", "D13")
@pytest.mark.parametrize("kind", KINDS)
def test_what_has_made_room_and_is_given_back_does_not_come_again(kind: str) -> None:
    play = durable_play(kind, None, capacity=2)
    assert pipelined(play, 6) == {1: [0, 1, 2, 3, 4, 5]}
    again = delivered(play.do(RollBack(1, (span(0, 2),))))
    assert again == {}
    play.do(Detach(1))

    assert delivered(play.do(TakeSeat("d", 2, "s2"))) == {2: [4, 5]}


@pytest.mark.spec("T3", "D11")
def test_lanes_are_known_of_what_has_made_room() -> None:
    play = play_of(capacity=2)
    play.lane_of = lambda event_id: event_id % 2
    play.do(AddDurable("d", "serial", order_by="k"))
    play.do(TakeSeat("d", 1, "s1", window=3))
    play.do(TakeSeat("d", 2, "s2", window=3))

    assert pipelined(play, 8) == {1: [0, 2, 4], 2: [1, 3, 5]}
    assert outstanding(play) == [6, 7]
    effects = play.do(Ack(1, (span(0), span(2), span(4))))
    assert delivered(effects) == {1: [6]}


@pytest.mark.spec("T3", "Q1")
def test_readers_of_a_queue_get_what_they_want_of_it() -> None:
    play = play_of(kind="queue", capacity=2)
    play.do(TakeSeat("", 1, "s1", window=10, selector="even"))
    play.do(TakeSeat("", 2, "s2", window=10, pull=True))
    play.do(SetDemand(2, 2))
    for _ in range(4):
        play.step(publish(2, matched={"even": (span(0),)}))

    assert delivered(play.offers()) == {1: [0, 2, 4, 6], 2: [1, 3]}


@pytest.mark.spec("T3", "T6", "T8")
def test_what_goes_by_is_dead_or_evicted_all_the_same() -> None:
    play = dying(capacity=2)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", window=10))

    assert pipelined(play, 5) == {1: [0, 1, 2, 3, 4]}
    assert removals(play)[:3] == [(Cause.EVICTED, [n], [n]) for n in range(3)]
    assert play.channel.state.counters.dead == 3


@pytest.mark.spec("T3")
def test_a_browse_and_a_client_that_holds_the_durable_do_not_see_it() -> None:
    play = durable_play("shared", capacity=2)
    play.do(TakeSeat("d", 1, "s1", sole=True))
    play.do(publish(2))
    play.do(HoldEvents(1, span(0, 9)))
    play.do(AddSubscriber(2, "b", 0, stop_id=9, credit=100))

    assert pipelined(play, 5) == {2: [5, 6]}
    assert not play.channel.state.leaving


@pytest.mark.spec("T3")
def test_it_goes_once_those_who_were_there_are_gone() -> None:
    play = play_of(capacity=2)
    play.do(AddSubscriber(1, "s", 0, credit=10))
    play.step(publish(5))
    play.step(Detach(1))

    assert play.offers() == []
    assert not play.channel.state.leaving


@pytest.mark.spec("K4")
def test_states_that_are_merged_do_not_go_by() -> None:
    play = play_of(engine="merge", keys={"k": 1}, capacity=2)
    play.do(AddSubscriber(1, "s", 0, credit=10))

    assert pipelined(play, 5) == {1: [3, 4]}
