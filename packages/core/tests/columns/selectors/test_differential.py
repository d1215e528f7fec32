"""Evaluation by columns and by rows selects the same events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from packages.core.tests.columns.selectors.batches import batch_of
from packages.core.tests.columns.selectors.rows import Interpreter
from packages.core.tests.columns.selectors.strategies import EXPRESSIONS, batches
from penstock_core.columns.selectors import Selector, parse
from penstock_core.columns.selectors.expressions import Expression, Not
from penstock_core.columns.selectors.wording import canonical
from tests.thorough import examples

NOW_US = 2_500


@pytest.mark.slow
@pytest.mark.spec("F1", "F2", "F3")
@settings(max_examples=examples(400), deadline=None)
@given(EXPRESSIONS, batches())
def test_columns_and_rows_agree(expression: Expression, events: list[dict[str, Any]]) -> None:
    answers = [Interpreter(event, NOW_US).holds(expression) for event in events]
    batch = batch_of(events)

    selected = Selector(canonical(expression)).mask(batch, now_us=NOW_US)
    rejected = Selector(canonical(Not(expression))).mask(batch, now_us=NOW_US)

    assert selected.null_count == 0
    assert selected.to_pylist() == [answer is True for answer in answers]
    assert rejected.to_pylist() == [answer is False for answer in answers]


@pytest.mark.slow
@pytest.mark.spec("F1")
@settings(max_examples=examples(100), deadline=None)
@given(EXPRESSIONS, batches())
def test_a_slice_of_a_batch_is_selected_like_the_batch(
    expression: Expression, events: list[dict[str, Any]]
) -> None:
    selector = Selector(canonical(expression))
    batch = batch_of(events)
    mask = selector.mask(batch, now_us=NOW_US).to_pylist()
    half = len(events) // 2

    assert selector.mask(batch.slice(half), now_us=NOW_US).to_pylist() == mask[half:]
    assert selector.mask(batch.slice(0, half), now_us=NOW_US).to_pylist() == mask[:half]


@pytest.mark.slow
@pytest.mark.spec("F1")
@settings(max_examples=examples(200), deadline=None)
@given(EXPRESSIONS)
def test_canonical_text_means_the_same_expression(expression: Expression) -> None:
    assert parse(canonical(expression)) == expression
