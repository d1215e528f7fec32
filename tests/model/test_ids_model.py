"""Sets of ids beside plain Python sets, in the patterns that make them change their form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock_core.ids.bitmaps import BLOCK
from penstock_core.ids.ids import IdSet, Span
from tests.thorough import examples

BASES = st.sampled_from([0, 0, 0, 0, (1 << 62) - 3 * BLOCK])

MIXED = frozenset(
    (
        *range(0, BLOCK, 2),
        *range(BLOCK, 3 * BLOCK),
        3 * BLOCK,
        4 * BLOCK - 1,
        *range(5 * BLOCK + 1, 6 * BLOCK, 2),
        *range(6 * BLOCK + 1, 8 * BLOCK - 1),
        *range(8 * BLOCK, 9 * BLOCK),
        10 * BLOCK,
        10 * BLOCK + 9,
    )
)
"""Blocks of all sorts side by side: combed, full, with ids at their edges, empty, nearly full."""

EDGES = sorted(
    {max(0, block * BLOCK + distance) for block in range(12) for distance in (-2, -1, 0, 1, 2)}
)


@st.composite
def runs(draw: st.DrawFn) -> set[int]:
    """One range, of any alignment or of whole blocks."""
    if draw(st.booleans()):
        first = draw(st.integers(0, 3)) * BLOCK
        return set(range(first, first + draw(st.integers(1, 2)) * BLOCK))
    first = draw(st.integers(0, 3 * BLOCK))
    return set(range(first, first + draw(st.integers(0, BLOCK + 100))))


@st.composite
def combs(draw: st.DrawFn) -> set[int]:
    """Every second id, or every third: as many spans as can be."""
    first = draw(st.integers(0, 2 * BLOCK))
    step = draw(st.integers(2, 5))
    return set(range(first, first + step * draw(st.integers(1, 700)), step))


@st.composite
def scattered(draw: st.DrawFn) -> set[int]:
    """Ids at random, close together or far apart, from a seed: drawing each would take long."""
    random = draw(st.randoms(use_true_random=False))
    within = draw(st.sampled_from([200, 4 * BLOCK, 300 * BLOCK]))
    return set(random.sample(range(within), draw(st.integers(0, 200))))


@st.composite
def holed(draw: st.DrawFn) -> set[int]:
    """A long range with a few ids missing."""
    end = draw(st.integers(1, 3 * BLOCK))
    return set(range(end)) - draw(st.sets(st.integers(0, end - 1), max_size=90))


@st.composite
def id_sets(draw: st.DrawFn) -> set[int]:
    ids = draw(st.one_of(runs(), combs(), scattered(), holed()))
    base = draw(BASES)
    return {base + event_id for event_id in ids}


@st.composite
def spans(draw: st.DrawFn) -> Span:
    size = draw(st.sampled_from([0, 1, 1, 2, 50, BLOCK - 1, BLOCK, 2 * BLOCK + 7]))
    first = draw(BASES) + draw(st.integers(0, 4 * BLOCK))
    end = first + size
    if draw(st.booleans()):
        first -= first % BLOCK
    if draw(st.booleans()):
        end -= end % BLOCK
    return Span(first, max(first, end))


def inside(plain: set[int], span: Span) -> set[int]:
    return {event_id for event_id in plain if span.first <= event_id < span.end}


def assert_same(ours: IdSet, plain: set[int]) -> None:
    assert list(ours) == sorted(plain)
    assert len(ours) == len(plain)
    assert bool(ours) == bool(plain)
    assert ours.lowest == min(plain, default=None)
    assert ours.highest == max(plain, default=None)
    assert all(span.first < span.end for span in ours.spans)
    assert all(a.end < b.first for a, b in pairwise(ours.spans)), "disjoint, and never touching"


class OneSetLives(RuleBasedStateMachine):
    """Every edit there is, in any order, on one set."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = IdSet()
        self.plain: set[int] = set()

    @rule(span=spans())
    def add(self, span: Span) -> None:
        self.ours.add(span)
        self.plain |= set(range(*span))

    @rule(span=spans())
    def remove(self, span: Span) -> None:
        assert_same(self.ours.remove(span), inside(self.plain, span))
        self.plain -= set(range(*span))

    @rule(first=st.integers(0, 4 * BLOCK))
    def remove_the_rest(self, first: int) -> None:
        span = Span(first, 1 << 63)
        assert_same(self.ours.remove(span), inside(self.plain, span))
        self.plain = {event_id for event_id in self.plain if event_id < first}

    @rule(seed=st.integers(1, 1000), how_many=st.integers(1, 150))
    def remove_one_by_one(self, seed: int, how_many: int) -> None:
        for event_id in sorted(self.plain, key=lambda i: i * seed % 1009)[:how_many]:
            assert list(self.ours.remove(Span(event_id, event_id + 1))) == [event_id]
            assert event_id not in self.ours
            self.plain.discard(event_id)

    @rule(other=id_sets())
    def add_all(self, other: set[int]) -> None:
        self.ours.add_all(IdSet.from_ids(other))
        self.plain |= other

    @rule(other=id_sets())
    def remove_all(self, other: set[int]) -> None:
        assert_same(self.ours.remove_all(IdSet.from_ids(other)), self.plain & other)
        self.plain -= other

    @rule(other=id_sets())
    def discard_all(self, other: set[int]) -> None:
        self.ours.discard_all(IdSet.from_ids(other))
        self.plain -= other

    @rule(limit=st.sampled_from([0, 1, 3, BLOCK, 5 * BLOCK]), times=st.integers(1, 60))
    def take(self, limit: int, times: int) -> None:
        for _ in range(times):
            taken_span = self.ours.take(limit)
            if taken_span is None:
                assert not self.plain or not limit
                return
            assert taken_span.first == min(self.plain)
            assert set(range(*taken_span)) <= self.plain
            assert taken_span.size == limit or taken_span.end not in self.plain, "as long as may be"
            self.plain -= set(range(*taken_span))

    @rule()
    def leave_a_copy(self) -> None:
        original, self.ours = self.ours, self.ours.copy()
        assert original == self.ours
        original.add(Span(1 << 61, (1 << 61) + 1))
        original.remove(Span(0, BLOCK))

    @rule()
    def go_on_from_the_packed_form(self) -> None:
        self.ours = IdSet.unpacked(self.ours.packed())

    @invariant()
    def is_the_same_set(self) -> None:
        assert_same(self.ours, self.plain)
        fresh = IdSet.from_ids(self.plain)
        assert self.ours == fresh
        assert fresh == self.ours
        assert self.ours.packed() == fresh.packed(), "whatever it lived through"


OneSetLives.TestCase.settings = settings(
    max_examples=examples(25), stateful_step_count=20, deadline=None
)
test_one_set_lives = OneSetLives.TestCase


@pytest.mark.slow
@given(id_sets(), id_sets())
def test_two_sets_meet(one: set[int], two: set[int]) -> None:
    ours, theirs = IdSet.from_ids(one), IdSet.from_ids(two)

    assert_same(ours.overlap(theirs), one & two)
    assert_same(theirs.overlap(ours), one & two)
    assert (ours == theirs) == (one == two)
    assert_same(ours, one)
    assert_same(theirs, two)


@pytest.mark.slow
def test_spans_that_begin_and_end_at_the_edges_of_blocks() -> None:
    ours = IdSet.from_ids(MIXED)
    ordered = sorted(MIXED)
    for first, end in combinations(EDGES, 2):
        span = Span(first, end)
        inner = ordered[bisect_left(ordered, first) : bisect_left(ordered, end)]
        assert list(ours.within(span)) == inner
        assert ours.count(span) == len(inner)
        remaining, more = ours.copy(), ours.copy()
        assert list(remaining.remove(span)) == inner
        assert len(remaining) == len(MIXED) - len(inner)
        assert remaining.count(span) == 0
        more.add(span)
        assert len(more) == len(MIXED) - len(inner) + span.size
        assert more.count(span) == span.size
        assert more.within(span).spans == (span,)
        remaining.add_all(ours.within(span))
        assert remaining == ours


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 5, 2 * BLOCK, 9 * BLOCK])
def test_the_next_span_from_every_edge(limit: int) -> None:
    ours = IdSet.from_ids(MIXED)
    spans = IdSet([Span(event_id, event_id + 1) for event_id in MIXED]).spans
    for edge in EDGES:
        after = [Span(max(edge, span.first), span.end) for span in spans if span.end > edge]
        expected = after[0].clipped(Span(0, after[0].first + limit)) if after else None
        assert ours.next_span(edge, limit) == expected


@pytest.mark.slow
@given(id_sets())
def test_a_set_meets_itself(plain: set[int]) -> None:
    ours = IdSet.from_ids(plain)
    ours.add_all(ours)
    assert_same(ours, plain)
    assert_same(ours.overlap(ours), plain)
    twin = ours.copy()

    assert_same(ours.remove_all(ours), plain)
    twin.discard_all(twin)

    assert_same(ours, set())
    assert_same(twin, set())


@pytest.mark.slow
@given(id_sets(), spans(), st.integers(1, 2 * BLOCK))
def test_questions_about_a_part(plain: set[int], span: Span, limit: int) -> None:
    ours = IdSet.from_ids(plain)
    rest = Span(span.first, 1 << 63)

    assert_same(ours.within(span), inside(plain, span))
    assert_same(ours.within(rest), inside(plain, rest))
    for part in (span, rest, Span(0, span.end), Span(0, 1 << 63)):
        assert ours.count(part) == len(inside(plain, part))
    next_span = ours.next_span(span.first, limit)
    if next_span is None:
        assert not inside(plain, rest)
    else:
        assert next_span.first == min(inside(plain, rest))
        assert set(range(*next_span)) <= plain
        assert next_span.size == limit or (next_span.size < limit and next_span.end not in plain)
    for event_id in (*span, span.first - 1, *sorted(plain)[:5]):
        assert (event_id in ours) == (event_id in plain)


@pytest.mark.slow
@given(st.lists(spans(), max_size=12), id_sets())
def test_a_set_is_made_of_spans_in_any_order(given_spans: list[Span], plain: set[int]) -> None:
    more = [Span(event_id, event_id + 1) for event_id in plain]
    expected = plain.union(*(range(*span) for span in given_spans))

    assert_same(IdSet([*given_spans, *more]), expected)
    assert_same(IdSet(iter([*more, *given_spans])), expected)
    assert_same(IdSet.from_ids([*expected, *plain]), expected)


@pytest.mark.parametrize("change", [IdSet.add, IdSet.remove])
def test_a_set_made_of_the_ranges_of_another_is_its_own(
    change: Callable[[IdSet, Span], object],
) -> None:
    ids = IdSet.from_ids(range(0, 1_000, 2))
    ranges = ids.spans
    twin = IdSet(ranges)
    change(ids, Span(10, 13))
    change(twin, Span(500, 900))

    assert IdSet(ranges) == IdSet.from_ids(range(0, 1_000, 2))
    assert set(ids) ^ set(range(0, 1_000, 2)) <= {10, 11, 12}
    assert set(twin) ^ set(range(0, 1_000, 2)) <= set(range(500, 900))
