"""Summaries of record batches: small, and never wrong about the events they exclude (SEM F5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from packages.core.tests.columns.selectors.batches import batch_of, properties_batch
from packages.core.tests.columns.selectors.strategies import EXPRESSIONS, batches
from penstock_core.columns.selectors import Selector, summary_of
from penstock_core.columns.selectors.expressions import Expression, Not
from penstock_core.columns.selectors.summaries import BYTES_MAX, TEXT_MAX, statistics_in
from penstock_core.columns.selectors.wording import canonical
from tests.counting import calls_during
from tests.thorough import examples

NOW_US = 2_500

EVENTS = batch_of(
    [
        {
            "data": b"",
            "event_id": number,
            "published": datetime(2026, 5, 4, tzinfo=UTC) + timedelta(seconds=number),
            "tag": "new",
            "properties": {
                "sku": f"sku-{number:04}",
                "region": ("eu", "us")[number % 2],
                "price": number / 2,
                "open": True,
                "lines": [{"n": number}],
                "maker": {"city": "Bonn"},
                "mixed": number if number % 2 else "text",
            },
        }
        for number in range(100)
    ]
)
SUMMARY = summary_of(EVENTS)


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    "text",
    [
        "sku = 'sku-0100'",
        "sku LIKE 'x%'",
        "region = 'asia'",
        "region IN ('asia', 'africa')",
        "price > 49.5",
        "NOT open",
        "maker.city <> 'Bonn'",
        "misspelt = 1",
        "misspelt IS NOT NULL",
        "misspelt[].x = 1",
        "maker.misspelt LIKE 'a'",
        "tag = 'old'",
        "event_id > 99",
        "published > '2026-05-04T00:02:00'",
        "JMSPriority <> 4",
        "JMSType = 'x'",
        "price = 'ask'",
    ],
)
def test_it_rules_out(text: str) -> None:
    assert not Selector(text).may_match_in(SUMMARY)


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    "text",
    [
        "sku = 'sku-0050'",
        "region = 'us'",
        "misspelt IS NULL",
        "NOT (misspelt = 1 AND price > 100)",
        "lines[].n = 1000",
        "mixed = 1000",
        "mixed.x IS NOT NULL",
        "maker IS NOT NULL",
        "JMSPriority = 4",
        "JMSDeliveryMode = 'PERSISTENT'",
        "EVENTDATA.LENGTH() = 5",
    ],
)
def test_it_does_not_know(text: str) -> None:
    assert Selector(text).may_match_in(SUMMARY)


@pytest.mark.slow
@pytest.mark.spec("F5")
@settings(max_examples=examples(80), deadline=None)
@given(EXPRESSIONS, batches())
def test_nothing_that_matches_is_ruled_out(
    expression: Expression, events: list[dict[str, Any]]
) -> None:
    batch = batch_of(events)
    summary = summary_of(batch)

    for node in (expression, Not(expression)):
        selector = Selector(canonical(node))
        matches = selector.mask(batch, now_us=NOW_US).true_count
        assert not matches or selector.may_match_in(summary, now_us=NOW_US)


@pytest.mark.spec("F2", "F5")
@pytest.mark.parametrize(
    "text",
    [
        "NOT misspelt = lines[]",
        "NOT lines[] < misspelt",
        "NOT misspelt <> lines[] + 1",
        "NOT JMSType = lines[]",
        "NOT misspelt BETWEEN lines[] AND lines[0]",
    ],
)
def test_an_empty_array_is_compared_with_nothing(text: str) -> None:
    batch = batch_of([{"properties": {"lines": []}}, {"properties": {"lines": [1]}}])

    assert Selector(text).mask(batch).to_pylist() == [True, False]
    assert Selector(text).may_match_in(summary_of(batch))


NUMBERS = [*range(-100, 0), *range(100, 200)]


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    ("text", "may_match"),
    [
        (f"price IN ({', '.join(map(str, NUMBERS))})", False),
        (f"price IN (49, {', '.join(map(str, NUMBERS))})", True),
        (f"price NOT IN ({', '.join(map(str, NUMBERS))})", True),
        (f"sku IN ({', '.join(repr(f'skv-{n}') for n in NUMBERS)})", False),
        (f"sku IN ('sku-0007', {', '.join(repr(f'skv-{n}') for n in NUMBERS)})", True),
        (f"region IN ({', '.join(repr(f'f{n}') for n in NUMBERS)})", False),
        (f"misspelt NOT IN ({', '.join(map(str, NUMBERS))})", False),
        (f"event_id IN ('x', {', '.join(map(str, NUMBERS))})", True),
        (f"published IN (1777852800000, {', '.join(map(str, NUMBERS))})", True),
    ],
)
def test_a_long_list_is_compared_with_bounds(text: str, may_match: bool) -> None:
    assert Selector(text).may_match_in(SUMMARY) == may_match


@pytest.mark.slow
@pytest.mark.spec("F5")
def test_a_long_list_takes_few_calls_per_value() -> None:
    """Comparing so many values with the bounds one by one takes longer than reading all events."""
    values = range(1_000, 11_000)
    selector = Selector(f"event_id IN ({', '.join(map(str, values))})")

    calls = calls_during(lambda: selector.may_match_in(SUMMARY))

    assert not selector.may_match_in(SUMMARY)
    assert calls < 5 * len(values)


@pytest.mark.spec("F5")
def test_no_summary_rules_out_nothing() -> None:
    assert Selector("a = 1").may_match_in(b"")


@pytest.mark.spec("F5")
def test_long_text_is_cut_to_bounds() -> None:
    low, high = "a" * 40, "z" * 50
    summary = summary_of(properties_batch({"s": low}, {"s": high}))

    statistics = statistics_in(summary, ["properties.s"])["properties.s"]

    assert len(statistics.minimum) == len(statistics.maximum) == TEXT_MAX
    assert statistics.minimum <= low
    assert high <= statistics.maximum
    assert Selector(f"s = '{low}' OR s = '{high}'").may_match_in(summary)
    assert not Selector("s > '~'").may_match_in(summary)


@pytest.mark.spec("F5")
@pytest.mark.parametrize("last", ["\ud7ff", "\U0010ffff"])
def test_the_last_characters_have_bounds_or_none(last: str) -> None:
    text = last * (TEXT_MAX + 1)

    summary = summary_of(properties_batch({"s": text}, {"s": "a"}))

    assert Selector(f"s = '{text}'").may_match_in(summary)


@pytest.mark.spec("F5")
def test_what_it_has_no_room_for_it_does_not_know() -> None:
    wide = {f"property_{number}": f"{'x' * 30}{number}" for number in range(200)}

    summary = summary_of(properties_batch(wide))

    assert len(summary) <= BYTES_MAX + 16
    assert Selector("property_199 = 'y'").may_match_in(summary)
    assert Selector("misspelt = 1").may_match_in(summary)
    assert not Selector("property_0 = 'y'").may_match_in(summary)


@pytest.mark.spec("F5")
def test_not_a_number_has_no_place_in_bounds() -> None:
    summary = summary_of(properties_batch({"x": float("nan")}, {"x": 1.0}))

    assert Selector("x <> 1.0").may_match_in(summary)
    assert not Selector("x > 2").may_match_in(summary)


@pytest.mark.spec("F5")
def test_a_time_no_clock_shows() -> None:
    far = pa.array([2**62], pa.timestamp("us", tz="UTC"))
    batch = pa.record_batch([pa.StructArray.from_arrays([far], ["when"])], ["properties"])

    assert Selector("when > 5").may_match_in(summary_of(batch))
