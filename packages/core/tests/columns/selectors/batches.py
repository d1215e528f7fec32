"""Batches in the stored layout, from events written as dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from penstock_core.columns.schema import overflow

Row = dict[str, Any]

TIME = pa.timestamp("us", tz="UTC")
_TYPES: dict[str, Any] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "datetime": TIME,
    "bytes": pa.binary(),
}
_SYSTEM: dict[str, Any] = {
    "event_id": pa.int64(),
    "published": TIME,
    "tag": pa.string(),
    "data": pa.binary(),
    "ttl": pa.int64(),
    "persistent": pa.bool_(),
    "priority": pa.int8(),
}
_HEADERS: dict[str, Any] = {
    "message_id": pa.string(),
    "correlation_id": pa.string(),
    "type": pa.string(),
    "delivery_mode": pa.int8(),
}


def batch_of(events: Sequence[Row]) -> pa.RecordBatch:
    """Return the events as columns, without unused columns, as in the store."""
    columns: dict[str, Any] = {}
    for name, kind in _SYSTEM.items():
        values = [event.get(name) for event in events]
        if any(value is not None for value in values):
            columns[name] = pa.array(values, kind)
    properties = [_fitting(event) for event in events]
    left_over = [_overflowing(event) for event in events]
    if any(left_over):
        columns["more"] = pa.array(
            [overflow.encoded(o) if o else None for o in left_over], pa.binary()
        )
    if any(properties):
        columns["properties"] = _struct(properties)
    headers = [event.get("headers") for event in events]
    if any(headers):
        columns["headers"] = pa.array(headers, pa.struct(list(_HEADERS.items())))
    if not columns:
        columns["data"] = pa.array([b"" for _ in events], pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def _fitting(event: Row) -> Row | None:
    """Return the properties that fit into columns."""
    properties: Row | None = event.get("properties")
    if properties is None:
        return None
    return {n: v for n, v in properties.items() if n not in _overflowing(event)}


def _overflowing(event: Row) -> Row:
    """Return the properties that do not fit into columns: those named by the event, and lists of
    several types."""
    properties: Row = event.get("properties") or {}
    stated = event.get("overflow", ())
    return {n: v for n, v in properties.items() if n in stated or _is_mixed(v)}


def _is_mixed(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_mixed, value.values()))
    if not isinstance(value, list):
        return False
    kinds = {_kind(element) for element in value if element is not None}
    return len(kinds) > 1 or any(map(_is_mixed, value))


def properties_batch(*properties: Row | None) -> pa.RecordBatch:
    """Return a batch whose events have properties only."""
    return batch_of([{"data": b"", "properties": row} for row in properties])


def _kind(value: Any) -> str:
    if isinstance(value, list):
        kinds = {_kind(element) for element in value if element is not None}
        return f"list of {kinds.pop() if kinds else 'str'}"
    return "datetime" if isinstance(value, datetime) else type(value).__name__


def _struct(values: Sequence[Row | None]) -> Any:
    names = dict.fromkeys(name for value in values if value for name in value)
    fields, columns = [], []
    for name in names:
        column = [None if value is None else value.get(name) for value in values]
        kinds = dict.fromkeys(_kind(value) for value in column if value is not None)
        for position, kind in enumerate(kinds or {"str": None}):
            chosen = [v if v is not None and _kind(v) == kind else None for v in column]
            built = _column(chosen, kind)
            physical = f"{name}::{kind}" if position else name
            metadata = {b"penstock.name": name.encode()} if position else None
            fields.append(pa.field(physical, built.type, metadata=metadata))
            columns.append(built)
    mask = pa.array([value is None for value in values])
    if not fields:
        return pa.array([None if value is None else {} for value in values], pa.struct([]))
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _column(values: Sequence[Any], kind: str) -> Any:
    if kind == "dict":
        return _struct(values)
    if not kind.startswith("list of "):
        return pa.array(values, _TYPES[kind])
    elements = [element for value in values for element in value or ()]
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value or ()))
    inner = _column(elements, kind.removeprefix("list of "))
    mask = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inner, mask=mask)
