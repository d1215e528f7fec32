"""Names in a selector, and conditions that can never match on a channel."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from packages.core.tests.columns.selectors.batches import batch_of, properties_batch
from packages.core.tests.columns.selectors.strategies import EXPRESSIONS, batches
from penstock_core.columns.selectors import Selector, parse
from penstock_core.columns.selectors.checking import Name, checked
from penstock_core.columns.selectors.expressions import Expression
from penstock_core.columns.selectors.wording import canonical
from tests.thorough import examples

STORED = properties_batch(
    {
        "price": 9.5,
        "sku": "a1",
        "open": True,
        "made": datetime(2026, 5, 4, tzinfo=UTC),
        "lines": [{"n": 1}],
        "maker": {"city": "Bonn"},
        "raw": b"x",
        "any": 1,
    },
    {"any": "text"},
).schema


def remarks(text: str, stored: pa.Schema = STORED) -> tuple[str, ...]:
    return checked(parse(text), stored).remarks


def test_names_and_what_they_were_seen_as() -> None:
    text = "price > 5 AND any = 1 AND lines[].n = 1 AND maker IS NULL AND prise = 1 AND tag = 'x'"

    assert checked(parse(text), STORED).names == (
        Name("price", "property", ("float64",)),
        Name("any", "property", ("int64", "string")),
        Name("lines[].n", "property", ("int64",)),
        Name("maker", "property", ("dictionary",)),
        Name("prise", "property", ()),
        Name("tag", "header", ("string",)),
    )


def test_without_a_channel_names_have_no_types() -> None:
    result = checked(parse("prise > 'x' AND DISTANCE(1, 2, K) < 3"))

    assert [(name.name, name.types) for name in result.names] == [
        ("prise", None),
        ("latitude", None),
        ("longitude", None),
    ]
    assert result.remarks == ()


def test_an_unknown_name_is_reported() -> None:
    (remark,) = remarks("prise > 5")

    assert remark.startswith("no event on this channel has had prise")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("price = 'x'", "price is a number, and 'x' is text"),
        ("'x' = price", "'x' is text, and price is a number"),
        ("sku > 5", "sku is text, and 5 is a number"),
        ("sku + 1 > open", "sku + 1 is a number, and open is true or false"),
        ("open > FALSE", "true and false compare with = and <> only"),
        ("price IN ('a', 'b')", "price is a number, and 'a' is text"),
        ("price BETWEEN 1 AND 'b'", "price is a number, and 'b' is text"),
        ("price LIKE '5%'", "price is a number, and LIKE is for text"),
        ("price MATCHES '5/#'", "price is a number, and MATCHES is for text"),
        ("made = 'noon'", "made is a time, and 'noon' is text"),
        ("raw = 'x'", "raw is a value that does not compare, and 'x' is text"),
        ("JMSPriority = '4'", "JMSPriority is a number, and '4' is text"),
    ],
)
def test_types_that_never_compare_are_reported(text: str, why: str) -> None:
    (remark,) = remarks(text)

    assert remark.endswith(f"never matches on this channel: {why}")


@pytest.mark.parametrize(
    "text",
    [
        "price = 5 AND sku = 'x' AND open = TRUE AND open",
        "any = 1 OR any = 'x'",
        "made > '2026-01-01' AND made < 5 AND published > NOW()",
        "price IN ('a', 5)",
        "maker.city = 'x' AND lines[].n = 1 AND maker IS NULL",
    ],
)
def test_what_may_match_is_not_remarked_on(text: str) -> None:
    assert remarks(text) == ()


def test_the_overflow_column_may_hold_anything() -> None:
    assert remarks("price = 'x' AND prise = 1", STORED.append(pa.field("more", pa.binary()))) == ()


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(EXPRESSIONS, batches())
def test_what_never_matches_never_does(
    expression: Expression, events: list[dict[str, Any]]
) -> None:
    batch = batch_of(events)
    text = canonical(expression)

    if f"{text} never matches on this channel" in " ".join(remarks(text, batch.schema)):
        assert Selector(text).mask(batch, now_us=2_500).true_count == 0
