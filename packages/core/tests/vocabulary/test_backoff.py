"""The delay of an event after each failure."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_core.vocabulary.backoff import (
    DELAY_MS_MAX,
    Backoff,
    check_backoff,
    check_delay,
)
from penstock_core.vocabulary.errors import InvalidArgument


@pytest.mark.spec("D18")
def test_each_wait_is_longer_up_to_the_most() -> None:
    backoff = Backoff(1_000, factor=3.0, most=20_000)

    waits = [backoff.wait_us(count, 0) for count in (1, 2, 3, 4, 5)]
    assert waits == [1_000_000, 3_000_000, 9_000_000, 20_000_000, 20_000_000]


@pytest.mark.spec("D18")
def test_a_factor_of_one_is_the_same_wait_each_time() -> None:
    backoff = Backoff(700, factor=1.0)

    assert {backoff.wait_us(count, 5) for count in range(1, 50)} == {700_000}


@pytest.mark.spec("D18")
def test_a_count_beyond_all_numbers_waits_the_most() -> None:
    assert Backoff(1, factor=1_000.0, most=9).wait_us(1_000_000, 0) == 9_000


@pytest.mark.spec("D18")
def test_jitter_shortens_the_wait_by_its_share_at_most_and_spreads_events() -> None:
    backoff = Backoff(1_000, jitter=0.25)
    waits = [backoff.wait_us(1, event_id) for event_id in range(1_000)]

    assert all(750_000 < wait <= 1_000_000 for wait in waits)
    assert len(set(waits)) > 990
    assert len([wait for wait in waits if wait < 875_000]) > 400


@pytest.mark.spec("D18")
def test_jitter_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    one, again, other_seed = (
        [Backoff(1_000, jitter=1.0, seed=seed).wait_us(2, i) for i in range(20)]
        for seed in (7, 7, 8)
    )

    assert one == again
    assert not set(one) & set(other_seed)


@pytest.mark.spec("D18")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"first": 0}, "backoff.first is 0; allowed are 1 to"),
        ({"first": DELAY_MS_MAX + 1}, "backoff.first is"),
        ({"first": 5, "factor": 0.5}, "backoff.factor is 0.5; allowed are 1.0 to 1000.0"),
        ({"first": 5, "factor": float("nan")}, "backoff.factor is nan"),
        ({"first": 5, "most": 4}, "backoff.most is 4; allowed are 5 to"),
        ({"first": 5, "jitter": 1.5}, "backoff.jitter is 1.5; allowed are 0.0 to 1.0"),
        ({"first": 5, "seed": -1}, "backoff.seed is -1; allowed are 0 to"),
    ],
)
def test_what_is_out_of_bounds_is_refused_and_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check_backoff(Backoff(**fields))


@pytest.mark.spec("D18")
@pytest.mark.parametrize("delay_ms", [-1, DELAY_MS_MAX + 1])
def test_a_delay_out_of_bounds_is_refused_and_named(delay_ms: int) -> None:
    with pytest.raises(InvalidArgument, match=f"delay of a rollback is {delay_ms} ms; allowed are"):
        check_delay(delay_ms)


def test_none_is_neither_a_backoff_nor_a_delay_and_allowed() -> None:
    check_backoff(None)
    check_delay(None)
    check_delay(0)
    check_backoff(Backoff(1, 1.0, 1))
