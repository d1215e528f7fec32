"""Selectors treat properties in ``more`` like properties in columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from packages.core.tests.columns.selectors.batches import batch_of
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema import overflow
from penstock_core.columns.selectors import Selector
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX


def chosen(text: str, *properties: dict[str, Any]) -> list[bool]:
    body = body_of([Event(b"", properties=row) for row in properties])
    answers: list[bool] = Selector(text).mask(body).to_pylist()
    return answers


@pytest.mark.spec("F1", "F2")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mixed[] = 'a'", [True, False]),
        ("mixed[] = 1", [True, False]),
        ("mixed[1] = 'a'", [True, False]),
        ("mixed[] > 1.5", [True, True]),
        ("mixed[].k = 7", [False, True]),
        ("mixed IS NULL", [False, False]),
        ("NOT mixed[] = 'z'", [False, False]),
    ],
)
def test_lists_of_several_types(text: str, expected: list[bool]) -> None:
    events = ({"mixed": [1, "a", None, 2.5]}, {"mixed": [{"k": 7}, 3, "b"]})

    assert chosen(text, *events) == expected


@pytest.mark.spec("F1")
def test_properties_beyond_the_columns() -> None:
    many = {f"p{number:03}": number for number in range(300)}

    assert chosen("p299 = 299", many, {"p299": 1}) == [True, False]
    assert chosen("p299 < 299", many, {"p299": 1}) == [False, True]


@pytest.mark.spec("F1")
def test_a_name_in_the_overflow_column_wins() -> None:
    batch = batch_of([{"data": b"", "properties": {"n": 1}}] * 2)
    batch = batch.append_column("more", pa.array([overflow.encoded({"n": "x"}), None], pa.binary()))

    assert Selector("n = 1").mask(batch).to_pylist() == [False, True]
    assert Selector("n = 'x'").mask(batch).to_pylist() == [True, False]


def nested(levels: int) -> bytes:
    """Return a cell with a property of so many nested lists, as an earlier version may have stored
    it."""
    node: Any = ["l", 7]
    for _ in range(levels):
        node = ["a", [node]]
    return overflow.of_nodes({"deep": node, "n": ["l", 7]})


@pytest.mark.parametrize("levels", [NESTING_MAX + 1, 150, 300])
def test_a_body_with_a_property_of_too_many_levels_is_refused(levels: int) -> None:
    """The cell comes from another client, whose library does not count levels."""
    batch = body_of([Event(b"")]).append_column("more", pa.array([nested(levels)], pa.binary()))

    with pytest.raises(InvalidEvent, match="'deep' is nested too deep"):
        check_body(batch)


@pytest.mark.parametrize("levels", [NESTING_MAX, NESTING_MAX + 1, 150, 300])
def test_a_stored_property_of_too_many_levels_is_unknown_and_fails_no_selector(levels: int) -> None:
    batch = batch_of([{"data": b""}] * 2)
    cells = [nested(levels), overflow.encoded({"deep": [7, "a"], "n": 8})]
    batch = batch.append_column("more", pa.array(cells, pa.binary()))

    assert Selector("deep[] = 7").mask(batch).to_pylist() == [False, True]
    assert Selector("deep IS NULL").mask(batch).to_pylist() == [levels > NESTING_MAX, False]
    assert Selector("n = 7").mask(batch).to_pylist() == [True, False]
