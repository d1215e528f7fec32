"""The trace context of events: two properties, which all protocols carry (SEM E13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from penstock_core.columns.events.storage_defaults import with_columns, with_properties
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import FIELDS, PROPERTY_COLUMNS_MAX
from penstock_core.columns.schema.schema import sparse_columns
from penstock_core.columns.schema.shapes import NO_SLOTS, leaf_count, struct_shape
from penstock_core.columns.schema.struct_fields import fields_of

TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
TRACE_NAMES: Final = (TRACE_PARENT, TRACE_STATE)
"""Names of the properties, and of the headers of W3C."""

TraceContext = Mapping[str, str]
"""Values of these properties; empty if there is no context."""


def has_context(properties: Mapping[str, Any]) -> bool:
    """Return whether the properties of an event have a part of a trace context. A null does not
    count."""
    return any(properties.get(name) is not None for name in TRACE_NAMES)


def with_context(body: pa.RecordBatch, context: TraceContext) -> pa.RecordBatch:
    """Return the body in which the events without a trace context have ``context``.

    A body stays as it is if it has no room for two more columns, or if one of the properties has
    values that are not strings.
    """
    if not context:
        return body
    index = body.schema.get_field_index("properties")
    shape = NO_SLOTS if index < 0 else struct_shape(body.schema.field(index).type)
    present: dict[str, pa.Array] = {}
    for position, slot in enumerate(shape.slots):
        if slot.logical in TRACE_NAMES:
            present[slot.name] = fields_of(body.column(index))[position]
    has_room = leaf_count(shape) + len(context.keys() - present.keys()) <= PROPERTY_COLUMNS_MAX
    are_usual = all(
        name in TRACE_NAMES and array.type in (pa.string(), pa.null())
        for name, array in present.items()
    )
    if not has_room or not are_usual:
        return body
    added = {name: pa.repeat(value, body.num_rows) for name, value in context.items()}
    if not present:
        return with_properties(body, added)
    texts = {name: array.cast(pa.string()) for name, array in present.items()}
    is_set = pa.repeat(pa.scalar(value=False), body.num_rows)
    for array in texts.values():
        is_set = pc.or_(is_set, array.is_valid())
    if is_set.false_count == 0:
        return body
    if context.keys() - present.keys():
        # Events that have a context must not get a null for the other property.
        columns = sparse_columns(body, shape)
        body = with_columns(body, {name: (FIELDS[name], columns[name]) for name in columns})
    nulls = pa.nulls(body.num_rows, pa.string())
    return with_properties(
        body,
        {
            name: pc.if_else(is_set, texts.get(name, nulls), added.get(name, nulls))
            for name in TRACE_NAMES
            if name in texts or name in added
        },
    )
