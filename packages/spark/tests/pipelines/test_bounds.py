"""Tests for penstock_spark.pipelines.bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock_core.columns.schema.moments import us_of
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.pipelines.bounds import (
    bound,
    check_selector,
    format_time,
    parse_bound,
)

NOON = datetime(2013, 1, 1, hour=12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "means"),
    [(None, None), (0, 0), (NOON, NOON), ("2013-01-01T13:00:00+01:00", NOON), ({"a": 1}, {"a": 1})],
)
def test_bounds_are_ids_times_or_ids_by_channel(value: Any, means: Any) -> None:
    assert parse_bound("from", value) == means


@pytest.mark.parametrize("value", [-1, True, "x", "2013-01-01", NOON.replace(tzinfo=None), {}, []])
def test_other_things_are_no_bounds(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"until is .*an event id, a time with a time zone"):
        parse_bound("until", value)


def test_a_bound_is_of_a_channel() -> None:
    assert [bound(value, "b") for value in (5, NOON, {"a": 1}, {"b": 2})] == [5, NOON, None, 2]


def test_times_are_counted_and_said() -> None:
    assert us_of(NOON) == 1_357_041_600_000_000
    assert format_time(us_of(NOON)) == "2013-01-01 12:00:00"


def test_a_selector_that_cannot_be_is_told() -> None:
    check_selector("")
    with pytest.raises(InvalidArgument, match="selector line 1"):
        check_selector("x =")
