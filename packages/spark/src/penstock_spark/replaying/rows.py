"""Converts rows of an archive to stored batches, and stored batches to bodies.

An archive contains all parts of its events. Other tables with ids and times can also be replayed; a
null in such a table means that the event does not have the property.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.events.origin import bounded_ttl
from penstock_core.columns.files.archives import CHANNEL, from_archive
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.schema.layout import (
    BODY,
    DELIVERY_TIME,
    FIELDS,
    HEADERS,
    LOGICAL_NAME,
    STAMPED,
    STAMPED_FIELDS,
)
from penstock_core.columns.schema.struct_fields import fields_of

_EVENT_COLUMNS: Final[tuple[str, ...]] = ("tag", "data", "ttl", "priority", "persistent")
"""Columns that become parts of the event and not properties."""
_TABLE_COLUMNS: Final = ("origin", "channel")
"""Columns of a table that are not replayed."""
_STAMPED_HEADERS: Final = ("publisher", "host")
"""Headers that the realm sets itself. For replayed events the publisher is the replay."""
_ESCAPE: Final = "properties."
"""Prefix of the column of a property whose name is that of an event column."""
_SECOND_TYPE: Final = "::"
"""Separates the name of a property from its type, in the column for its second type."""

MARK: Final = "replay_of"
"""Property of replayed events with the channel, id and time of the original event."""


def stored_rows(flat: pa.RecordBatch, table: pa.Schema) -> pa.RecordBatch:
    """Return rows of an archive, or of a similar table, as a stored batch.

    ``table`` is the schema of the table.
    """
    if CHANNEL in (table.field("event_id").metadata or {}):
        return from_archive(flat, table)
    columns = dict(zip(flat.schema.names, flat.columns, strict=True))
    realm_columns = [columns.pop(name).cast(kind) for name, kind in STAMPED.items()]
    # Events have no dates: a date column is a partition column of the table.
    event_columns = {
        name: array
        for name, array in columns.items()
        if name not in _TABLE_COLUMNS and not pa.types.is_date(array.type)
    }
    body = flat_body(event_columns, flat.num_rows)
    return pa.RecordBatch.from_arrays(
        [*realm_columns, *body.columns], schema=pa.schema([*STAMPED_FIELDS, *body.schema])
    )


def flat_body(columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    """Return a body of ``count`` events from flat columns, one for each property or event part.

    A null means that the event does not have the property. Raises ``InvalidEvent`` for a column
    that cannot be a part of an event.
    """
    property_columns = {
        name: array for name, array in columns.items() if array.null_count < len(array)
    }
    event_columns = {
        name: property_columns.pop(name) for name in _EVENT_COLUMNS if name in property_columns
    }
    if "ttl" in event_columns:
        event_columns["ttl"] = bounded_ttl(event_columns["ttl"])
    headers = (
        _headers(property_columns.pop("headers"))
        if _is_struct(property_columns.get("headers"))
        else None
    )
    if headers is not None:
        event_columns["headers"] = headers
    properties = _properties(property_columns)
    if properties is not None:
        event_columns["properties"] = properties
    if not event_columns:
        event_columns["data"] = _empty_data(count)
    if pa.types.is_string(event_columns.get("data", pa.nulls(0)).type):
        event_columns["data"] = event_columns["data"].cast(pa.binary())
    (body,) = bodies_of_table(pa.table(event_columns), max_rows=count)
    if properties is None or not _may_be_absent(properties):
        return body
    return with_columns(body, {"sparse": pa.repeat(pa.scalar(value=True), count)})


def body_of_stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a stored batch as a body: without the columns and headers that the realm sets."""
    names = [
        field.name
        for field in batch.schema
        if field.name not in STAMPED and field.name not in ("origin", DELIVERY_TIME)
    ]
    if names:
        body = batch.select(names)
        return _with_headers_in_use(body) if "headers" in names else body
    # The number of events of a body follows from its columns, so it needs at least one.
    return pa.RecordBatch.from_arrays(
        [_empty_data(batch.num_rows)], schema=pa.schema([FIELDS["data"]])
    )


def with_columns(body: pa.RecordBatch, changed: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return ``body`` with the columns ``changed`` added or replaced, in the order of the
    layout."""
    columns = dict(zip(body.schema, body.columns, strict=True))
    by_name = {field.name: (field, array) for field, array in columns.items()}
    for name, array in changed.items():
        by_name[name] = FIELDS.get(name) or pa.field(name, array.type), array
    ordered = [by_name[name] for name in BODY if name in by_name]
    return pa.RecordBatch.from_arrays(
        [array for _, array in ordered], schema=pa.schema([field for field, _ in ordered])
    )


def marked(
    body: pa.RecordBatch,
    channels: pa.Array,
    ids: pa.Array,
    published: pa.Array,
    name: str = MARK,
) -> pa.RecordBatch:
    """Return ``body`` with the property ``name``: the channel, id and publication time of the
    original events."""
    mark = pa.StructArray.from_arrays(
        [channels, ids, published],
        fields=[
            pa.field("channel", pa.string()),
            pa.field("event_id", pa.int64()),
            pa.field("published", published.type),
        ],
    )
    return with_property(body, name, mark)


def with_property(body: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    """Return ``body`` with the property ``name``, added or replaced."""
    fields, arrays = [pa.field(name, values.type)], [values]
    index = body.schema.get_field_index("properties")
    if index >= 0:
        struct = body.column(index)
        for field, array in zip(struct.type, fields_of(struct), strict=True):
            if field.name != name:
                fields.append(field)
                arrays.append(array)
    properties = pa.StructArray.from_arrays(arrays, fields=fields)
    changed = {"properties": properties}
    if index >= 0 and body.column(index).null_count and "sparse" not in body.schema.names:
        # An event without properties had a null struct. It now has one property, and the mask marks
        # the others as missing, not as null.
        lacks_others = body.column(index).is_null()
        changed["sparse"] = lacks_others
    return with_columns(body, changed)


def effective_times(published: pa.Array, reached: int) -> Int64s:
    """Return the publication times of a batch, in microseconds, raised where necessary so that they
    ascend with the ids.

    ``reached`` is the latest time of earlier batches. Times may descend if the clock of the realm's
    machine was set back; the order of ids wins.
    """
    times = np.asarray(pc.cast(published, pa.int64()).to_numpy(zero_copy_only=False))
    if not len(times):
        return times
    return np.maximum(np.maximum.accumulate(times), reached)


def _with_headers_in_use(body: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``body`` without headers that the realm sets or that are null in all events."""
    index = body.schema.get_field_index("headers")
    headers = _headers(body.column(index))
    if headers is not None:
        return with_columns(body, {"headers": headers})
    if body.num_columns > 1:
        return body.remove_column(index)
    return with_columns(body.remove_column(index), {"data": _empty_data(body.num_rows)})


def _empty_data(count: int) -> pa.BinaryArray:
    return pa.array([b""] * count, pa.binary())


def _is_struct(array: pa.Array | None) -> bool:
    return array is not None and pa.types.is_struct(array.type)


def _headers(struct: pa.StructArray) -> pa.StructArray | None:
    """Return the headers that a publisher can set and that some event has; None if there are
    none."""
    fields, arrays = [], []
    for field, array in zip(struct.type, struct.flatten(), strict=True):
        is_settable = field.name in HEADERS and field.name not in _STAMPED_HEADERS
        if is_settable and array.null_count < len(array):
            fields.append(field)
            arrays.append(array)
    return pa.StructArray.from_arrays(arrays, fields=fields) if arrays else None


def _properties(columns: dict[str, pa.Array]) -> pa.StructArray | None:
    """Return the struct of properties from their columns; None without columns."""
    arrays_by_name = {name.removeprefix(_ESCAPE): array for name, array in columns.items()}
    if not arrays_by_name:
        return None
    fields = []
    for name, array in arrays_by_name.items():
        # A property with values of two types has two columns; the second belongs to the same
        # logical name.
        logical_name, separator, _ = name.partition(_SECOND_TYPE)
        is_second_type = separator and logical_name in arrays_by_name
        metadata = {LOGICAL_NAME: logical_name.encode()} if is_second_type else None
        fields.append(pa.field(name, array.type, metadata=metadata))
    return pa.StructArray.from_arrays(list(arrays_by_name.values()), fields=fields)


def _may_be_absent(struct: pa.StructArray) -> bool:
    """Return whether a value of a property, or of a field inside one, may be null."""
    return any(array.null_count or pa.types.is_nested(array.type) for array in struct.flatten())
