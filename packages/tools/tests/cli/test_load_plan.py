"""The arithmetic of ``penstock load``: what is due when, percentiles, lost and twice."""

from __future__ import annotations

import numpy as np
import pytest

from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_tools.cli.load_plan import EVENTS_MAX, Int64s, Latencies, LoadLedger, LoadPlan

SECOND = 1_000_000


def numbers(*values: int) -> Int64s:
    return np.array(values, dtype=np.int64)


# --- the schedule -------------------------------------------------------------------------


def test_events_are_due_evenly_and_steps_follow_each_other() -> None:
    plan = LoadPlan(rates=(2.0, 4.0), step_s=1.0)

    assert plan.count == 6
    assert plan.due_us(np.arange(6)).tolist() == [
        0,
        500_000,
        1_000_000,
        1_250_000,
        1_500_000,
        1_750_000,
    ]
    assert plan.steps_of(np.arange(6)).tolist() == [0, 0, 1, 1, 1, 1]


def test_as_many_are_due_by_a_moment_as_have_their_time_by_then() -> None:
    plan = LoadPlan(rates=(7.0, 1_000.0, 3.5), step_s=2.0)
    due = plan.due_us(np.arange(plan.count))

    assert plan.due_by(-1) == 0
    assert plan.due_by(0) == 1
    assert plan.due_by(100 * SECOND) == plan.count
    for at_us in range(0, 6 * SECOND, 12_345):
        assert abs(plan.due_by(at_us) - int((due <= at_us).sum())) <= 1, at_us


def test_sizes_take_turns_and_bound_what_goes_together() -> None:
    plan = LoadPlan(rates=(100.0,), step_s=1.0, sizes=(10, 3_000_000))

    assert plan.sizes_of(numbers(0, 1, 2)).tolist() == [10, 3_000_000, 10]
    assert plan.batch_events == 1
    assert LoadPlan(rates=(1.0,), step_s=1.0, sizes=(0,)).batch_events == 10_000


@pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 1.0])
def test_the_share_that_is_rolled_back_is_spread_evenly(share: float) -> None:
    plan = LoadPlan(rates=(10_000.0,), step_s=1.0, rollback=share)

    chosen = plan.rolls_back(np.arange(10_000))

    assert chosen.sum() == share * 10_000
    assert abs(int(chosen[:5_000].sum()) - share * 5_000) <= 1


@pytest.mark.parametrize(
    ("rate", "remedy"), [(EVENTS_MAX + 1.0, "lower rate"), (0.1, "higher rate")]
)
def test_a_run_without_events_or_with_too_many_is_refused(rate: float, remedy: str) -> None:
    with pytest.raises(InvalidArgument, match=remedy):
        LoadPlan(rates=(rate,), step_s=1.0)


# --- percentiles --------------------------------------------------------------------------


def test_percentiles_are_right_to_one_percent_over_the_whole_range() -> None:
    for scale in (1, 1_000, 60 * SECOND):
        values = np.arange(1, 10_001, dtype=np.int64) * scale
        times = Latencies()
        for part in np.array_split(values, 7):
            times.add(part)

        for percent in (50, 90, 99, 99.9):
            exact = np.sort(values)[int(np.ceil(len(values) * percent / 100)) - 1]
            assert exact <= times.percentile(percent) <= exact * 1.01 + 1
        assert times.percentile(100) == times.max_us == 10_000 * scale


def test_small_latencies_are_exact_and_nothing_has_no_percentile() -> None:
    times = Latencies()

    assert (times.count, times.percentile(99), times.max_us) == (0, 0, 0)
    times.add(numbers())
    times.add(numbers(-3, 7, 7, 200))

    assert [times.percentile(percent) for percent in (25, 50, 75, 100)] == [0, 7, 7, 200]


# --- lost and twice -----------------------------------------------------------------------


def test_a_run_is_complete_when_every_event_is_acknowledged_once() -> None:
    ledger = LoadLedger(4)
    assert ledger.record_delivery(numbers(0, 1), numbers(10, 11)).all()
    ledger.record_published(0, range(10, 13))
    ledger.record_confirmation(numbers(0, 1))
    assert not ledger.is_complete

    assert ledger.record_delivery(numbers(2), numbers(12)).all()
    ledger.record_confirmation(numbers(2))

    assert ledger.is_complete
    assert (ledger.acknowledged, ledger.delivered, ledger.confirmed) == (3, 3, 3)
    assert (ledger.redelivered, ledger.twice, ledger.lost(IdSet())) == (0, 0, 0)


def test_what_comes_again_before_its_acknowledgement_came_rightly() -> None:
    ledger = LoadLedger(1)
    ledger.record_published(0, range(5, 6))
    ledger.record_delivery(numbers(0), numbers(5))

    assert not ledger.record_delivery(numbers(0), numbers(5)).any()
    assert (ledger.delivered, ledger.redelivered, ledger.twice) == (1, 1, 0)
    ledger.record_confirmation(numbers(0))
    ledger.record_delivery(numbers(0), numbers(5))

    assert (ledger.delivered, ledger.redelivered, ledger.twice) == (1, 1, 1)


def test_an_event_under_two_ids_was_kept_twice() -> None:
    together, apart, unlike = LoadLedger(1), LoadLedger(1), LoadLedger(1)
    together.record_delivery(numbers(0, 0), numbers(5, 6))
    apart.record_delivery(numbers(0), numbers(5))
    apart.record_delivery(numbers(0), numbers(6))
    unlike.record_delivery(numbers(0), numbers(5))
    unlike.record_published(0, range(6, 7))

    assert [tally.twice for tally in (together, apart, unlike)] == [1, 1, 1]


def test_what_was_rolled_back_and_never_came_again_is_lost_unless_the_durable_has_it() -> None:
    ledger = LoadLedger(2)
    ledger.record_published(0, range(10, 12))
    ledger.record_delivery(numbers(0, 1), numbers(10, 11))
    ledger.record_rollback(numbers(0, 1))

    assert ledger.undelivered().tolist() == [10, 11]
    assert ledger.lost(IdSet([Span(11, 12)])) == 1
    ledger.record_delivery(numbers(0, 1), numbers(10, 11))

    assert ledger.undelivered().tolist() == []


def test_what_never_came_is_lost_unless_the_durable_has_it() -> None:
    ledger = LoadLedger(6)
    ledger.record_published(0, range(10, 12))
    ledger.record_published(3, range(20, 23))
    ledger.record_delivery(numbers(0), numbers(10))

    assert ledger.undelivered().tolist() == [11, 20, 21, 22]
    assert ledger.lost(IdSet([Span(0, 12), Span(21, 22)])) == 2
    assert ledger.lost(IdSet()) == 4
    assert ledger.lost(IdSet([Span(0, 100)])) == 0
