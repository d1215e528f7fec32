"""Moves properties from ``more`` back into columns, the inverse of
:mod:`penstock_core.columns.files.lean_columns`.

A table shows each property in its column, wherever the file keeps it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.flat_columns import FLAT, flat_field, flat_name
from penstock_core.columns.schema.layout import BODY
from penstock_core.columns.schema.number_columns import (
    NotExact,
    ShownColumn,
    shown_columns,
    typed_columns,
    typed_field,
)
from penstock_core.columns.schema.properties import property_columns
from penstock_core.columns.schema.schema import ChannelSchema, Parts, sparse_columns
from penstock_core.columns.schema.schema_fit import explicit_nulls, fitted, place_of
from penstock_core.columns.schema.shapes import (
    NO_SLOTS,
    Slot,
    StructShape,
    arrow_field,
    arrow_type,
    grown,
    struct_shape,
)
from penstock_core.columns.schema.struct_fields import field_of
from penstock_core.vocabulary.errors import InvalidArgument

UNLIMITED: Final = 1 << 30
"""Stands for no limit of the number of columns."""
SCATTERED: Final = 64
"""A column is built from slices if fewer than one in this many rows has a value."""

Indices = np.ndarray[Any, np.dtype[np.int64]]


def rows_with_more(batch: pa.RecordBatch) -> Indices:
    """Return the indexes of the rows with properties in ``more``."""
    index = batch.schema.get_field_index("more")
    if index < 0 or batch.column(index).null_count == batch.num_rows:
        return np.empty(0, dtype=np.int64)
    valid = batch.column(index).is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(valid)


def lifted(batch: pa.RecordBatch, names: Iterable[str] | None = None) -> pa.RecordBatch:
    """Return the events of ``batch`` with properties moved from ``more`` into columns.

    ``names`` are the properties to move; None means all. Values that no column can hold stay in
    ``more``. The function has a Python loop over the rows, so its cost grows with their number.
    """
    if not len(rows_with_more(batch)):
        return batch
    selected_names = None if names is None else frozenset(names)
    cells = [cell and overflow.typed(cell) for cell in batch.column("more").to_pylist()]
    selected = [
        {
            name: value
            for name, value in (cell or {}).items()
            if selected_names is None or name in selected_names
        }
        for cell in cells
    ]
    selected_columns = property_columns(selected)
    # No selected property fits into a column.
    if selected_columns.properties is None:
        return batch
    unplaced = (
        selected_columns.more.to_pylist()
        if selected_columns.more is not None
        else [None] * len(cells)
    )
    remaining = [
        _remaining_cell(cell, row_properties, unplaced_cell)
        for cell, row_properties, unplaced_cell in zip(cells, selected, unplaced, strict=True)
    ]
    # Properties that no column can hold stay in ``more``, so they must not override columns.
    for row_properties, cell in zip(selected, unplaced, strict=True):
        for name in overflow.nodes(cell) if cell else ():
            del row_properties[name]
    shape = struct_shape(selected_columns.properties.type)
    source = Parts.of(batch.schema).properties
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns |= _sparse(batch, source, selected_columns, shape=shape)
    columns["properties"] = _joined(
        batch, source, selected_columns.properties, shape=shape, selected=selected
    )
    columns["more"] = pa.array(remaining, pa.binary())
    order = [*(n for n in batch.schema.names if n not in BODY), *(n for n in BODY if n in columns)]
    fields_by_name = {field.name: field for field in batch.schema}
    fields = [
        fields_by_name[name].with_type(columns[name].type)
        if name in fields_by_name
        else pa.field(name, columns[name].type)
        for name in order
    ]
    return pa.RecordBatch.from_arrays([columns[name] for name in order], schema=pa.schema(fields))


def _remaining_cell(cell: Any, selected: dict[str, Any], unplaced: bytes | None) -> bytes | None:
    """Return the content of ``more`` after a row's properties were moved into columns: those that
    were not selected, and those that no column can hold."""
    other_properties = {name: value for name, value in (cell or {}).items() if name not in selected}
    return overflow.extended(unplaced, other_properties) if other_properties else unplaced


def _sparse(
    batch: pa.RecordBatch, source: StructShape, selected_columns: Any, shape: StructShape
) -> dict[str, pa.Array]:
    """Return the columns ``sparse`` and ``nulls`` with which all rows are sparse: a null in a
    column means an absent key, and ``nulls`` has the paths of explicit nulls.

    ``batch`` with its columns ``source`` has the explicit nulls of properties that were columns
    before, ``selected_columns`` with their columns ``shape`` those of properties that were moved
    out of ``more``; a row may have both.
    """
    count = batch.num_rows
    columns = {"sparse": pa.array(np.ones(count, dtype=np.bool_))}
    if source.slots:
        columns = sparse_columns(batch, source)
    nulls = columns.get("nulls")
    if nulls is None and "nulls" in batch.schema.names:
        nulls = batch.column("nulls")
    stored_paths = [list(paths or ()) for paths in (nulls.to_pylist() if nulls is not None else [])]
    paths = stored_paths or [[] for _ in range(count)]
    new_nulls = (
        selected_columns.nulls.to_pylist() if selected_columns.nulls is not None else [None] * count
    )
    dense = np.ones(count, dtype=np.bool_)
    if selected_columns.sparse is not None:
        dense = ~np.asarray(selected_columns.sparse.to_numpy(zero_copy_only=False), dtype=np.bool_)
    explicit = explicit_nulls(selected_columns.properties, shape, dense)
    explicit_paths = (
        [None] * count if explicit is None else explicit.column(None, count).to_pylist()
    )
    for row in range(count):
        paths[row] += [*(new_nulls[row] or ()), *(explicit_paths[row] or ())]
    if any(paths):
        columns["nulls"] = pa.array(
            [row_paths or None for row_paths in paths], pa.list_(pa.string())
        )
    return columns


def _joined(
    batch: pa.RecordBatch,
    source: StructShape,
    struct: pa.StructArray,
    shape: StructShape,
    selected: Sequence[dict[str, Any]],
) -> pa.StructArray:
    """Return one struct with the fields of ``source``, the columns of the batch, and of ``shape``,
    the fields of ``struct``. A row takes a property from ``struct`` if the property is in its item
    of ``selected``, which has the properties that were in ``more``; otherwise from the batch."""
    united = grown(source, shape.slots, UNLIMITED)
    count = batch.num_rows
    old = batch.column("properties") if source.slots else None
    arrays = []
    for slot in united.slots:
        parts = [
            _child(old, source, slot, united=united, count=count),
            _child(struct, shape, slot, united=united, count=count),
        ]
        from_more = np.fromiter(
            (slot.logical in row_properties for row_properties in selected), np.bool_, count
        )
        # Index ``count`` + row selects the value from ``more``, index row the value of the old
        # column.
        source_rows = np.arange(count) + np.where(from_more, count, 0)
        arrays.append(pa.concat_arrays(parts).take(pa.array(source_rows)))
    return pa.StructArray.from_arrays(arrays, fields=[arrow_field(slot) for slot in united.slots])


def _child(
    struct: Any, shape: StructShape, slot: Slot, united: StructShape, count: int
) -> pa.Array:
    """Return the field of ``struct`` that belongs in ``slot``, or nulls if it has none."""
    for index, source in enumerate(shape.slots) if struct is not None else ():
        place = place_of(source, united)
        if place is not None and place.name == slot.name:
            return fitted(field_of(struct, index), source.shape, slot.shape)
    return pa.nulls(count, arrow_type(slot.shape))


def in_columns(batch: pa.RecordBatch, channel: ChannelSchema) -> pa.RecordBatch:
    """Return stored events in the columns of their channel.

    Like :meth:`ChannelSchema.conform`, but properties of the channel that a file keeps in ``more``
    are also moved into their columns. A property of which a value would need another column stays
    there.
    """
    rows = rows_with_more(batch)
    channel = channel.grown(batch.schema)
    if not len(rows):
        return channel.conform(batch)
    rows_without_more = np.setdiff1d(np.arange(batch.num_rows), rows)
    # Only rows with ``more`` take the slow path; the last line restores the order.
    with_more = batch.take(pa.array(rows))
    slots = channel.properties.slots
    names = {slot.logical for slot in slots}
    moved = lifted(with_more, names)
    new_slots = set(channel.grown(moved.schema).properties.slots).difference(slots)
    if new_slots:
        moved = lifted(with_more, names.difference(slot.logical for slot in new_slots))
    parts = [batch.take(pa.array(rows_without_more)), moved]
    table = pa.concat_batches([channel.conform(part) for part in parts])
    return table.take(pa.array(np.argsort(np.concatenate([rows_without_more, rows]))))


# --- flat tables --------------------------------------------------------------------------


OnTypedColumns = Callable[[Sequence[str]], None]
"""Called with the names of properties whose numbers are shown in typed columns."""


def flat_table(
    batches: Sequence[pa.RecordBatch],
    channel: ChannelSchema,
    columns: Sequence[str] | None = None,
    *,
    on_typed: OnTypedColumns | None = None,
) -> pa.Table:
    """Return stored events as a flat table: ``event_id, published, tag, data``, then each property
    of the channel. ``columns`` selects columns by name.

    Integers and floats of one property share a column (SEM E10). If no column can hold both
    exactly, the table has their typed columns, and ``on_typed`` is called with the names of the
    properties; without it, Python warns.

    Columns without a value in a batch share one array of nulls, and columns with few values are
    built from slices, so a name used by one event costs the other rows no memory.

    Raises ``InvalidArgument`` for an unknown column.
    """
    shape = channel.properties
    parts = [_Part(batch, shape) for batch in batches]
    flat = _FlatColumns(parts, shape)
    names = flat.names if columns is None else columns
    unknown = [name for name in names if not flat.has(name)]
    if unknown:
        raise InvalidArgument(
            f"unknown column {', '.join(unknown)}; the table has {', '.join(flat.names)}"
        )
    pairs = [pair for name in names for pair in flat.of(name)]
    table = pa.Table.from_arrays(
        [pa.chunked_array(chunks, field.type) for field, chunks in pairs],
        schema=pa.schema([field for field, _ in pairs]),
    )
    if flat.split_names:
        (on_typed or _warn)(flat.split_names)
    return table


def table_of(
    batches: Sequence[pa.RecordBatch], *, on_typed: OnTypedColumns | None = None
) -> pa.Table:
    """Return stored events as a flat table with a column for each property that occurs in them."""
    schema = ChannelSchema.empty()
    for batch in batches:
        schema = schema.grown(batch.schema)
        rows = rows_with_more(batch)
        if len(rows):
            schema = schema.grown(lifted(batch.take(pa.array(rows))).schema)
    return flat_table(batches, schema, on_typed=on_typed)


def typed_note(names: Sequence[str]) -> str:
    """Return the warning about properties whose numbers are shown in typed columns."""
    return (
        f"{', '.join(names)}: some integers are beyond 2**53 and have no exact double, so integers "
        f"and floats are in separate columns, such as {names[0]}::int and {names[0]}::float"
    )


def _warn(names: Sequence[str]) -> None:
    warnings.warn(typed_note(names), stacklevel=4)


_Chunks = tuple[pa.Field, list[pa.Array]]


class _FlatColumns:
    """The columns of a flat table, each built when it is requested."""

    def __init__(self, parts: Sequence[_Part], shape: StructShape) -> None:
        self._parts = parts
        self._shape = shape
        self._shown = {flat_name(column.name): column for column in shown_columns(shape)}
        self._stored = typed_columns(shape)
        self.names = [*FLAT, *self._shown]
        self.split_names: list[str] = []
        """Names of the properties that got a column for integers and one for floats, because their
        numbers have no exact common type."""

    def has(self, name: str) -> bool:
        return name in FLAT or name in self._shown or name in self._stored

    def of(self, name: str) -> list[_Chunks]:
        """Return a column, or the typed columns that replace it if its numbers have no exact common
        type. Each is a field with the arrays of all batches."""
        if name in FLAT:
            field = flat_field(name)
            return [(field, [part.standard_column(name, field) for part in self._parts])]
        column = self._shown.get(name)
        if column is None:
            return [self._as_stored(name, self._stored[name])]
        if not column.is_joined:
            field = column.field.with_name(name)
            slot = self._shape.slots[column.sources[0]]
            return [(field, [chunk for part in self._parts for chunk in part.property(slot)])]
        try:
            return [(column.field.with_name(name), [self._joined(p, column) for p in self._parts])]
        except NotExact:
            self.split_names.append(column.logical)
        stored = {index: typed for typed, index in self._stored.items()}
        return [self._as_stored(stored.get(index, name), index) for index in column.sources]

    def _joined(self, part: _Part, column: ShownColumn) -> pa.Array:
        """Return the column of a property in one batch, computed from the property's fields. Raises
        :class:`.NotExact`."""
        slots = [self._shape.slots[index] for index in column.sources]
        arrays = [pa.concat_arrays(part.property(slot)) for slot in slots]
        return column.compute(arrays, [slot.shape for slot in slots])

    def _as_stored(self, name: str, index: int) -> _Chunks:
        """Return the field at ``index`` as a typed column with the name ``name``, and its
        chunks."""
        slot = self._shape.slots[index]
        chunks = [chunk for part in self._parts for chunk in part.property(slot)]
        return typed_field(name, slot), chunks


class _Part:
    """A batch that becomes a part of a flat table: its columns, and the properties of ``more`` as
    columns of the rows that have them."""

    def __init__(self, batch: pa.RecordBatch, shape: StructShape) -> None:
        self._batch = batch
        self._channel_shape = shape
        self._rows = rows_with_more(batch)
        self._source, self._struct = _struct_of(batch)
        self._lifted, self._lifted_struct = NO_SLOTS, None
        self._covered: list[frozenset[str]] = []
        if len(self._rows):
            rows_with_properties = batch.take(pa.array(self._rows))
            self._covered = [
                frozenset(overflow.nodes(c))
                for c in rows_with_properties.column("more").to_pylist()
            ]
            names = [slot.logical for slot in shape.slots]
            self._lifted, self._lifted_struct = _struct_of(lifted(rows_with_properties, names))
        self._nulls: dict[str, pa.Array] = {}

    def standard_column(self, name: str, field: pa.Field) -> pa.Array:
        """Return the id, publish time, tag or data of each row."""
        index = self._batch.schema.get_field_index(name)
        if index >= 0:
            return self._batch.column(index)
        if name == "data":
            return pa.repeat(pa.scalar(b"", pa.binary()), self._batch.num_rows)
        return self._null(field.type)

    def property(self, slot: Slot) -> list[pa.Array]:
        """Return the chunks of one property's column, in the order of the rows."""
        column = self._column(self._struct, self._source, slot)
        lifted_column = self._column(self._lifted_struct, self._lifted, slot)
        if lifted_column is None or not any(slot.logical in names for names in self._covered):
            return [self._null(arrow_type(slot.shape)) if column is None else column]
        count = self._batch.num_rows
        present = np.flatnonzero(lifted_column.is_valid().to_numpy(zero_copy_only=False))
        if column is None and SCATTERED * len(present) < count:
            return self._pieces(lifted_column, present, slot)
        if column is None:
            column = self._null(arrow_type(slot.shape))
        # Row numbers from `count` on select lifted values, which take precedence over the values of
        # the column.
        source_rows = np.arange(count)
        covered = np.fromiter(
            (slot.logical in names_of_row for names_of_row in self._covered), np.bool_
        )
        source_rows[self._rows[covered]] = count + np.flatnonzero(covered)
        return [pa.concat_arrays([column, lifted_column]).take(pa.array(source_rows))]

    def _column(self, struct: Any, shape: StructShape, slot: Slot) -> Any:
        """Return the field of ``struct`` that belongs in ``slot``; None if it has none."""
        for index, source in enumerate(shape.slots):
            place = place_of(source, self._channel_shape)
            if place is not None and place.name == slot.name:
                return fitted(field_of(struct, index), source.shape, slot.shape)
        return None

    def _pieces(self, inner: Any, present: Indices, slot: Slot) -> list[pa.Array]:
        """Return the column as slices: each lifted value, and the shared nulls between them."""
        kind, slices, next_row = arrow_type(slot.shape), [], 0
        for index in present.tolist():
            row = int(self._rows[index])
            slices += [self._null(kind).slice(0, row - next_row), inner.slice(index, 1)]
            next_row = row + 1
        slices.append(self._null(kind).slice(0, self._batch.num_rows - next_row))
        return [chunk for chunk in slices if len(chunk)]

    def _null(self, kind: pa.DataType) -> pa.Array:
        """Return an array of nulls, one per row, shared by all columns of this type."""
        nulls = self._nulls.get(str(kind))
        if nulls is None:
            nulls = self._nulls[str(kind)] = pa.nulls(self._batch.num_rows, kind)
        return nulls


def _struct_of(batch: pa.RecordBatch) -> tuple[StructShape, Any]:
    """Return the shape and the struct of the properties; an empty shape and None without one."""
    index = batch.schema.get_field_index("properties")
    if index < 0:
        return NO_SLOTS, None
    return struct_shape(batch.schema.field(index).type), batch.column(index)


def until_time(batch: pa.RecordBatch, moment: datetime) -> pa.RecordBatch:
    """Return the events of ``batch`` that were published at ``moment`` or before."""
    return batch.filter(pc.less_equal(batch.column("published"), pa.scalar(moment)))
