"""The span in which a program processes events: its parent and its links."""

from __future__ import annotations

import pyarrow as pa
import pytest
from opentelemetry.trace import format_span_id

import penstock
import penstock_otel
from packages.otel.tests.conftest import Spans, parent
from penstock_otel.contexts import LINKS_MAX, contexts_in


def event(number: int) -> penstock.Event:
    return penstock.Event(properties={"traceparent": parent(number)})


def ids(events: object) -> list[int]:
    return [span.span_id for span in contexts_in(events)]


def test_contexts_are_found_in_every_form_of_events() -> None:
    columns = {"traceparent": [parent(1), parent(2), None, parent(1)]}
    nested = pa.table({"properties": pa.table(columns).to_struct_array()})

    assert ids(event(1)) == [1]
    assert ids([event(1), event(2), event(1)]) == [1, 2]
    assert ids(pa.table(columns)) == [1, 2]
    assert ids(nested) == [1, 2]
    assert ids([pa.table(columns), event(3)]) == [1, 2, 3]
    assert ids(pa.table({"price": [1]})) == []


def test_what_is_no_context_is_left_out() -> None:
    malformed = penstock.Event(properties={"traceparent": "broken"})
    number = penstock.Event(properties={"traceparent": 5})

    nested = penstock.Event(properties={"traceparent": ["a"]})

    assert ids([malformed, number, nested, penstock.Event(), event(7)]) == [7]
    assert ids(pa.table({"traceparent": [1, 2]})) == []


def test_the_state_of_a_trace_is_kept() -> None:
    traced = penstock.Event(properties={"traceparent": parent(1), "tracestate": "a=1"})
    (context,) = contexts_in(traced)

    assert dict(context.trace_state) == {"a": "1"}


def test_links_are_bounded() -> None:
    assert ids([event(number) for number in range(1, LINKS_MAX + 9)]) == list(
        range(1, LINKS_MAX + 1)
    )


def test_what_has_no_events_is_refused() -> None:
    with pytest.raises(TypeError, match="int has no events"):
        contexts_in(5)


def test_events_of_one_context_are_its_children(spans: Spans) -> None:
    with penstock_otel.processing([event(1), event(1)], store="orders"):
        pass
    span = spans.one("process orders")

    assert span.parent is not None
    assert format_span_id(span.parent.span_id) == f"{1:016x}"
    assert [link.context.span_id for link in span.links] == [1]


@pytest.mark.parametrize("events", [[event(1), event(2)], [penstock.Event()]])
def test_events_of_several_contexts_or_none_begin_a_trace(
    spans: Spans, events: list[penstock.Event]
) -> None:
    with penstock_otel.processing(events):
        pass
    span = spans.one("process")

    assert span.parent is None
    assert [link.context.span_id for link in span.links] == ids(events)


def test_in_another_span_the_context_is_a_link_only(spans: Spans) -> None:
    with (
        spans.tracer.start_as_current_span("request") as request,
        penstock_otel.processing(event(1), store="orders"),
    ):
        pass
    span = spans.one("process orders")

    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert [link.context.span_id for link in span.links] == [1]


def test_a_program_can_take_the_context_of_an_event(spans: Spans) -> None:
    context = penstock_otel.context_of(event(1).properties)
    with spans.tracer.start_as_current_span("mine", context):
        pass
    span = spans.one("mine")

    assert span.parent is not None
    assert span.parent.span_id == 1
