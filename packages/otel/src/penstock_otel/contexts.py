"""Trace contexts of events as OpenTelemetry's contexts, and the other way round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock_core.columns.events.event import Event
from penstock_core.columns.events.trace_context import TRACE_NAMES, TraceContext

LINKS_MAX: Final = 128
"""Maximum number of links of a span, the default of OpenTelemetry's SDK; further contexts are
left out."""

_w3c: Final = TraceContextTextMapPropagator()
"""Events have the format of W3C (SEM E13), whatever the propagators of the process are."""

Pair = tuple[str | None, str | None]
"""The properties ``traceparent`` and ``tracestate`` of an event."""


def context_of_span(span: Span) -> TraceContext:
    """Return the properties of events that are published in a span; empty if it is invalid."""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, set_span_in_context(span, Context()))
    return carrier


def context_of(properties: Mapping[str, Any]) -> Context:
    """Return the context in the properties of an event; an empty one if they have none or it is
    malformed."""
    carrier = {name: properties[name] for name in TRACE_NAMES if text_of(properties.get(name))}
    return _w3c.extract(carrier, Context())


def span_context_of(pair: Pair) -> SpanContext:
    """Return the span that published an event; an invalid one if it is unknown."""
    return get_current_span(
        context_of(dict(zip(TRACE_NAMES, pair, strict=True)))
    ).get_span_context()


def contexts_in(events: object) -> list[SpanContext]:
    """Return the different contexts of events, in the order of the events, at most ``LINKS_MAX``.

    ``events`` is an event, a batch or table with columns, or an iterable of these.
    """
    spans = map(span_context_of, _pairs(events))
    return list(islice((span for span in spans if span.is_valid), LINKS_MAX))


def links_to(spans: Iterable[SpanContext]) -> list[Link]:
    return [Link(span) for span in spans]


def _pairs(events: object) -> dict[Pair, None]:
    """Return the different pairs of properties of events, in order."""
    if isinstance(events, Event):
        parent, state = (text_of(events.properties.get(name)) for name in TRACE_NAMES)
        return {(parent, state): None}
    to_arrow = getattr(events, "to_arrow", None)  # a batch of a subscription
    if to_arrow is not None:
        events = to_arrow()
    if isinstance(events, pa.RecordBatch):
        return _pairs_of_columns(events)
    if isinstance(events, pa.Table):
        return _merged(map(_pairs_of_columns, events.to_batches()))
    if isinstance(events, Iterable):
        return _merged(map(_pairs, events))
    raise TypeError(
        f"{type(events).__name__} has no events; give an event, a batch, a table, or a list of them"
    )


def text_of(value: object) -> str | None:
    """Return the value of a property if it is a text; None for other values."""
    return value if isinstance(value, str) else None


def _merged(parts: Iterable[dict[Pair, None]]) -> dict[Pair, None]:
    pairs: dict[Pair, None] = {}
    for part in parts:
        pairs |= part
    return pairs


def _pairs_of_columns(batch: pa.RecordBatch) -> dict[Pair, None]:
    """Return the different pairs in the columns of a batch or, without these, in its properties."""
    columns = {name: batch.column(name) for name in TRACE_NAMES if name in batch.schema.names}
    index = batch.schema.get_field_index("properties")
    if not columns and index >= 0 and pa.types.is_struct(batch.schema.field(index).type):
        properties = batch.column(index)
        for name in TRACE_NAMES:
            if properties.type.get_field_index(name) >= 0:
                columns[name] = properties.field(name)
    texts = {name: column for name, column in columns.items() if pa.types.is_string(column.type)}
    if not texts:
        return {}
    # Most batches have few contexts: their different values are found by Arrow.
    groups = pa.table(texts).group_by(list(texts), use_threads=False).aggregate([])
    return {(row.get(TRACE_NAMES[0]), row.get(TRACE_NAMES[1])): None for row in groups.to_pylist()}
