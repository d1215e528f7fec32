"""Columns that are added to bodies, such as the default values that a realm writes because of a
channel's storage properties (SEM S)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.layout import (
    BODY,
    DICTIONARY,
    FIELDS,
    PRIORITY_DEFAULT,
    UTC_MICROSECONDS,
)
from penstock_core.columns.schema.shapes import struct_shape
from penstock_core.columns.schema.struct_fields import fields_of

_DICTIONARY_FIELDS = [
    pa.field("publisher", pa.string()),
    pa.field("host", pa.string()),
    pa.field("time", UTC_MICROSECONDS),
    pa.field("id", pa.int64()),
]


def with_priority(batch: pa.RecordBatch, default: int) -> pa.RecordBatch:
    """Return the body with ``default`` as the priority of events that have none."""
    if default == PRIORITY_DEFAULT:  # a null priority means this default already
        return batch
    index = batch.schema.get_field_index("priority")
    if index < 0:
        priority = pa.repeat(pa.scalar(default, pa.int8()), batch.num_rows)
    else:
        priority = batch.column(index)
        if not priority.null_count:
            return batch
        priority = priority.fill_null(pa.scalar(default, pa.int8()))
    return with_columns(batch, {"priority": (FIELDS["priority"], priority)})


def with_dictionary(
    batch: pa.RecordBatch, first_id: int, at_us: int, publisher: str, host: str
) -> pa.RecordBatch:
    """Return the body with the property :data:`.layout.DICTIONARY`: publisher, host, time and id.

    Ids are consecutive from ``first_id``. A dictionary that another channel has added is replaced.
    All other properties keep their values, explicit nulls and absent keys (SEM E2).
    """
    dictionary = _dictionary(batch.num_rows, first_id, at_us, publisher=publisher, host=host)
    stamped = with_properties(batch, {DICTIONARY: dictionary})
    if "more" not in batch.schema.names:
        return stamped
    more = _without_dictionary(batch.column("more"))
    return with_columns(stamped, {"more": (FIELDS["more"], more)})


def _dictionary(count: int, first_id: int, at_us: int, publisher: str, host: str) -> pa.StructArray:
    """Return the values of the property :data:`.layout.DICTIONARY` for ``count`` events."""
    arrays = [
        pa.repeat(pa.scalar(publisher), count),
        pa.repeat(pa.scalar(host), count),
        pa.repeat(pa.scalar(at_us, pa.int64()), count).view(UTC_MICROSECONDS),
        pa.array(np.arange(first_id, first_id + count, dtype=np.int64)),
    ]
    return pa.StructArray.from_arrays(arrays, fields=_DICTIONARY_FIELDS)


def _without_dictionary(cells: pa.BinaryArray) -> pa.BinaryArray:
    """Return the column ``more`` without the property :data:`.layout.DICTIONARY`, which another
    channel may have added there because it had no free column.

    The realm stores the new value of the property in a column. A value in ``more`` would replace
    it, because readers prefer ``more``.
    """
    has_dictionary = pc.fill_null(pc.match_substring(cells, DICTIONARY), fill_value=False)
    if not pc.any(has_dictionary).as_py():
        return cells
    rows = [overflow.without(cell, DICTIONARY) for cell in cells.filter(has_dictionary).to_pylist()]
    return pc.replace_with_mask(cells, has_dictionary, pa.array(rows, pa.binary()))


def with_properties(body: pa.RecordBatch, added: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return the body with a column for each property in ``added``. Columns of the same property
    are replaced; values in ``more`` stay, and win over the column.

    All other properties keep their values, explicit nulls and absent keys (SEM E2).
    """
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    changed: dict[str, tuple[pa.Field, pa.Array]] = {}
    index = body.schema.get_field_index("properties")
    if index >= 0:
        struct = body.column(index)
        if struct.null_count:
            # The new properties make null structs valid, so their other nulls must be marked as
            # absent.
            changed["sparse"] = FIELDS["sparse"], _sparse(body, struct)
        for slot, field, array in zip(
            struct_shape(struct.type).slots, struct.type, fields_of(struct), strict=True
        ):
            if slot.logical not in added:
                fields.append(field)
                arrays.append(array)
    properties = pa.StructArray.from_arrays(
        [*arrays, *added.values()],
        fields=[*fields, *(pa.field(name, array.type) for name, array in added.items())],
    )
    changed["properties"] = pa.field("properties", properties.type), properties
    return with_columns(body, changed)


def _sparse(body: pa.RecordBatch, struct: pa.StructArray) -> pa.BooleanArray:
    """Return the column ``sparse``. Rows without properties become sparse, so that their nulls mean
    absent keys."""
    index = body.schema.get_field_index("sparse")
    empty = struct.is_null()
    return empty if index < 0 else pc.or_(body.column(index).fill_null(fill_value=False), empty)


def with_columns(
    body: pa.RecordBatch, changed: Mapping[str, tuple[pa.Field, pa.Array]]
) -> pa.RecordBatch:
    """Return the body with columns added or replaced, in the order of the layout."""
    columns = {
        field.name: (field, array) for field, array in zip(body.schema, body.columns, strict=True)
    } | dict(changed)
    ordered = [columns[name] for name in BODY if name in columns]
    return pa.RecordBatch.from_arrays(
        [array for _, array in ordered], schema=pa.schema([field for field, _ in ordered])
    )
