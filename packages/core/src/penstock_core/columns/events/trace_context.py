"""The trace context of events: two properties, which all protocols carry (SEM E13)."""

from __future__ import annotations

import re
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

TRACE_PARENT_CHARACTERS_MAX: Final = 128
"""Maximum length of a valid ``traceparent``. Version 00 has 55 characters; later ones may have
more."""
TRACE_STATE_CHARACTERS_MAX: Final = 512
"""Maximum length of a ``tracestate`` that is taken; W3C asks for at least this much. Longer ones
lose members."""
MEMBERS_MAX: Final = 32
"""Maximum number of members of a ``tracestate``."""
LONG_MEMBER_CHARACTERS: Final = 128
"""Length above which a member is left out first if the ``tracestate`` is too long."""
_LONGEST_STATE: Final = MEMBERS_MAX * 514
"""Length of the longest valid ``tracestate`` in characters. A longer one is not split into its
members, because a property may have megabytes."""
_PARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    r"(?P<rest>-[\x21-\x7e]*)?"
)
_VALUE: Final = r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_KEY: Final = r"([a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_MEMBER: Final = re.compile(_KEY + _VALUE)


def has_context(properties: Mapping[str, Any]) -> bool:
    """Return whether the properties of an event have a part of a trace context. A null does not
    count."""
    return any(properties.get(name) is not None for name in TRACE_NAMES)


def valid_context(parent: str, state: str = "") -> dict[str, str]:
    """Return the valid part of a context, by property: nothing if ``parent`` is malformed, and no
    ``tracestate`` if only ``state`` is. A parent of a later version is valid if its first four
    parts are."""
    parent = parent.strip()
    match = _PARENT.fullmatch(parent) if len(parent) <= TRACE_PARENT_CHARACTERS_MAX else None
    if match is None or (match["version"] == "00" and match["rest"] is not None):
        return {}
    if taken_state := _state_of(state):
        return {TRACE_PARENT: parent, TRACE_STATE: taken_state}
    return {TRACE_PARENT: parent}


def _state_of(text: str) -> str:
    """Return a ``tracestate`` of allowed length; empty if it is malformed."""
    if not text or len(text) > _LONGEST_STATE or text.count(",") > 2 * MEMBERS_MAX:
        return ""
    members = [member for part in text.split(",") if (member := part.strip())]
    keys = {member.partition("=")[0] for member in members}
    is_valid = len(keys) == len(members) <= MEMBERS_MAX
    if not is_valid or not all(map(_MEMBER.fullmatch, members)):
        return ""
    if text.strip() == (state := ",".join(members)) and len(state) <= TRACE_STATE_CHARACTERS_MAX:
        return state
    # W3C: long members go first, then members at the end, which are the oldest.
    if len(state) > TRACE_STATE_CHARACTERS_MAX:
        members = [member for member in members if len(member) <= LONG_MEMBER_CHARACTERS]
    while len(state := ",".join(members)) > TRACE_STATE_CHARACTERS_MAX:
        members.pop()
    return state


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
