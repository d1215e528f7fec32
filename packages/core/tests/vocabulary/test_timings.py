"""Histograms of durations, whose last class has no upper bound."""

from __future__ import annotations

from penstock_core.vocabulary.timings import BOUNDS_US, DELIVERY_BOUNDS_US, Timings, quantile_us


def test_a_time_counts_to_every_bound_it_does_not_exceed() -> None:
    timings = Timings()
    for us in (50, 51, 1_000, 10_000_000):
        timings.note(us)

    counts = dict(zip((*BOUNDS_US, None), timings.cumulative(), strict=True))

    assert (counts[50], counts[100], counts[500], counts[1_000]) == (1, 2, 2, 3)
    assert (counts[BOUNDS_US[-1]], counts[None]) == (3, 4)
    assert timings.total_us == 10_001_101


def test_what_is_recent_forgets_what_was() -> None:
    timings = Timings()
    for us in (8_000, *(100,) * 64):
        timings.note(us)

    assert 100 <= timings.recent_us < 110


def test_the_bounds_ascend() -> None:
    assert list(BOUNDS_US) == sorted(set(BOUNDS_US))
    assert list(DELIVERY_BOUNDS_US) == sorted(set(DELIVERY_BOUNDS_US))


def test_many_are_counted_as_one_by_one() -> None:
    one_by_one, at_once = Timings(DELIVERY_BOUNDS_US), Timings(DELIVERY_BOUNDS_US)
    for us in (700, 700, 700, 4_000_000_000_000):
        one_by_one.note(us)

    at_once.note_many(700, 3)
    counts = [0] * (len(DELIVERY_BOUNDS_US) + 1)
    counts[-1] = 1
    at_once.add(counts, 4_000_000_000_000)

    assert at_once.counts == one_by_one.counts
    assert at_once.total_us == one_by_one.total_us


def test_a_share_of_the_durations_lies_within_its_class() -> None:
    bounds = (10, 20, 40)

    assert quantile_us(bounds, [0, 0, 0, 0], 0.99) is None
    assert quantile_us(bounds, [100, 0, 0, 0], 0.5) == 5
    assert quantile_us(bounds, [50, 0, 50, 0], 0.75) == 30
    assert quantile_us(bounds, [50, 0, 0, 50], 0.5) == 10
    assert quantile_us(bounds, [0, 0, 0, 3], 0.99) == 40, "the beginning of what has no end"
