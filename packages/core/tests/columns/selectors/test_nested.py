"""Dictionaries, arrays and properties of two types (SEM F2)."""

from __future__ import annotations

import pytest

from packages.core.tests.columns.selectors.batches import properties_batch
from penstock_core.columns.selectors import Selector

EVENTS = properties_batch(
    {
        "NAMES": ["x", "y"],
        "CONTACTS": [{"name": "x", "phones": ["1", "2"]}, {"name": "z"}],
        "a": {"b": {"c": 5}},
        "price": 3,
    },
    {"NAMES": [], "CONTACTS": [], "a": {"b": {"c": "five"}}, "price": "3"},
    {"NAMES": ["y", None], "CONTACTS": [{"phones": []}, None], "a": {"b": None}, "price": 3.5},
    {"NAMES": [1, 2]},
    None,
)


@pytest.mark.spec("F2")
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a.b.c = 5", [0]),
        ("a.b.c = 'five'", [1]),
        ("a.b.c IS NULL", [2, 3, 4]),
        ("a.b IS NOT NULL", [0, 1]),
        ("a IS NULL", [3, 4]),
        ("a.x = 1 OR a.b.c.d = 1", []),
        ("price = 3", [0]),
        ("price >= 3", [0, 2]),
        ("price = '3'", [1]),
        ("price <> 3", [2]),
        ("price IS NULL", [3, 4]),
        ("NAMES[] = 'x'", [0]),
        ("NOT NAMES[] = 'x'", [1]),
        ("NAMES[] <> 'x'", [0, 2]),
        ("NAMES[] NOT IN ('x')", [0, 2]),
        ("NOT NAMES[] IN ('x', 'y')", [1]),
        ("NAMES[] = 2", [3]),
        ("NAMES[] BETWEEN 2 AND 3", [3]),
        ("NAMES[] + 1 = 3", [3]),
        ("NAMES[] LIKE 'x%'", [0]),
        ("NAMES[] IS NULL", [2]),
        ("NAMES[0] = 'x'", [0]),
        ("NAMES[1] = 'y'", [0]),
        ("NAMES[1] = 2", [3]),
        ("NAMES[7] IS NULL", [0, 1, 2, 3, 4]),
        ("NAMES = 'x'", []),
        ("NAMES[] = 'x' AND NAMES[] = 'y'", [0]),
        ("CONTACTS[].name = 'x'", [0]),
        ("CONTACTS[1].name = 'z'", [0]),
        ("CONTACTS[].phones[] = '2'", [0]),
        ("CONTACTS[].phones[1] = '2'", [0]),
        ("CONTACTS[].name = NAMES[0]", [0]),
        ("(NAMES[] = 'x') = TRUE", [0]),
        ("price[] = 3", []),
        ("NAMES.x = 3", []),
    ],
)
def test_nested_properties(text: str, rows: list[int]) -> None:
    mask = Selector(text).mask(EVENTS).to_pylist()

    assert [row for row, selected in enumerate(mask) if selected] == rows


@pytest.mark.spec("F2")
def test_a_predicate_inside_a_predicate_searches_its_own_array() -> None:
    batch = properties_batch(
        {"flags": [False, True], "tags": ["x"]},
        {"flags": [False], "tags": ["x"]},
        {"flags": [False], "tags": []},
    )

    mask = Selector("flags[] = (tags[] = 'x')").mask(batch).to_pylist()
    same = Selector("flags[] = (flags[] = TRUE)").mask(batch).to_pylist()

    assert mask == [True, False, True]
    assert same == [True, True, True]
