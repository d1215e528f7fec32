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
SCATTERED: Final = 64
"""A column with values in fewer than one of this many rows is built from pieces."""

Indices = np.ndarray[Any, np.dtype[np.int64]]


def rows_with_more(batch: pa.RecordBatch) -> Indices:
    """The rows that have properties in ``more``."""
    at = batch.schema.get_field_index("more")
    if at < 0 or batch.column(at).null_count == batch.num_rows:
        return np.empty(0, dtype=np.int64)
    valid = batch.column(at).is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(valid)


def lifted(batch: pa.RecordBatch, names: Iterable[str] | None = None) -> pa.RecordBatch:
    """The events of ``batch`` with properties moved from ``more`` into columns.

    ``names`` are the properties to move, None for all. Values that no column can hold stay in
    ``more``. This is a Python loop over the rows, so the cost grows with their number.
    """
    if not len(rows_with_more(batch)):
        return batch
    wanted = None if names is None else frozenset(names)
    cells = [cell and overflow.typed(cell) for cell in batch.column("more").to_pylist()]
    chosen = [
        {name: value for name, value in (cell or {}).items() if wanted is None or name in wanted}
        for cell in cells
    ]
    found = property_columns(chosen)
    if found.properties is None:
        return batch
    rest = found.more.to_pylist() if found.more is not None else [None] * len(cells)
    left = [_left(cell, own, still) for cell, own, still in zip(cells, chosen, rest, strict=True)]
    for own, cell in zip(chosen, rest, strict=True):
        for name in overflow.nodes(cell) if cell else ():
            del own[name]
    shape = struct_shape(found.properties.type)
    source = Parts.of(batch.schema).properties
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns |= _sparse(batch, source, found, shape=shape)
    columns["properties"] = _joined(batch, source, found.properties, shape=shape, chosen=chosen)
    columns["more"] = pa.array(left, pa.binary())
    order = [*(n for n in batch.schema.names if n not in BODY), *(n for n in BODY if n in columns)]
    known = {field.name: field for field in batch.schema}
    fields = [
        known[name].with_type(columns[name].type)
        if name in known
        else pa.field(name, columns[name].type)
        for name in order
    ]
    return pa.RecordBatch.from_arrays([columns[name] for name in order], schema=pa.schema(fields))


def _left(cell: Any, chosen: dict[str, Any], still: bytes | None) -> bytes | None:
    kept = {name: value for name, value in (cell or {}).items() if name not in chosen}
    return overflow.extended(still, kept) if kept else still


def _sparse(
    batch: pa.RecordBatch, source: StructShape, found: Any, shape: StructShape
) -> dict[str, pa.Array]:
    """The columns ``sparse`` and ``nulls`` that make all rows sparse."""
    count = batch.num_rows
    columns = {"sparse": pa.array(np.ones(count, dtype=np.bool_))}
    if source.slots:
        columns = sparse_columns(batch, source)
    listed = columns.get("nulls")
    if listed is None and "nulls" in batch.schema.names:
        listed = batch.column("nulls")
    mine = [list(paths or ()) for paths in (listed.to_pylist() if listed is not None else [])]
    paths = mine or [[] for _ in range(count)]
    told = found.nulls.to_pylist() if found.nulls is not None else [None] * count
    dense = np.ones(count, dtype=np.bool_)
    if found.sparse is not None:
        dense = ~np.asarray(found.sparse.to_numpy(zero_copy_only=False), dtype=np.bool_)
    explicit = explicit_nulls(found.properties, shape, dense)
    for row in range(count):
        paths[row] += [*(told[row] or ()), *explicit.get(row, ())]
    if any(paths):
        columns["nulls"] = pa.array([own or None for own in paths], pa.list_(pa.string()))
    return columns


def _joined(
    batch: pa.RecordBatch,
    source: StructShape,
    struct: pa.StructArray,
    shape: StructShape,
    chosen: Sequence[dict[str, Any]],
) -> pa.StructArray:
    """One struct with the fields of both. Where a row has a property in both, ``more`` wins."""
    whole = grown(source, shape.slots, UNLIMITED)
    count = batch.num_rows
    old = batch.column("properties") if source.slots else None
    arrays = []
    for slot in whole.slots:
        parts = [
            _child(old, source, slot, whole=whole, count=count),
            _child(struct, shape, slot, whole=whole, count=count),
        ]
        new = np.fromiter((slot.logical in own for own in chosen), np.bool_, count)
        at = np.arange(count) + np.where(new, count, 0)
        arrays.append(pa.concat_arrays(parts).take(pa.array(at)))
    return pa.StructArray.from_arrays(arrays, fields=[arrow_field(slot) for slot in whole.slots])


def _child(struct: Any, shape: StructShape, slot: Slot, whole: StructShape, count: int) -> pa.Array:
    for index, source in enumerate(shape.slots) if struct is not None else ():
        place = place_of(source, whole)
        if place is not None and place.name == slot.name:
            return fitted(field_of(struct, index), source.shape, slot.shape)
    return pa.nulls(count, arrow_type(slot.shape))


def in_columns(batch: pa.RecordBatch, channel: ChannelSchema) -> pa.RecordBatch:
    """Stored events in the columns of their channel.

    Like :meth:`ChannelSchema.conform`, but properties of the channel that a file keeps in
    ``more`` are also moved into their columns.
    """
    rows = rows_with_more(batch)
    if not len(rows):
        return channel.grown(batch.schema).conform(batch)
    others = np.setdiff1d(np.arange(batch.num_rows), rows)
    names = [slot.logical for slot in channel.properties.slots]
    parts = [batch.take(pa.array(others)), lifted(batch.take(pa.array(rows)), names)]
    for part in parts:
        channel = channel.grown(part.schema)
    whole = pa.concat_batches([channel.conform(part) for part in parts])
    return whole.take(pa.array(np.argsort(np.concatenate([others, rows]))))


# --- flat tables --------------------------------------------------------------------------


Told = Callable[[Sequence[str]], None]
"""What is done about properties whose numbers are shown in typed columns, by their names."""


def flat_table(
    batches: Sequence[pa.RecordBatch],
    channel: ChannelSchema,
    columns: Sequence[str] | None = None,
    *,
    told: Told | None = None,
) -> pa.Table:
    """Stored events as a flat table: ``event_id, published, tag, data``, then each property of
    the channel; ``columns`` chooses among them.

    Numbers of one property are one column (SEM E10). Where they cannot be, the table has their
    typed columns, and ``told`` is called with the properties; without it, Python warns.

    Columns without a value in a batch share one array of nulls, and columns with few values are
    built from pieces, so a name used by one event costs the other rows no memory.

    Raises ``InvalidArgument`` for a column that is not there.
    """
    shape = channel.properties
    parts = [_Part(batch, shape) for batch in batches]
    found = _FlatColumns(parts, shape)
    names = found.names if columns is None else columns
    unknown = [name for name in names if not found.has(name)]
    if unknown:
        raise InvalidArgument(f"no column {', '.join(unknown)}; there are {', '.join(found.names)}")
    pairs = [pair for name in names for pair in found.of(name)]
    table = pa.Table.from_arrays(
        [pa.chunked_array(chunks, field.type) for field, chunks in pairs],
        schema=pa.schema([field for field, _ in pairs]),
    )
    if found.typed:
        (told or _warn)(found.typed)
    return table


def table_of(batches: Sequence[pa.RecordBatch], *, told: Told | None = None) -> pa.Table:
    """Stored events as a flat table with a column for each property that occurs in them."""
    schema = ChannelSchema.empty()
    for batch in batches:
        schema = schema.grown(batch.schema)
        rows = rows_with_more(batch)
        if len(rows):
            schema = schema.grown(lifted(batch.take(pa.array(rows))).schema)
    return flat_table(batches, schema, told=told)


def typed_note(names: Sequence[str]) -> str:
    """The sentence about properties whose numbers are shown in typed columns."""
    return (
        f"{', '.join(names)}: some integers are beyond 2**53 and have no exact double, so integers "
        f"and floats are in columns of their own, such as {names[0]}::int and {names[0]}::float"
    )


def _warn(names: Sequence[str]) -> None:
    warnings.warn(typed_note(names), stacklevel=4)


_Chunks = tuple[pa.Field, list[pa.Array]]


class _FlatColumns:
    """The columns of a flat table, each made when it is asked for."""

    def __init__(self, parts: Sequence[_Part], shape: StructShape) -> None:
        self._parts = parts
        self._shape = shape
        self._shown = {flat_name(column.name): column for column in shown_columns(shape)}
        self._stored = typed_columns(shape)
        self.names = [*FLAT, *self._shown]
        self.typed: list[str] = []
        """Properties whose numbers are not in one column."""

    def has(self, name: str) -> bool:
        return name in FLAT or name in self._shown or name in self._stored

    def of(self, name: str) -> list[_Chunks]:
        """The column, or the typed ones in its place."""
        if name in FLAT:
            field = flat_field(name)
            return [(field, [part.own(name, field) for part in self._parts])]
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
            self.typed.append(column.logical)
        stored = {at: typed for typed, at in self._stored.items()}
        return [self._as_stored(stored.get(at, name), at) for at in column.sources]

    def _joined(self, part: _Part, column: ShownColumn) -> pa.Array:
        slots = [self._shape.slots[index] for index in column.sources]
        arrays = [pa.concat_arrays(part.property(slot)) for slot in slots]
        return column.of(arrays, [slot.shape for slot in slots])

    def _as_stored(self, name: str, index: int) -> _Chunks:
        slot = self._shape.slots[index]
        chunks = [chunk for part in self._parts for chunk in part.property(slot)]
        return typed_field(name, slot), chunks


class _Part:
    """One batch that is being turned into a part of a flat table."""

    def __init__(self, batch: pa.RecordBatch, shape: StructShape) -> None:
        self._batch = batch
        self._whole = shape
        self._rows = rows_with_more(batch)
        self._source, self._struct = _struct_of(batch)
        self._lifted, self._lifted_struct = NO_SLOTS, None
        self._covered: list[frozenset[str]] = []
        if len(self._rows):
            taken = batch.take(pa.array(self._rows))
            self._covered = [frozenset(overflow.nodes(c)) for c in taken.column("more").to_pylist()]
            known = [slot.logical for slot in shape.slots]
            self._lifted, self._lifted_struct = _struct_of(lifted(taken, known))
        self._nulls: dict[str, pa.Array] = {}

    def own(self, name: str, field: pa.Field) -> pa.Array:
        at = self._batch.schema.get_field_index(name)
        if at >= 0:
            return self._batch.column(at)
        if name == "data":
            return pa.repeat(pa.scalar(b"", pa.binary()), self._batch.num_rows)
        return self._null(field.type)

    def property(self, slot: Slot) -> list[pa.Array]:
        """The chunks of one property's column, in the order of the rows."""
        child = self._column(self._struct, self._source, slot)
        inner = self._column(self._lifted_struct, self._lifted, slot)
        if inner is None or not any(slot.logical in names for names in self._covered):
            return [self._null(arrow_type(slot.shape)) if child is None else child]
        count = self._batch.num_rows
        present = np.flatnonzero(inner.is_valid().to_numpy(zero_copy_only=False))
        if child is None and SCATTERED * len(present) < count:
            return self._pieces(inner, present, slot)
        if child is None:
            child = self._null(arrow_type(slot.shape))
        at = np.arange(count)
        covered = np.fromiter((slot.logical in own for own in self._covered), np.bool_)
        at[self._rows[covered]] = count + np.flatnonzero(covered)
        return [pa.concat_arrays([child, inner]).take(pa.array(at))]

    def _column(self, struct: Any, shape: StructShape, slot: Slot) -> Any:
        for index, source in enumerate(shape.slots):
            place = place_of(source, self._whole)
            if place is not None and place.name == slot.name:
                return fitted(field_of(struct, index), source.shape, slot.shape)
        return None

    def _pieces(self, inner: Any, present: Indices, slot: Slot) -> list[pa.Array]:
        kind, found, at = arrow_type(slot.shape), [], 0
        for place in present.tolist():
            row = int(self._rows[place])
            found += [self._null(kind).slice(0, row - at), inner.slice(place, 1)]
            at = row + 1
        found.append(self._null(kind).slice(0, self._batch.num_rows - at))
        return [piece for piece in found if len(piece)]

    def _null(self, kind: pa.DataType) -> pa.Array:
        """An array of nulls, one per row, shared by all columns of this type."""
        found = self._nulls.get(str(kind))
        if found is None:
            found = self._nulls[str(kind)] = pa.nulls(self._batch.num_rows, kind)
        return found


def _struct_of(batch: pa.RecordBatch) -> tuple[StructShape, Any]:
    at = batch.schema.get_field_index("properties")
    if at < 0:
        return NO_SLOTS, None
    return struct_shape(batch.schema.field(at).type), batch.column(at)


def until_time(batch: pa.RecordBatch, moment: datetime) -> pa.RecordBatch:
    """The events of ``batch`` that were published at ``moment`` or before."""
    return batch.filter(pc.less_equal(batch.column("published"), pa.scalar(moment)))
