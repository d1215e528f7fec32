"""Outcomes cached ahead of the turn equal outcomes evaluated in it (SEM F5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from packages.core.tests.columns.selectors.batches import batch_of
from packages.core.tests.columns.selectors.strategies import EXPRESSIONS, batches
from penstock_core.columns.selectors import EventFrame, Selector, parse
from penstock_core.columns.selectors.expressions import Expression
from penstock_core.columns.selectors.outcomes import (
    PredicateOutcomes,
    key_text,
    reads_published_only,
)
from penstock_core.columns.selectors.wording import canonical
from tests.thorough import examples

pytestmark = pytest.mark.spec("F5")

NOW_US = 2_500


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(EXPRESSIONS, batches())
def test_cached_outcomes_of_unstamped_parts_do_not_change_the_mask(
    expression: Expression, events: list[dict[str, Any]]
) -> None:
    selector = Selector(canonical(expression))
    batch = batch_of(events)
    expected = selector.mask(batch, now_us=NOW_US).to_pylist()
    names = [name for name in batch.schema.names if name not in ("event_id", "published")]
    half = len(events) // 2
    parts = []
    for part in (batch.select(names).slice(0, half), batch.select(names).slice(half)):
        parts.append(PredicateOutcomes())
        selector.mask_in(EventFrame(part, 0, outcomes=parts[-1]))
    cached = PredicateOutcomes()
    cached.add_parts(parts)
    result = selector.mask_in(EventFrame(batch, NOW_US, outcomes=cached))
    wanted = pa.array(np.arange(len(events)) % 2 == 0)
    some = selector.mask_in(
        EventFrame(batch.filter(wanted), NOW_US, outcomes=cached.chosen(wanted))
    )

    assert result.to_pylist() == expected
    assert some.to_pylist() == expected[::2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s LIKE '%a%'", True),
        ("tag = 'x' AND JMSType = 'y' AND JMSCorrelationID = 'z'", True),
        ("EVENTDATA.LENGTH() > 5", True),
        ("EVENTDATA.AS_STRING(0, 4) = 'abcd'", True),
        ("names[].first = 'x'", True),
        ("event_id > 5", False),
        ("n + event_id > 5", False),
        ("published < '2020-01-01'", False),
        ("JMSPriority > 3", False),
        ("JMSDeliveryMode = 'PERSISTENT'", False),
        ("n < NOW()", False),
    ],
)
def test_only_predicates_on_published_values_are_cached(text: str, *, expected: bool) -> None:
    assert reads_published_only(parse(text)) is expected


@pytest.mark.parametrize(
    ("text", "key"),
    [("urgent", "urgent"), ("n = 1", "n = 1"), ("event_id", ""), ("event_id = 1", "")],
)
def test_a_boolean_property_is_cached_like_a_comparison(text: str, key: str) -> None:
    assert key_text(parse(text)) == key
