"""Queues: each event goes to one reader, until this reader commits."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.plays import outstanding, play_of
from penstock_core.durable.queue import KIND, READERS, readers_of
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.definitions import Edit
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.kinds import Command
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, RollBack
from penstock_core.messages.subscribers import AddSubscriber
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument, NameDoesNotExist
from penstock_testing.play import Play, delivered, finished, publish, redelivered, span


def queue(*windows: int | None, events: int = 0, **attributes: Any) -> Play:
    """Return a queue with a reader (1, 2, …) for each window; ``events`` are published last."""
    play = play_of(kind="queue", **attributes)
    for reader, window in enumerate(windows, start=1):
        play.do(TakeSeat(READERS, reader, f"s{reader}", window=window))
    if events:
        play.do(publish(events))
    return play


def held(play: Play, reader: int) -> list[int]:
    return list(play.channel.state.seats[reader][1].in_flight)


def matching(every: int, count: int) -> tuple[Span, ...]:
    """Return the ranges of every ``every``-th of ``count`` events, beginning with the first."""
    return IdSet.from_ids(range(0, count, every)).spans


def test_its_readers_are_a_durable_without_a_name() -> None:
    definition = Definition(kind="queue", start_event_id=7, max_deliveries=3)
    durable = readers_of(definition, persistent=True)

    assert (durable.name, durable.kind, durable.head) == ("", KIND, 7)
    assert durable.attributes == DurableAttributes(max_deliveries=3)
    assert KIND.redelivers_at_once
    assert not KIND.cumulative


@pytest.mark.spec("Q1")
def test_each_event_goes_to_one_reader_in_turn() -> None:
    play = queue(1, 1, 1)
    seen: list[tuple[int, int]] = []
    effects = play.do(publish(9))
    while effects:
        for reader, ids in delivered(effects).items():
            seen += [(reader, event_id) for event_id in ids]
        reader, event_id = min(
            ((r, held(play, r)[0]) for r in (1, 2, 3) if held(play, r)), key=lambda it: it[1]
        )
        effects = play.do(Ack(reader, (span(event_id),)))

    assert sorted(seen, key=lambda it: it[1]) == [(n % 3 + 1, n) for n in range(9)]


@pytest.mark.spec("Q1")
def test_a_committed_event_has_left_the_queue() -> None:
    play = queue(10, events=3)
    play.do(Ack(1, (span(1),)))

    assert list(play.channel.state.stored) == [0, 2]
    assert play.channel.state.counters.consumed == 1


@pytest.mark.spec("Q1")
def test_a_reader_that_fetches_gets_what_it_asks_for() -> None:
    play = play_of(kind="queue", events=5)
    play.do(TakeSeat(READERS, 1, "s", pull=True))
    effects = play.do(SetDemand(1, 2))

    assert delivered(effects) == {1: [0, 1]}
    assert finished(effects) == [1]


@pytest.mark.spec("Q2")
@pytest.mark.parametrize(("window", "most"), [(None, 10), (3, 3)])
def test_a_reader_holds_no_more_uncommitted_events_than_its_window(
    window: int | None, most: int
) -> None:
    play = queue(window, events=20)
    assert held(play, 1) == list(range(most))

    assert delivered(play.do(Ack(1, (span(0),)))) == {1: [most]}


@pytest.mark.spec("Q2")
@pytest.mark.parametrize(
    ("commit", "remaining"),
    [
        (Ack(1, (span(0, 4),)), [5, 6]),
        (AckPrevious(1, 2), [3, 4, 5, 6]),
        (Ack(1, (span(2),)), [0, 1, 3, 4, 5, 6]),
        (Ack(1, (span(1), span(3))), [0, 2, 4, 5, 6]),
    ],
    ids=["all it holds", "up to one", "one alone", "a list"],
)
def test_a_reader_commits_all_or_up_to_one_or_one(commit: Command, remaining: list[int]) -> None:
    play = queue(5, events=7)
    play.do(commit)

    assert list(play.channel.state.stored) == remaining
    assert outstanding(play, READERS) == remaining


@pytest.mark.spec("Q2", "D15")
def test_what_another_reader_holds_cannot_be_committed() -> None:
    play = queue(1, 1, events=2)
    with pytest.raises(IllegalState, match="only the subscription that holds it may settle it"):
        play.do(Ack(1, tuple(span(n) for n in held(play, 2))))

    assert outstanding(play, READERS) == [0, 1]


@pytest.mark.spec("Q3")
def test_a_rolled_back_event_keeps_its_id_and_its_place_and_is_counted() -> None:
    play = queue(2, events=5)
    assert not delivered(play.do(Detach(9)))
    effects = play.do(RollBack(1, (span(0),)))

    assert delivered(effects) == {1: [0]}, "before 2, which was never sent"
    assert redelivered(effects) == {0: 1}
    assert redelivered(play.do(RollBack(1, (span(0),)))) == {0: 2}


@pytest.mark.spec("Q3")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot", "close"])
def test_place_and_count_survive_a_restart(how: str) -> None:
    play = queue(2, events=4)
    play.do(RollBack(1, (span(1),)))
    play.do(Ack(1, (span(0),)))
    getattr(play, how)()
    effects = play.do(TakeSeat(READERS, 5, "s"))

    assert delivered(effects) == {5: [1, 2, 3]}
    assert redelivered(effects) == {1: 1}


@pytest.mark.spec("Q3", "D13")
def test_a_reader_that_is_gone_has_rolled_back() -> None:
    play = queue(2, 2, events=6)
    lost = held(play, 1)
    play.do(Detach(1))
    effects = play.do(AckPrevious(2, 9))

    assert delivered(effects) == {2: lost}
    assert redelivered(effects) == dict.fromkeys(lost, 1)


@pytest.mark.spec("Q1", "F5")
def test_a_reader_with_a_selector_gets_what_it_matches_of_what_waits_and_what_comes() -> None:
    play = queue(events=4)
    even = {"even": matching(2, 4)}
    effects = play.do(
        TakeSeat(READERS, 1, "s", window=10, selector="even", matched=(span(0), span(2)))
    )
    assert delivered(effects) == {1: [0, 2]}
    effects = play.do(publish(4, matched=even))

    assert delivered(effects) == {1: [4, 6]}
    assert outstanding(play, READERS) == list(range(8))


@pytest.mark.spec("Q1", "F5")
def test_what_one_reader_does_not_want_waits_for_one_that_does() -> None:
    play = queue()
    play.do(TakeSeat(READERS, 1, "s1", window=10, selector="even"))
    play.do(publish(4, matched={"even": matching(2, 4)}))

    assert delivered(play.do(TakeSeat(READERS, 2, "s2", window=10))) == {2: [1, 3]}


@pytest.mark.spec("Q1", "F5")
def test_readers_with_different_selectors_each_get_their_own() -> None:
    play = queue()
    play.do(TakeSeat(READERS, 1, "s1", window=10, selector="even"))
    play.do(TakeSeat(READERS, 2, "s2", window=10, selector="third"))
    matched = {"even": matching(2, 7), "third": matching(3, 7)}
    got = delivered(play.do(publish(7, matched=matched)))

    assert set(got[1]) <= {0, 2, 4, 6}
    assert set(got[2]) <= {0, 3, 6}
    assert sorted(got[1] + got[2]) == [0, 2, 3, 4, 6]


@pytest.mark.spec("Q3", "F5")
def test_what_a_selective_reader_rolls_back_is_still_what_it_wants() -> None:
    play = queue()
    play.do(TakeSeat(READERS, 1, "s1", window=1, selector="even"))
    play.do(publish(4, matched={"even": matching(2, 4)}))
    effects = play.do(RollBack(1, (span(0),)))

    assert delivered(effects) == {1: [0]}
    assert delivered(play.do(Ack(1, (span(0),)))) == {1: [2]}


@pytest.mark.spec("F5")
def test_the_selectors_of_readers_are_asked_of_each_event_while_they_are_there() -> None:
    play = queue()
    play.do(TakeSeat(READERS, 1, "s1", selector="even"))
    assert play.channel.state.selectors == {"even"}
    play.do(Detach(1))

    assert play.channel.state.selectors == set()


@pytest.mark.spec("X3", "F5")
def test_a_retried_publish_does_not_change_what_a_reader_wants() -> None:
    play = queue()
    play.do(TakeSeat(READERS, 1, "s1", window=10, selector="even"))
    first = publish(2, matched={"even": (Span(0, 1),)})
    retried = type(first)(first.digest, "p", 1)
    play.do(retried)
    play.do(publish(2, matched={"even": ()}))

    assert not delivered(play.do(retried))


@pytest.mark.spec("Q4")
def test_a_peek_takes_nothing_away() -> None:
    play = queue(2, events=5)
    state = play.channel.state
    everything = state.durables[READERS].outstanding_spans(state.stored)
    effects = play.do(AddSubscriber(9, "p", 0, stop_id=5, credit=10, only=everything))

    assert delivered(effects) == {9: [0, 1, 2, 3, 4]}
    assert finished(effects) == [9]
    assert outstanding(play, READERS) == [0, 1, 2, 3, 4]


@pytest.mark.spec("Q5", "T1")
def test_what_expires_on_a_queue_is_read_by_nobody() -> None:
    play = queue(1, ttl=100, events=3)
    play.wait(100)

    assert not delivered(play.do(TakeSeat(READERS, 2, "late")))
    assert outstanding(play, READERS) == []
    play.do(Ack(1, (span(0),)))


@pytest.mark.spec("Q5", "T3")
def test_a_full_queue_drops_its_oldest() -> None:
    play = queue(capacity=2, events=3)

    assert outstanding(play, READERS) == [1, 2]
    assert play.channel.state.counters.evicted == 1


@pytest.mark.spec("Q5", "T9")
def test_a_purge_takes_events_from_readers() -> None:
    play = queue(1, events=3)
    play.do(PurgeEvents((span(0, 1),)))

    assert play.answer == 2
    assert outstanding(play, READERS) == [2]
    assert held(play, 1) == [2]


@pytest.mark.spec("Q5", "K1")
def test_a_newer_value_of_a_key_takes_the_older_from_the_queue() -> None:
    play = queue(keys={"k": 1}, events=2)
    play.do(publish(1, superseded=(span(0),)))

    assert outstanding(play, READERS) == [1, 2]
    assert play.removed[-1].cause is Cause.REPLACED


@pytest.mark.spec("Q5")
def test_a_queue_without_readers_keeps_its_events() -> None:
    play = queue(events=3)
    play.wait(1 << 40)

    assert delivered(play.do(TakeSeat(READERS, 1, "s"))) == {1: [0, 1, 2]}


def test_a_queue_has_readers_and_no_durables() -> None:
    play = queue()
    with pytest.raises(IllegalState, match="orders is a queue; queues have readers, not durables"):
        play.do(AddDurable("d", "shared"))
    with pytest.raises(NameDoesNotExist):
        play.do(TakeSeat("d", 1, "s"))

    assert set(play.channel.state.durables) == {READERS}


def test_a_durable_of_a_channel_takes_no_selector_of_a_reader() -> None:
    play = play_of()
    play.do(AddDurable("d", "shared"))
    with pytest.raises(InvalidArgument, match="only queues do"):
        play.do(TakeSeat("d", 1, "s", selector="even"))

    assert not play.channel.state.seats


@pytest.mark.spec("Q2")
@pytest.mark.parametrize("window", [0, -1, 1_000_001])
def test_a_window_that_cannot_be_is_refused(window: int) -> None:
    with pytest.raises(InvalidArgument, match=f"window is {window}"):
        queue(window)


@pytest.mark.spec("C3")
def test_a_queue_stays_a_queue() -> None:
    play = queue()

    with pytest.raises(InvalidArgument, match="kind is fixed at creation"):
        play.do(Edit(Definition(type="persistent")))
