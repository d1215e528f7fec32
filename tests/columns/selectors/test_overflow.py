"""Properties that do not fit columns are selected like those that do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.columns.events.body import body_of
from penstock.columns.events.event import Event
from penstock.columns.schema import overflow
from penstock.columns.selectors import Selector
from tests.columns.selectors.batches import batch_of


def chosen(text: str, *properties: dict[str, Any]) -> list[bool]:
    body = body_of([Event(b"", properties=each) for each in properties])
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
def test_what_goes_beyond_the_columns() -> None:
    many = {f"p{number:03}": number for number in range(300)}

    assert chosen("p299 = 299", many, {"p299": 1}) == [True, False]
    assert chosen("p299 < 299", many, {"p299": 1}) == [False, True]


@pytest.mark.spec("F1")
def test_a_name_in_the_overflow_column_wins() -> None:
    batch = batch_of([{"data": b"", "properties": {"n": 1}}] * 2)
    batch = batch.append_column("more", pa.array([overflow.encoded({"n": "x"}), None], pa.binary()))

    assert Selector("n = 1").mask(batch).to_pylist() == [False, True]
    assert Selector("n = 'x'").mask(batch).to_pylist() == [True, False]
