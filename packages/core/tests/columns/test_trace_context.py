"""Adding a trace context to a body changes nothing else of its events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.trace_context import TRACE_NAMES, has_context, with_context
from penstock_core.columns.schema.layout import PROPERTY_COLUMNS_MAX
from penstock_core.ids.ids import Span
from tests.thorough import examples

from .strategies import PROPERTIES, typed

CONTEXT = {"traceparent": "00-1-2-01", "tracestate": "a=1"}
OWN = {"traceparent": "00-3-4-00"}

pytestmark = pytest.mark.spec("E13")


def body(rows: list[dict[str, Any] | None]) -> pa.RecordBatch:
    return body_of_columns([b""] * len(rows), properties=rows)


def read(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [event.properties for event in EventBatch(stamp(batch, Span(0, batch.num_rows), 0))]


def expected(row: dict[str, Any] | None) -> dict[str, Any]:
    properties = dict(row or {})
    if has_context(properties):
        return properties
    return {name: value for name, value in properties.items() if name not in TRACE_NAMES} | CONTEXT


@settings(max_examples=examples(200))
@given(st.lists(st.one_of(st.none(), PROPERTIES), min_size=1, max_size=5), st.data())
def test_events_without_a_context_get_it_and_all_else_stays(
    rows: list[dict[str, Any] | None], data: st.DataObject
) -> None:
    given_contexts: list[dict[str, Any]] = [{}, OWN, {"tracestate": "b=2"}, {"traceparent": None}]
    contexts = st.sampled_from([{}, *given_contexts])
    for index, row in enumerate(rows):
        if event_context := data.draw(contexts):
            rows[index] = {**(row or {}), **event_context}
    published = body(rows)

    traced = with_context(published, CONTEXT)

    check_body(traced)
    assert typed(read(traced)) == typed([expected(row) for row in rows])


def test_a_context_of_one_property_gives_no_event_a_null() -> None:
    traced = with_context(body([OWN, {"price": 1}]), CONTEXT)

    assert read(traced) == [OWN, {"price": 1, **CONTEXT}]


def test_a_body_in_which_all_events_have_a_context_stays() -> None:
    published = body([OWN, OWN])

    assert with_context(published, CONTEXT) is published


@pytest.mark.parametrize(
    "rows",
    [
        [{"traceparent": 1}, {}],
        [{"traceparent": 1}, {"traceparent": "text"}, {}],
        [{f"p{number}": number for number in range(PROPERTY_COLUMNS_MAX - 1)}],
    ],
    ids=["a number", "two types", "no room"],
)
def test_a_body_that_cannot_have_the_columns_stays(rows: list[dict[str, Any] | None]) -> None:
    published = body(rows)

    assert with_context(published, CONTEXT) is published


def test_without_a_context_a_body_stays() -> None:
    published = body([{}])

    assert with_context(published, {}) is published
