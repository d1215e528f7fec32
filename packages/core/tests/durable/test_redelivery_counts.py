"""Redelivery counts of events, in few sets of ids."""

from __future__ import annotations

import pytest

from penstock_core.durable.redelivery_counts import RedeliveryCounts
from penstock_core.ids.ids import IdSet, Span


def counted(*given_back: range) -> RedeliveryCounts:
    counts = RedeliveryCounts()
    for ids in given_back:
        counts.raise_by_one(IdSet.from_ids(ids))
    return counts


@pytest.mark.spec("T10")
def test_each_event_has_the_number_of_times_it_was_given_back() -> None:
    counts = counted(range(5), range(3, 8), range(4, 5))

    assert {count: list(ids) for count, ids in counts.items()} == {
        1: [0, 1, 2, 5, 6, 7],
        2: [3],
        3: [4],
    }


def test_counts_that_no_event_has_any_more_take_no_room() -> None:
    assert list(counted(range(2), range(2), range(2))) == [3]


@pytest.mark.spec("T10")
def test_events_that_were_given_back_often_enough_are_told_apart() -> None:
    counts = counted(range(5), range(3, 5))

    assert list(counts.at_least(2, IdSet.from_ids(range(10)))) == [3, 4]
    assert list(counts.at_least(1, IdSet.from_ids(range(2)))) == [0, 1]


def test_events_of_a_delivery_are_told_with_their_counts() -> None:
    counts = counted(range(5), range(3, 5))

    assert counts.within((Span(4, 9),)) == ((2, (Span(4, 5),)),)
    assert RedeliveryCounts().within((Span(0, 9),)) == ()
