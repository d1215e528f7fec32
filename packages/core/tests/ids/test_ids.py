"""Spans, and sets of ids compared with Python sets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.ids.ids import IdSet, Span

SPANS = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda t: Span(t[0], t[0] + t[1]))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "take"]), SPANS), max_size=30)


def lived(steps: list[tuple[str, Span]]) -> tuple[IdSet, set[int]]:
    ours, plain = IdSet(), set[int]()
    for step, span in steps:
        match step:
            case "add":
                ours.add(span)
                plain |= set(range(*span))
            case "remove":
                removed = ours.remove(span)
                assert set(removed) == plain & set(range(*span))
                plain -= set(range(*span))
            case _:
                taken_span = ours.take(span.size)
                if taken_span is None:
                    assert not plain or not span.size
                else:
                    assert taken_span.first == min(plain)
                    assert taken_span.size <= span.size
                    plain -= set(range(*taken_span))
    return ours, plain


@pytest.mark.slow
@given(STEPS, SPANS)
def test_a_set_of_ids_is_a_set(steps: list[tuple[str, Span]], probe: Span) -> None:
    ours, plain = lived(steps)

    assert list(ours) == sorted(plain)
    assert len(ours) == len(plain)
    assert bool(ours) == bool(plain)
    assert ours.lowest == min(plain, default=None)
    assert ours.highest == max(plain, default=None)
    assert set(ours.within(probe)) == plain & set(range(*probe))
    assert [i in ours for i in range(60)] == [i in plain for i in range(60)]
    assert ours == IdSet.from_ids(plain)


SCATTERED = st.lists(
    st.tuples(st.integers(0, 5_000), st.integers(1, 1_500), st.sampled_from([1, 2, 3, 31])),
    max_size=5,
).map(lambda parts: {i for first, count, step in parts for i in range(first, first + count, step)})
"""Ids with runs, gaps and whole blocks."""


@pytest.mark.slow
@given(st.lists(SCATTERED, max_size=4))
def test_the_union_of_sets_has_the_ids_of_each(sets: list[set[int]]) -> None:
    ours = [IdSet.from_ids(ids) for ids in sets]

    assert IdSet.union(ours) == IdSet.from_ids(set().union(*sets))
    assert ours == [IdSet.from_ids(ids) for ids in sets], "they are what they were"


@pytest.mark.slow
@given(SCATTERED, st.integers(0, 8_000))
def test_the_lowest_ids_of_a_set(ids: set[int], limit: int) -> None:
    assert list(IdSet.from_ids(ids).lowest_part(limit)) == sorted(ids)[:limit]


@given(STEPS)
def test_spans_are_sorted_disjoint_and_never_touch(steps: list[tuple[str, Span]]) -> None:
    spans = lived(steps)[0].spans

    assert all(span.first < span.end for span in spans)
    assert all(a.end < b.first for a, b in pairwise(spans))


@given(STEPS, STEPS)
def test_two_sets_together(one: list[tuple[str, Span]], other: list[tuple[str, Span]]) -> None:
    (ours, plain), (theirs, theirs_plain) = lived(one), lived(other)

    assert set(ours.overlap(theirs)) == plain & theirs_plain
    united = ours.copy()
    united.add_all(theirs)
    assert set(united) == plain | theirs_plain
    removed = united.remove_all(theirs)
    assert set(removed) == theirs_plain
    assert set(united) == plain - theirs_plain
    assert set(ours) == plain, "a copy is a copy"


@given(STEPS, st.integers(0, 50), st.integers(0, 6))
def test_the_next_span_is_the_lowest_at_or_after(
    steps: list[tuple[str, Span]], at: int, limit: int
) -> None:
    ours, plain = lived(steps)
    next_span = ours.next_span(at, limit)

    after = [i for i in plain if i >= at]
    if next_span is None:
        assert not after or not limit
    else:
        assert next_span.first == min(after)
        assert 0 < next_span.size <= limit
        assert set(range(*next_span)) <= plain


def test_a_span_says_its_size_moves_and_is_clipped() -> None:
    assert Span(3, 7).size == 4
    assert Span(3, 7).shifted(10) == (13, 17)
    assert Span(3, 7).clipped(Span(5, 20)) == (5, 7)
    assert Span(3, 7).clipped(Span(9, 12)).size == 0


def test_a_set_of_ranges_is_the_set_of_their_ids_and_may_change() -> None:
    ranges = IdSet.of_runs([3 * i for i in range(100)], [3 * i + 1 for i in range(100)])

    assert ranges == IdSet.from_ids(range(0, 300, 3))
    assert ranges.spans == IdSet.from_ids(range(0, 300, 3)).spans
    ranges.add(Span(1, 3))
    assert list(ranges)[:3] == [0, 1, 2]
    assert len(ranges) == 102


def test_ids_read_as_people_count() -> None:
    assert repr(IdSet([Span(1, 4), Span(7, 8)])) == "IdSet(1..3, 7..7)"
    assert "1" not in IdSet([Span(1, 4)])
    assert IdSet([Span(1, 4)]) != {1, 2, 3}


def test_a_set_is_made_of_bitmaps() -> None:
    made = IdSet.of_bitmaps([0, 7], [0b1011, 1 << 1023])

    assert list(made) == [0, 1, 3, 8 * 1024 - 1]
    assert made == IdSet.from_ids([0, 1, 3, 8 * 1024 - 1])
    assert len(made) == 4
