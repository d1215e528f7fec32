"""The facts that a publish leads to."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import play_of
from penstock_core.channel.publish import RESERVE
from penstock_core.ids.ids import Span
from penstock_core.messages.publishing import Publish
from penstock_core.messages.retention import Removed, Sweep
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import CapacityReached, EventTooLarge, MemoryLimit
from penstock_testing.play import publish, span


@pytest.mark.spec("E4")
def test_ids_are_dense_and_begin_where_the_channel_says() -> None:
    play = play_of(start_event_id=100)
    answers = []
    for count in (1, 3, 2):
        play.do(publish(count))
        answers.append(play.answer)

    assert answers == [Span(100, 101), Span(101, 104), Span(104, 106)]


@pytest.mark.spec("E4")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot", "close"])
def test_ids_go_on_after_a_restart_without_a_gap(how: str) -> None:
    play = play_of(events=3)
    getattr(play, how)()
    play.do(publish(1))

    assert play.answer == span(3)


@pytest.mark.spec("E4", "C1c")
def test_ids_given_in_memory_are_never_given_again() -> None:
    play = play_of(type="reliable", events=3)
    play.restart()
    play.do(publish(1))

    assert play.answer == span(3 + RESERVE)


@pytest.mark.spec("C1c")
def test_an_orderly_end_skips_no_ids() -> None:
    play = play_of(type="reliable", events=3)
    play.close()
    play.do(publish(1))

    assert play.answer == span(3)


@pytest.mark.spec("E7")
def test_a_too_large_event_is_refused_with_both_sizes_and_nothing_is_stored() -> None:
    play = play_of()
    limit = play.rules.event_bytes_max
    with pytest.raises(EventTooLarge, match=f"{limit + 1} bytes.*{limit} at most"):
        play.do(Publish(Digest(2, limit * 2, limit + 1)))

    assert not play.recorded
    play.do(Publish(Digest(1, limit, limit)))
    assert play.answer == span(0)


def test_memory_that_is_short_refuses_what_would_live_there() -> None:
    play = play_of(type="mixed")
    with pytest.raises(MemoryLimit, match="orders has no room: 300 bytes offered, 100 bytes"):
        play.do(Publish(Digest(3, 300, 100, volatile=(Span(1, 2),)), memory_left=100))
    play.do(Publish(Digest(3, 300, 100), memory_left=100))

    assert play.answer == span(0, 2)


@pytest.mark.spec("T4")
def test_a_full_channel_that_honours_its_capacity_stores_nothing_more() -> None:
    play = play_of(capacity=3, storage=Storage(honour_capacity=True), events=2)
    with pytest.raises(
        CapacityReached,
        match="orders has no room: 2 of 3 events are stored and 2 more were offered",
    ):
        play.do(publish(2))
    play.do(publish(1))

    assert play.answer == span(2)
    assert play.channel.state.counters.evicted == 0


@pytest.mark.spec("T4", "X1")
def test_a_transaction_begun_below_capacity_may_pass_it_as_a_whole() -> None:
    play = play_of(capacity=3, storage=Storage(honour_capacity=True), events=2)
    play.do(Publish(Digest(5, 5, 1), overshoot=True))

    assert play.answer == span(2, 6)
    with pytest.raises(CapacityReached):
        play.do(publish(1))


@pytest.mark.spec("T3")
def test_a_full_channel_drops_its_oldest_for_the_new() -> None:
    play = play_of(capacity=3, events=3)
    play.do(publish(2))

    assert list(play.channel.state.stored) == [2, 3, 4]
    assert play.channel.state.counters.evicted == 2


@pytest.mark.spec("T3")
def test_a_batch_larger_than_the_capacity_keeps_its_end() -> None:
    play = play_of(capacity=3, events=1)
    play.do(publish(10))

    assert list(play.channel.state.stored) == [8, 9, 10]
    assert play.answer == span(1, 10)


@pytest.mark.spec("K1")
def test_what_a_newer_value_replaces_leaves_by_itself() -> None:
    play = play_of(keys={"k": 1}, events=3)
    play.do(publish(3, superseded=(span(1), span(3, 4))))

    assert list(play.channel.state.stored) == [0, 2, 5]
    assert play.removed[-1] == Removed((span(1), span(3, 4)), Cause.REPLACED)
    assert play.channel.state.counters.replaced == 3


@pytest.mark.spec("K1", "T4")
def test_on_a_full_channel_a_newer_value_takes_the_place_of_the_older() -> None:
    honoured = Storage(honour_capacity=True)
    play = play_of(keys={"k": 1}, capacity=3, storage=honoured, events=3)
    play.do(publish(2, superseded=(span(0), span(3))))
    assert list(play.channel.state.stored) == [1, 2, 4]

    with pytest.raises(CapacityReached):
        play.do(publish(2, superseded=(span(1),)))


@pytest.mark.spec("K1", "T3")
def test_replaced_events_make_room_before_the_oldest_do() -> None:
    play = play_of(keys={"k": 1}, capacity=3, events=3)
    play.do(publish(2, superseded=(span(2),)))

    assert list(play.channel.state.stored) == [1, 3, 4]
    assert play.channel.state.counters.evicted == 1
    assert play.channel.state.counters.replaced == 1


@pytest.mark.spec("K1")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot", "close"])
def test_what_was_replaced_stays_replaced_over_a_restart(how: str) -> None:
    play = play_of(keys={"k": 1}, events=2)
    play.do(publish(1, superseded=(span(0),)))
    getattr(play, how)()

    assert list(play.channel.state.stored) == [1, 2]
    assert play.channel.state.counters.replaced == 1


@pytest.mark.spec("T4", "T7")
def test_what_the_realm_publishes_itself_is_not_refused() -> None:
    """Dead events, and copies of joins, were accepted when they were published first."""
    play = play_of(type="reliable", capacity=1, storage=Storage(honour_capacity=True), events=1)
    limit = play.rules.event_bytes_max
    play.do(Publish(Digest(1, limit + 1, limit + 1), memory_left=0, forced=True))

    assert list(play.channel.state.stored) == [0, 1]


@pytest.mark.spec("T3", "T7")
def test_what_cannot_move_yet_is_evicted_by_a_later_sweep() -> None:
    play = play_of(capacity=2, dead_event_store="dead", events=2)
    play.step(Publish(Digest(2, 2, 1), evicts_later=True))
    assert list(play.channel.state.stored) == [0, 1, 2, 3]
    assert play.channel.state.excess == 2
    play.do(Sweep())

    assert list(play.channel.state.stored) == [2, 3]
    assert play.channel.state.counters.dead == 2


@pytest.mark.spec("X3")
def test_a_retry_is_answered_before_anything_is_refused() -> None:
    play = play_of(capacity=2, storage=Storage(honour_capacity=True))
    again = Publish(Digest(2, 2, 1), "p", 1)
    play.do(again)
    play.do(again)

    assert play.answer == span(0, 1)
    assert play.channel.state.counters.published == 2
