"""The number of stored events that fit into a number of bytes."""

import random

from penstock_core.channel.event_sizes import RUNS_MAX, EventSizes
from penstock_core.ids.ids import IdSet, Span


def sizes_of(*batches: tuple[int, float]) -> EventSizes:
    return EventSizes.from_batches(batches)


def fitting(sizes: EventSizes, end: int, bytes_max: float, *, first: int = 0) -> int:
    ids = IdSet((Span(first, end),))
    return len(sizes.lowest_within(ids, 1_000_000, bytes_max))


def test_large_events_before_small_ones_bound_the_first_step_only() -> None:
    sizes = sizes_of((0, 1 << 20), (100, 10))

    assert fitting(sizes, 10_000, 8 << 20) == 8
    assert fitting(sizes, 1 << 30, 8 << 20, first=95) == 5 + 3 * (1 << 20) // 10
    assert fitting(sizes, 1 << 30, 8 << 20, first=100) == (8 << 20) // 10


def test_small_events_before_large_ones_go_together() -> None:
    sizes = sizes_of((0, 10), (1_000, 1 << 20))

    assert fitting(sizes, 2_000, 1 << 20) == 1_000
    assert fitting(sizes, 2_000, 2 << 20) == 1_001


def test_an_event_that_is_too_large_goes_alone() -> None:
    sizes = sizes_of((0, 16 << 20))

    assert fitting(sizes, 10, 8 << 20) == 1


def test_without_known_sizes_the_number_of_events_counts() -> None:
    ids = IdSet((Span(0, 100),))

    assert len(EventSizes().lowest_within(ids, 10, 8 << 20)) == 10
    assert not EventSizes().lowest_within(IdSet(), 10, 8 << 20)


def test_scattered_ids_are_counted_and_not_their_span() -> None:
    sizes = sizes_of((0, 1_000), (1_000, 10))
    ids = IdSet(Span(first, first + 1) for first in range(0, 2_000, 10))

    assert len(sizes.lowest_within(ids, 1_000, 101_000)) == 200
    assert len(sizes.lowest_within(ids, 1_000, 50_000)) == 50


def test_similar_sizes_are_one_run_with_the_largest() -> None:
    sizes = sizes_of((0, 100), (10, 60), (20, 110), (30, 50))

    assert sizes.largest == 110
    assert fitting(sizes, 40, 1_100) == 10


def test_few_runs_are_kept_and_no_event_becomes_smaller() -> None:
    rng = random.Random(7)
    batches = [(first, 10.0 ** rng.randrange(7)) for first in range(0, 20_000, 10)]
    sizes = EventSizes()
    for first, event_bytes in batches:
        if not sizes.least <= event_bytes <= sizes.most:
            sizes.begin_run(first, event_bytes, lowest=0)
    exact = dict(batches)

    assert len(sizes._firsts) <= RUNS_MAX
    for first in range(0, 20_000, 1_370):
        chosen = sizes.lowest_within(IdSet((Span(first, 20_000),)), 1_000_000, 8 << 20)
        held = sum(exact[event_id // 10 * 10] for event_id in chosen)
        assert held <= 8 << 20 or len(chosen) == 1


def test_runs_of_events_that_have_left_are_forgotten() -> None:
    sizes = EventSizes()
    for first in range(0, 100_000, 10):
        if not sizes.least <= (event_bytes := 1.0 if first % 20 else 1e6) <= sizes.most:
            sizes.begin_run(first, event_bytes, lowest=max(0, first - 50))

    assert fitting(sizes, 100_000, 10.0, first=99_990) == 10
