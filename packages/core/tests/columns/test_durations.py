"""Durations as users write them."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.columns.events.durations import (
    UNITS_MS,
    duration_ms,
    round_ms,
    whole_ms,
)
from tests.thorough import examples

MOST_MS = (1 << 63) - 1


@given(st.integers(0, 10**16 - 1), st.sampled_from(sorted(UNITS_MS)))
@settings(max_examples=examples(400))
def test_a_whole_number_with_a_unit_is_exact(number: int, unit: str) -> None:
    assert whole_ms(f"{number}{unit}") == number * UNITS_MS[unit]


@given(st.integers(0, 366 * 86_400_000))
@settings(max_examples=examples(400))
def test_milliseconds_written_in_any_unit_are_read_again(ms: int) -> None:
    for unit, length in UNITS_MS.items():
        text = f"{ms / length:.9f}{unit}"

        assert whole_ms(text) == ms, text


@given(st.timedeltas(timedelta(0), timedelta(days=100_000)))
@settings(max_examples=examples(400))
def test_a_timedelta_is_the_nearest_millisecond_and_never_none(value: timedelta) -> None:
    ms = whole_ms(value)

    assert isinstance(ms, int)
    assert abs(timedelta(milliseconds=ms) - value) < timedelta(milliseconds=1)
    assert (ms == 0) == (value == timedelta(0))


@given(st.text())
@settings(max_examples=examples(400))
def test_any_text_is_a_duration_of_zero_or_more_or_none_at_all(text: str) -> None:
    ms = duration_ms(text)

    assert math.isnan(ms) or 0 <= ms < math.inf


@pytest.mark.parametrize(
    "value",
    ["", "1", "-1s", "1 s", "1S", "1s\n", "s", "1e3s", "nan", "inf", ".5s", "1.s", "1h30m", "1w"],
)
def test_another_text_is_not_a_duration(value: str) -> None:
    assert math.isnan(duration_ms(value))
    assert whole_ms(value) == value


@pytest.mark.parametrize("value", [None, 1, 1.5, True, b"1s", timedelta(milliseconds=-1)])
def test_what_is_not_a_duration_is_returned_unchanged(value: Any) -> None:
    assert whole_ms(value) is value


def test_a_positive_duration_is_never_rounded_to_zero() -> None:
    assert [round_ms(ms) for ms in (0, 0.001, 0.5, 1.4, 1.6)] == [0, 1, 1, 1, 2]
    assert whole_ms("0.1ms") == whole_ms(timedelta(microseconds=1)) == 1
    assert whole_ms("0s") == whole_ms(timedelta(0)) == 0


def test_a_duration_may_be_longer_than_any_request_can_contain() -> None:
    assert duration_ms("9999999999999999d") > MOST_MS
    assert whole_ms(timedelta.max) == 86_400_000 * 10**9
