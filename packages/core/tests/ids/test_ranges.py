"""Runs of ids, compared with Python sets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock_core.ids.ranges import Runs, cut, merged, part, put, size

RANGES = st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda t: (t[0], t[0] + t[1]))
LISTS = st.lists(RANGES, max_size=20)
FULL_RANGES = RANGES.filter(lambda pair: pair[0] < pair[1])


def ids_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {event_id for first, end in ranges for event_id in range(first, end)}


def ids_in(runs: Runs) -> set[int]:
    """Return the ids, after checking the order of the runs."""
    pairs = list(zip(*runs, strict=True))
    assert all(first < end for first, end in pairs)
    assert all(end < first for (_, end), (first, _) in pairwise(pairs))
    return ids_of(pairs)


@given(LISTS)
def test_ranges_in_any_order_become_runs(ranges: list[tuple[int, int]]) -> None:
    assert ids_in(merged(iter(ranges))) == ids_of(ranges)
    assert ids_in(merged(sorted(ranges))) == ids_of(ranges)
    assert size(merged(ranges)) == len(ids_of(ranges))


@given(LISTS, st.integers(0, 30))
def test_many_ranges_at_once_become_the_same_runs(ranges: list[tuple[int, int]], more: int) -> None:
    apart = [(100 + 3 * i, 101 + 3 * i) for i in range(more)]

    assert merged((*ranges, *apart)) == merged(iter([*ranges, *apart]))
    assert merged((*apart, *ranges)) == merged(iter([*apart, *ranges]))


@given(LISTS, FULL_RANGES)
def test_one_range_is_put_cut_and_looked_at(
    ranges: list[tuple[int, int]], one: tuple[int, int]
) -> None:
    runs, ids, range_ids = merged(ranges), ids_of(ranges), set(range(*one))

    assert ids_in(part(*runs, *one)) == ids & range_ids
    assert put(*runs, *one) == len(range_ids - ids)
    assert ids_in(runs) == ids | range_ids
    assert ids_in(cut(*runs, *one)) == range_ids
    assert ids_in(runs) == ids - range_ids
    assert ids_in(cut(*runs, *one)) == set()


@given(LISTS, FULL_RANGES)
def test_what_is_cut_out_of_the_middle_is_told(
    ranges: list[tuple[int, int]], one: tuple[int, int]
) -> None:
    runs, ids = merged(ranges), ids_of(ranges)

    assert ids_in(cut(*runs, *one)) == ids & set(range(*one))
    assert ids_in(runs) == ids - set(range(*one))
