"""The newest ids of each slot, and the ids that newer events replace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.keys.key_retention import NewestByKey, NewestFew
from penstock_core.ids.id_lists import listed
from penstock_core.ids.ids import IdSet, Span


def numbers(*values: int) -> Int64s:
    return np.array(values, dtype=np.int64)


def test_one_id_a_slot_pushes_out_the_one_before() -> None:
    newest = NewestByKey()
    newest.grow(1_000)
    newest.append(numbers(999, 3), numbers(0, 1))

    assert list(newest.superseded(numbers(3, 999, 3), numbers(2, 3, 4), IdSet([Span(0, 2)]))) == [
        0,
        1,
        2,
    ]


def test_removed_ids_are_not_superseded() -> None:
    newest = NewestByKey()
    newest.append(numbers(0, 1), numbers(0, 1))
    newest.mark_unverified()
    newest.append(numbers(2), numbers(2))
    live = IdSet([Span(1, 3)])

    assert list(newest.superseded(numbers(0, 1, 2), numbers(3, 4, 5), live)) == [1, 2]


@pytest.mark.parametrize("depth", [3, 1_000_000])
def test_a_slot_uses_memory_only_for_its_ids(depth: int) -> None:
    newest = NewestFew(depth)
    newest.grow(3)
    newest.append(numbers(2, 2, 2), numbers(0, 1, 2))
    result = newest.superseded(numbers(2, 0), numbers(3, 4), IdSet([Span(0, 3)]))

    assert list(result) == ([0] if depth == 3 else [])


def test_after_a_doubt_a_full_slot_is_checked() -> None:
    newest = NewestFew(2)
    newest.grow(1)
    newest.append(numbers(0, 0), numbers(0, 1))
    live = IdSet([Span(1, 2)])
    newest.mark_unverified()

    assert not newest.superseded(numbers(0), numbers(2), live)
    newest.append(numbers(0), numbers(2))
    live.add(Span(2, 3))
    assert list(newest.superseded(numbers(0), numbers(3), live)) == [1]


def test_pruning_keeps_and_renumbers_live_slots() -> None:
    live = IdSet([Span(5, 6)])
    for newest in (NewestByKey(), NewestFew(2)):
        newest.grow(2)
        newest.append(numbers(0, 1), numbers(4, 5))

        assert newest.prune(2, live).tolist() == [False, True]
        newest.grow(2)
        assert list(newest.superseded(numbers(0, 0), numbers(6, 7), live))[:1] == [5]


@pytest.mark.slow
@given(st.lists(st.integers(1, 600) | st.integers(1, 1 << 20), min_size=70, max_size=200))
def test_what_is_written_down_at_once_is_what_the_core_would_write(gaps: list[int]) -> None:
    ids = np.cumsum(np.array(gaps, dtype=np.int64))
    last, newest = np.arange(len(ids)), NewestByKey()
    newest.grow(len(ids))
    newest.append(last, ids)

    result = newest.superseded(last, ids + int(ids[-1]) + 1, IdSet())

    assert len(result) == len(ids)
    assert listed(result) == listed(IdSet.from_ids(ids.tolist()))
