"""Acknowledgement deadlines: a few sets of ids, by time."""

from __future__ import annotations

from penstock_core.durable.deadlines import GRAINS, Deadlines
from penstock_core.ids.ids import IdSet
from penstock_testing.play import span

SECOND = 1_000_000


def ids(*wanted: int) -> IdSet:
    return IdSet.from_ids(wanted)


def test_what_was_not_acknowledged_in_time_is_due_once() -> None:
    deadlines = Deadlines()
    until_us = deadlines.hand(ids(1, 2), 0, SECOND)
    deadlines.discard(ids(1))

    assert until_us == deadlines.next_us == SECOND
    assert not deadlines.due(SECOND - 1)
    assert deadlines.due(SECOND) == ids(2)
    assert deadlines.due(SECOND) == ids(2), "asking changes nothing"
    deadlines.discard(ids(2))
    assert not deadlines.due(10 * SECOND)
    assert (deadlines.next_us, bool(deadlines)) == (0, False)


def test_times_are_rounded_up_by_a_hundredth_at_most() -> None:
    deadlines = Deadlines()
    for now_us in range(0, SECOND, 997):
        until_us = deadlines.hand(ids(now_us), now_us, SECOND)
        assert 0 <= until_us - now_us - SECOND < SECOND // GRAINS

    assert len(deadlines._by_time) <= GRAINS + 1


def test_an_event_that_comes_again_has_a_time_of_its_own() -> None:
    deadlines = Deadlines()
    deadlines.hand(ids(1, 2), 0, SECOND)
    deadlines.discard(ids(1))
    deadlines.hand(ids(1), SECOND // 2, SECOND)

    assert deadlines.due(SECOND) == ids(2)
    assert deadlines.due(SECOND * 3 // 2) == ids(1, 2)


def test_more_time_is_given_to_what_is_in_hands_and_none_is_taken() -> None:
    deadlines = Deadlines()
    deadlines.hand(ids(1, 2, 3), 0, SECOND)
    deadlines.hand(ids(4), 0, 60 * SECOND)
    deadlines.discard(ids(3))
    deadlines.extend(ids(1, 3, 4, 9), SECOND // 2, 10 * SECOND)

    assert deadlines.due(SECOND) == ids(2)
    assert deadlines.due(11 * SECOND) == ids(1, 2)
    assert deadlines.due(60 * SECOND) == ids(1, 2, 4)
    deadlines.discard(ids(2))
    assert deadlines.next_us > 10 * SECOND


def test_what_is_acknowledged_in_time_leaves_nothing_behind() -> None:
    deadlines = Deadlines()
    for n in range(1_000):
        deadlines.hand(IdSet((span(10 * n, 10 * n + 9),)), n * SECOND // 10, SECOND)
        deadlines.discard(IdSet((span(10 * n, 10 * n + 9),)))
        assert not deadlines.due(n * SECOND // 10)
        assert deadlines.next_us == 0
    assert len(deadlines._by_time) == len(deadlines._ended) == 0
