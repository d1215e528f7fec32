"""Descriptions of selectors in plain words."""

from __future__ import annotations

import pytest
from hypothesis import given

from packages.core.tests.columns.selectors.strategies import EXPRESSIONS
from penstock_core.columns.selectors import parse
from penstock_core.columns.selectors.explaining import explained
from penstock_core.columns.selectors.expressions import Expression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price > 5", "price is greater than 5"),
        ("price <= 5", "price is at most 5"),
        ("price <> 5 + n", "price exists and is not 5 + n"),
        ("n NOT BETWEEN 1 AND 2", "n is outside the range 1 to 2"),
        ("s IN ('a', 'b')", "s is one of 'a', 'b'"),
        ("s NOT IN ('a')", "s exists and is not one of 'a'"),
        ("s LIKE 'a%'", "s begins with 'a'"),
        ("s LIKE '%a'", "s ends with 'a'"),
        ("s NOT LIKE '%a%'", "s is text and does not contain 'a'"),
        ("s LIKE '%'", "s is any text"),
        ("s matches 'a/+'", "s matches the topic filter 'a/+'"),
        ("s NOT MATCHES 'a/#'", "s is text and does not match the topic filter 'a/#'"),
        (
            "s LIKE 'a!%_' ESCAPE '!'",
            "s matches the pattern 'a!%_', where '!' makes the next character plain",
        ),
        ("s IS NULL", "s is missing or null"),
        ("s IS NOT NULL", "s exists"),
        ("open", "open is TRUE"),
        ("names[] = 'x'", "for at least one element of names[]: names[] is 'x'"),
    ],
)
def test_one_condition(text: str, expected: str) -> None:
    assert explained(parse(text)) == [expected]


def test_conditions_are_indented_below_what_joins_them() -> None:
    assert explained(parse("a = 1 AND (b = 2 OR NOT c = 3)")) == [
        "all of these hold:",
        "  a is 1",
        "  at least one of these holds:",
        "    b is 2",
        "    this is false, not just unknown:",
        "      c is 3",
    ]


@pytest.mark.slow
@given(EXPRESSIONS)
def test_every_selector_has_words(expression: Expression) -> None:
    assert all(line.strip() for line in explained(expression))
