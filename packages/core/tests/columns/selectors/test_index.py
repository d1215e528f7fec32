"""An index of selectors finds the same events as the evaluation of each selector."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.core.tests.columns.selectors.batches import batch_of, properties_batch
from packages.core.tests.columns.selectors.strategies import (
    EXPRESSIONS,
    INTEGERS,
    TYPED,
    WILD_FLOATS,
    batches,
)
from packages.core.tests.columns.selectors.strategies import TEXTS as TEXT_VALUES
from penstock_core.columns.selectors import EventFrame, Selector
from penstock_core.columns.selectors.expressions import Expression
from penstock_core.columns.selectors.index import SelectorIndex
from penstock_core.columns.selectors.wording import canonical
from tests.thorough import examples

NOW_US = 2_500
TEXTS = st.one_of(TYPED, EXPRESSIONS).map(canonical)


def index_of(*texts: str, value_cost: float = 0.0) -> SelectorIndex:
    """Return an index that looks up values even for a few selectors, because a lookup has no
    cost."""
    made = SelectorIndex(value_cost)
    for text in texts:
        made.add(text, Selector(text))
    return made


def matching(made: SelectorIndex, batch: pa.RecordBatch) -> dict[str, list[int]]:
    """Return the rows that each selector of an index matches, without selectors that match none."""
    frame = EventFrame(batch, NOW_US)
    return {text: _rows(mask) for text, mask in made.candidates_in(frame).masks(frame, Selector)}


def one_by_one(texts: set[str], batch: pa.RecordBatch) -> dict[str, list[int]]:
    result = {text: _rows(Selector(text).mask(batch, now_us=NOW_US)) for text in texts}
    return {text: rows for text, rows in result.items() if rows}


def _rows(mask: pa.BooleanArray) -> list[int]:
    return [row for row, is_selected in enumerate(mask.to_pylist()) if is_selected]


@pytest.mark.slow
@pytest.mark.spec("F1", "F5")
@settings(max_examples=examples(400), deadline=None)
@given(st.sets(TEXTS, max_size=8), st.sets(TEXTS, max_size=3), batches())
def test_the_index_agrees_with_each_single_selector(
    texts: set[str], gone: set[str], events: list[dict[str, Any]]
) -> None:
    batch = batch_of(events)
    made = index_of(*sorted(texts | gone))
    for text in sorted(gone - texts):
        made.remove(text, Selector(text))

    assert matching(made, batch) == one_by_one(texts, batch)
    assert len(made) == len(texts)
    for row in range(batch.num_rows):
        alone = batch.slice(row, 1)
        assert matching(made, alone) == one_by_one(texts, alone)


SCALARS = st.one_of(st.booleans(), INTEGERS, WILD_FLOATS, TEXT_VALUES)
SINGLE_EVENTS = st.dictionaries(st.sampled_from(["n", "i", "s", "b", "any"]), SCALARS)


def matching_single(made: SelectorIndex, event: dict[str, Any]) -> dict[str, list[int]] | None:
    """Return what `matching` returns for one event whose properties are read without columns."""
    candidates = made.candidates_of(lambda name: event.get(name))
    frame = EventFrame(properties_batch(event), NOW_US)
    if candidates is None:
        return None
    return {text: _rows(mask) for text, mask in candidates.masks(frame, Selector)}


@pytest.mark.slow
@pytest.mark.spec("F1", "F5")
@settings(max_examples=examples(400), deadline=None)
@given(st.sets(TEXTS, max_size=8), SINGLE_EVENTS)
def test_the_index_finds_the_selectors_of_one_event_without_columns(
    texts: set[str], event: dict[str, Any]
) -> None:
    made = index_of(*sorted(texts))

    assert matching_single(made, event) in (None, one_by_one(texts, properties_batch(event)))


def test_values_that_only_columns_show_are_left_to_them() -> None:
    for text in ("JMSType = 'a'", "tag = 'a'", "d.k = 1"):
        assert index_of(text).candidates_of(lambda _: None) is None
    for value in (b"x", NotImplemented, datetime.now(UTC)):
        assert index_of("p = 1").candidates_of({"p": value}.__getitem__) is None


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.one_of(TYPED, EXPRESSIONS), min_size=1, max_size=6, unique_by=canonical))
def test_what_is_removed_leaves_nothing_behind(expressions: list[Expression]) -> None:
    made = index_of(*map(canonical, expressions))

    for text in map(canonical, expressions):
        made.remove(text, Selector(text))

    assert made.work == 0
    assert not made.stamped
    assert not len(made)
    assert not made._tables


@pytest.mark.parametrize(
    ("selector", "values"),
    [
        ("p = 'a'", ["a", "b", None]),
        ("'a' = p", ["a", "b", None]),
        ("p IN ('a', 'b')", ["a", "b", "c"]),
        ("p = 1", [1, 2, 1.0, None, True, "1"]),
        ("p = 9007199254740993", [2**53, 2**53 + 1, 2**53 + 2, 2.0**53]),
        ("p > 9007199254740992", [2**53, 2**53 + 1, 2.0**53, 2.0**54]),
        ("p <= 9007199254740993", [2**53 + 1, 2**53 + 2, 2.0**53 + 2]),
        ("p BETWEEN 1 AND 3", [0, 1, 2, 3, 4, 2.5, None]),
        ("p BETWEEN 3 AND 1", [0, 1, 2, 3]),
        ("p >= 0", [-0.0, 0.0, -1, float("nan"), float("inf"), float("-inf")]),
        ("p < 0", [-0.0, 0.0, -1, -5e-324, float("nan"), float("-inf")]),
        ("p LIKE 'ab%'", ["ab", "abc", "a", "", None]),
        ("p LIKE 'ab%d'", ["abd", "abcd", "abc"]),
        ("p LIKE 'ab_'", ["ab", "abc"]),
        ("p LIKE 'ab'", ["ab", "abc"]),
        ("p MATCHES 'a/b'", ["a/b", "a/c", 1]),
        ("p MATCHES 'a/+'", ["a/b", "a/c", "a/b/c", "a", "b/a"]),
        ("p MATCHES 'a/#'", ["a/b", "a", "ab", "a/b/c"]),
        ("p LIKE ''", ["", "a"]),
        ("p", [True, False, None]),
        ("p = FALSE", [True, False, None, 0]),
        ("p > 1 AND p < 5 AND p <> 3", [1, 2, 3, 4, 5]),
        ("p = 1 OR p LIKE 'x%' OR p > 10", [1, 5, 11, "xy", "y"]),
        ("p > 1 OR q = 'z'", [1, 2]),
    ],
)
def test_a_selector_is_looked_up_by_values(selector: str, values: list[Any]) -> None:
    batch = properties_batch(*({"p": value} for value in values))
    text = Selector(selector).text
    made = index_of(text)

    assert made.finds(text)
    assert matching(made, batch) == one_by_one({text}, batch)
    for value in values:
        event = {} if value is None else {"p": value}
        assert matching_single(made, event) == one_by_one({text}, properties_batch(event))


@pytest.mark.parametrize(
    "selector",
    ["p <> 1", "NOT p = 1", "p IS NULL", "p LIKE '%a'", "l[] = 1", "p = q", "event_id = 1"],
)
def test_a_selector_that_requires_no_value_is_put_to_every_event(selector: str) -> None:
    made = index_of(selector)

    assert not made.finds(selector)
    result = made.candidates_in(EventFrame(properties_batch({"p": 7}), 0))
    assert list(result.inexact) == [selector]


def test_only_what_may_match_is_put_to_events() -> None:
    texts = [f"topic = 'dev/{n}' AND price > {n}" for n in range(1_000)]
    made = index_of(*texts)

    result = made.candidates_in(EventFrame(properties_batch({"topic": "dev/7", "price": 1}), 0))

    assert list(result.inexact) == [texts[7]]


def test_of_several_properties_the_one_that_tells_most_apart_is_looked_up() -> None:
    texts = [f"kind = 'reading' AND device = {n}" for n in range(100)]
    made = index_of(*texts)

    result = made.candidates_in(EventFrame(properties_batch({"kind": "reading", "device": 7}), 0))

    assert texts[7] in result.inexact
    assert len(result.inexact) <= 2


def test_a_large_batch_is_not_looked_up_for_a_few_selectors() -> None:
    made = index_of("n = 1", "n > 100", value_cost=0.5)
    batch = properties_batch(*({"n": n} for n in range(200)))

    result = made.candidates_in(EventFrame(batch, 0))

    assert not result.exact
    assert list(result.inexact) == ["n = 1", "n > 100"]
    assert matching(made, batch) == one_by_one({"n = 1", "n > 100"}, batch)


def test_an_invalid_stored_selector_is_evaluated_on_every_batch() -> None:
    made = index_of()
    made.add("p =", None)

    result = made.candidates_in(EventFrame(properties_batch({"p": 1}), 0))

    assert list(result.inexact) == ["p ="]
    made.remove("p =", None)
    assert not len(made)
