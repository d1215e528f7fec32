"""Trace contexts of events as OpenTelemetry's contexts, and the other way round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow as pa
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock_core.columns.events.event import Event
from penstock_core.columns.events.trace_context import (
    TRACE_NAMES,
    TRACE_PARENT,
    TRACE_STATE,
    TraceContext,
    valid_context,
)
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema import overflow

LINKS_MAX: Final = 128
"""Maximum number of links of a span, the default of OpenTelemetry's SDK; further contexts are
left out."""
EXAMINED_MAX: Final = 2 * LINKS_MAX
"""Maximum number of different contexts of a batch that are parsed. Some may be malformed, and a
batch with very many may not block the event loop."""
FEW_ROWS: Final = 32
"""Up to this many events are read one by one, which costs less than Arrow's functions."""
NO_ID: Final = -1
"""Id of an event that is not stored yet."""

_w3c: Final = TraceContextTextMapPropagator()
"""Events have the format of W3C (SEM E13), whatever the propagators of the process are."""
_FLAG_AT: Final = 54
"""Position of the digit of a ``traceparent`` whose lowest bit is set if it is sampled."""
_DIGITS: Final = pa.array([*"0123456789abcdef"])
_SAMPLED_DIGITS: Final = pa.array([*"13579bdf"])

Pair = tuple[str | None, str | None]
"""The properties ``traceparent`` and ``tracestate`` of an event."""


class ContextRun(NamedTuple):
    """A context, and the lowest and the highest id of its events. Events of one publish have
    consecutive ids, so events of other contexts are rarely in between."""

    context: SpanContext
    first_id: int
    last_id: int


def distinct(contexts: Iterable[SpanContext]) -> list[SpanContext]:
    """Return contexts without duplicates, at most ``LINKS_MAX``."""
    by_ids = {(context.trace_id, context.span_id): context for context in contexts}
    return list(islice(by_ids.values(), LINKS_MAX))


def context_of_span(span: Span) -> TraceContext:
    """Return the properties of events that are published in a span; empty if it is invalid."""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, set_span_in_context(span, Context()))
    return carrier


def context_of(properties: Mapping[str, Any]) -> Context:
    """Return the context in the properties of an event; an empty one if they have none or it is
    malformed."""
    parent, state = (text_of(properties.get(name)) for name in TRACE_NAMES)
    span = span_context_of((parent, state))
    return set_span_in_context(NonRecordingSpan(span), Context()) if span.is_valid else Context()


def span_context_of(pair: Pair) -> SpanContext:
    """Return the span that published an event; an invalid one if it is unknown."""
    parent, state = pair
    # Checked here and not by OpenTelemetry, which logs a warning for each malformed member.
    context = valid_context(parent, state or "") if parent else {}
    if not context:
        return INVALID_SPAN_CONTEXT
    _, trace_id, span_id, flags = context[TRACE_PARENT].split("-")[:4]
    members = (member.split("=", 1) for member in context.get(TRACE_STATE, "").split(",") if member)
    return SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
        trace_state=TraceState([(key, value) for key, value in members]),
    )


def contexts_in(events: object) -> list[SpanContext]:
    """Return the different contexts of events, in the order of the events, at most ``LINKS_MAX``.

    ``events`` is an event, a batch or table with columns, or an iterable of these.
    """
    return [run.context for run in runs_in(events)]


def runs_in(events: object, *, only_sampled: bool = False) -> list[ContextRun]:
    """Return the different contexts of events as :func:`contexts_in` does, with the ids of their
    events. ``only_sampled`` leaves out contexts that are not sampled."""
    runs: dict[Pair, list[int]] = {}
    for pair, first_id, last_id in _pairs(events, only_sampled=only_sampled):
        run = runs.setdefault(pair, [first_id, last_id])
        run[0], run[1] = min(run[0], first_id), max(run[1], last_id)
    parsed = ((span_context_of(pair), ids) for pair, ids in runs.items())
    valid = (
        ContextRun(context, first_id, last_id)
        for context, (first_id, last_id) in parsed
        if context.is_valid and (context.trace_flags.sampled or not only_sampled)
    )
    return list(islice(valid, LINKS_MAX))


def links_to(spans: Iterable[SpanContext]) -> list[Link]:
    return [Link(span) for span in spans]


def text_of(value: object) -> str | None:
    """Return the value of a property if it is a text; None for other values."""
    return value if isinstance(value, str) else None


def may_have_context(schema: pa.Schema) -> bool:
    """Return whether events with this schema may have a context."""
    if schema.get_field_index("more") >= 0 or schema.get_field_index(TRACE_PARENT) >= 0:
        return True
    index = schema.get_field_index("properties")
    kind = schema.field(index).type if index >= 0 else pa.null()
    return bool(pa.types.is_struct(kind) and kind.get_field_index(TRACE_PARENT) >= 0)


_PairWithIds = tuple[Pair, int, int]
"""The properties of an event or of several, and the lowest and the highest id of these."""


def _pairs(events: object, *, only_sampled: bool) -> Iterator[_PairWithIds]:
    """Yield the properties of events, in order; some of them may be malformed."""
    if isinstance(events, Event):
        parent, state = (text_of(events.properties.get(name)) for name in TRACE_NAMES)
        event_id = NO_ID if events.event_id is None else events.event_id
        yield (parent, state), event_id, event_id
        return
    to_arrow = getattr(events, "to_arrow", None)  # a batch of a subscription
    if to_arrow is not None:
        events = to_arrow()
    if isinstance(events, pa.Table):
        events = events.to_batches()
    if isinstance(events, pa.RecordBatch):
        if may_have_context(events.schema):
            yield from _pairs_of_columns(events, only_sampled=only_sampled)
            yield from _pairs_of_overflow(events)
    elif isinstance(events, Iterable):
        for part in events:
            yield from _pairs(part, only_sampled=only_sampled)
    else:
        raise TypeError(
            f"{type(events).__name__} has no events; give an event, a batch, a table, or a list of "
            "them"
        )


def _pairs_of_columns(batch: pa.RecordBatch, *, only_sampled: bool) -> Iterator[_PairWithIds]:
    """Yield the pairs in the columns of a batch or, without these, in its properties."""
    names = batch.schema.names
    columns = {name: batch.column(name) for name in TRACE_NAMES if name in names}
    if not columns and "properties" in names:
        properties = batch.column("properties")
        if pa.types.is_struct(kind := properties.type):
            indices = {name: kind.get_field_index(name) for name in TRACE_NAMES}
            columns = {
                name: properties.field(index) for name, index in indices.items() if index >= 0
            }
    texts = {name: column for name, column in columns.items() if pa.types.is_string(column.type)}
    if TRACE_PARENT not in texts:
        return
    ids = batch.column("event_id") if "event_id" in names else None
    if batch.num_rows <= FEW_ROWS:
        yield from _few_pairs(texts[TRACE_PARENT], texts.get(TRACE_STATE), ids)
        return
    # Most batches have few contexts: their different values are found by Arrow.
    nulls = pa.nulls(batch.num_rows, pa.string())
    ids = pa.repeat(NO_ID, batch.num_rows) if ids is None else ids
    arrays = [texts[TRACE_PARENT], texts.get(TRACE_STATE, nulls), ids]
    table = pa.table(arrays, names=[*TRACE_NAMES, "event_id"])
    groups = table.group_by([*TRACE_NAMES], use_threads=False).aggregate(
        [("event_id", "min"), ("event_id", "max")]
    )
    if groups.num_rows > FEW_ROWS:
        groups = groups.filter(_is_likely(groups[TRACE_PARENT], only_sampled=only_sampled))
    for row in groups.slice(0, EXAMINED_MAX).to_pylist():
        pair = row[TRACE_PARENT], row[TRACE_STATE]
        yield pair, row["event_id_min"], row["event_id_max"]


def _few_pairs(
    parents: pa.StringArray, states: pa.StringArray | None, ids: pa.Int64Array | None
) -> Iterator[_PairWithIds]:
    """Yield the pairs of a few events."""
    for row, parent in enumerate(parents.to_pylist()):
        if parent is not None:
            event_id = NO_ID if ids is None else ids[row].as_py()
            state = None if states is None else states[row].as_py()
            yield (parent, state), event_id, event_id


def _is_likely(parents: pa.ChunkedArray, *, only_sampled: bool) -> pa.ChunkedArray:
    """Return a mask of the texts that are as long as a ``traceparent``; with ``only_sampled``, of
    sampled ones. A regular expression would take fifty times as long."""
    digits = _SAMPLED_DIGITS if only_sampled else _DIGITS
    return pc.is_in(pc.utf8_slice_codeunits(parents, _FLAG_AT, _FLAG_AT + 1), digits)


def _pairs_of_overflow(batch: pa.RecordBatch) -> Iterator[_PairWithIds]:
    """Yield the pairs in the column ``more``, where a file has properties that few of its events
    have."""
    index = batch.schema.get_field_index("more")
    if index < 0 or not pa.types.is_binary(batch.schema.field(index).type):
        return
    rows = pc.indices_nonzero(pc.match_substring(batch.column(index), TRACE_PARENT))
    for row in rows.slice(0, LINKS_MAX).to_pylist():
        cell = overflow.decoded(batch.column(index)[row].as_py())
        ids = batch.column("event_id") if "event_id" in batch.schema.names else None
        event_id = NO_ID if ids is None else ids[row].as_py()
        parent, state = (text_of(cell.get(name)) for name in TRACE_NAMES)
        yield (parent, state), event_id, event_id
