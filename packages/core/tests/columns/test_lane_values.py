"""The lanes that events belong to."""

from __future__ import annotations

import pytest

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.keys.lane_values import lanes_of
from penstock_core.ids.ids import Span

Given = list[dict[str, object]]


def lanes(*batches: Given, name: str = "k") -> dict[object, list[int]]:
    stored, first = [], 0
    for rows in batches:
        body = body_of_columns([b""] * len(rows), properties=rows)
        stored.append(stamp(body, Span(first, first + len(rows)), 0))
        first += len(rows)
    keys, ends, ids = lanes_of(stored, name)
    starts = [0, *ends[:-1]]
    return {key: list(ids[a:b]) for key, a, b in zip(keys, starts, ends, strict=True)}


@pytest.mark.spec("D11")
def test_each_value_has_the_ids_of_its_events_in_order() -> None:
    result = lanes([{"k": "a"}, {"k": "b"}, {"k": "a"}], [{"k": "b"}, {"k": "a"}])

    assert result == {("string", "a"): [0, 2, 4], ("string", "b"): [1, 3]}


@pytest.mark.spec("D11")
def test_values_are_distinct_as_for_publish_keys() -> None:
    result = lanes([{"k": 1}], [{"k": 1.0}], [{"k": True}], [{"k": "1"}])

    assert sorted(result.values()) == [[0, 1], [2], [3]]


@pytest.mark.spec("D11")
def test_what_has_no_value_is_one_lane() -> None:
    rows: Given = [{"k": None}, {}, {"k": float("nan")}, {"k": [1]}, {"k": {"a": 1}}, {"k": 2.5}]
    result = lanes(*([row] for row in rows))

    assert result == {None: [0, 1, 2, 3, 4], ("number", 2.5): [5]}
    assert lanes([{"other": 1}] * 3) == {None: [0, 1, 2]}


def test_nothing_is_in_no_lane() -> None:
    keys, ends, ids = lanes_of([], "k")

    assert (keys, ends, len(ids)) == ([], [], 0)
