"""Merges deltas into full events, by columns (SEM K2, K4).

Rows are sorted by key, each key in the order of publishing. The value of a property comes from the
newest row that sets it, so several deltas of one key in a batch cost no more than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.schema import sparse_columns
from penstock_core.columns.schema.shapes import NO_SLOTS, StructShape, struct_shape

Bools = npt.NDArray[np.bool_]

_INHERITED = ("tag", "headers", "priority")
"""Columns that a delta leaves unchanged if it does not set them.

TTL, origin and time of the merged event are always taken from the delta.
"""


class _SparseValues(NamedTuple):
    """Values of one property outside its column: explicit nulls in the column ``nulls``, or values
    in ``more``."""

    rows: Int64s
    """The row of each value, ascending."""
    values: npt.NDArray[Any]
    """Paths of explicit nulls, or values as nodes of ``more``."""

    def at_sources(self, sources: Int64s) -> tuple[Int64s, npt.NDArray[Any]]:
        """Return the positions in ``sources`` whose rows have a value outside the column, and the
        values."""
        # A row may have several values, and may be the source of several output rows.
        low = np.searchsorted(self.rows, sources, "left")
        counts = np.searchsorted(self.rows, sources, "right") - low
        places = np.repeat(np.arange(len(sources)), counts)
        offsets_in_row = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return places, self.values[np.repeat(low, counts) + offsets_in_row]


class _Order:
    """Rows sorted by key, with the starts of keys and full events in that order."""

    def __init__(self, slots: Int64s, full: Bools, wanted: Int64s) -> None:
        # A stable sort keeps the order of publishing within each key.
        self.order: Int64s = np.argsort(slots, kind="stable")
        ranked = slots[self.order]
        starts = np.ones(len(slots), dtype=np.bool_)
        starts[1:] = ranked[1:] != ranked[:-1]
        # Values are not inherited across these rows: the first of a key, and full events.
        self._ends = starts | full[self.order]
        place = np.empty(len(slots), dtype=np.int64)
        place[self.order] = self._places = np.arange(len(slots))
        self._wanted = place[wanted]

    def sources(self, sets: Bools | None) -> Int64s:
        """Return, for each output row, the row that its value comes from.

        This is the newest row of the same key, up to the output row, that sets the value; rows
        before the last full event of the key do not count. ``sets`` is the mask of rows that set
        the value; None if no delta does.
        """
        is_source = self._ends if sets is None else self._ends | sets[self.order]
        # Carry the position of each source forward to the rows that follow it.
        newest = np.maximum.accumulate(np.where(is_source, self._places, 0))
        rows: Int64s = self.order[newest[self._wanted]]
        return rows


def merge(rows: pa.RecordBatch, slots: Int64s, full: Bools, wanted: Int64s) -> pa.RecordBatch:
    """Return the rows ``wanted`` (ascending), each merged with earlier rows of the same slot.

    A row that is ``full`` replaces all earlier rows of its slot. The first row of a slot counts as
    a full event. ``rows`` must be :func:`normal`; the result is also normal, and has their schema.
    """
    if full.all():
        return rows if len(wanted) == rows.num_rows else rows.take(pa.array(wanted))
    order = _Order(slots, full, wanted)
    names = rows.schema.names
    columns = {name: rows.column(name) for name in names}
    output_rows = pa.array(wanted)
    merged = {
        name: column.take(output_rows) for name, column in columns.items() if name not in _INHERITED
    }
    for name in (*_INHERITED, "data"):
        if name in names:
            merged[name] = columns[name].take(
                pa.array(order.sources(_rows_setting_column(columns[name])))
            )
    if "sparse" in names:
        merged |= _merged_properties(rows, order, len(wanted))
    return pa.RecordBatch.from_arrays([merged[name] for name in names], schema=rows.schema)


def normal(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the events of ``batch``, with all rows sparse if the schema has sparse rows."""
    names = batch.schema.names
    if "sparse" not in names:
        return batch
    flags = batch.column("sparse")
    if not flags.null_count and flags.true_count == len(flags):
        return batch
    shape = _shape(batch)
    columns = sparse_columns(batch, shape) if shape.slots else {}
    columns.setdefault("sparse", pa.array(np.ones(batch.num_rows, dtype=np.bool_)))
    arrays = [columns.get(name, batch.column(name)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _shape(batch: pa.RecordBatch) -> StructShape:
    index = batch.schema.get_field_index("properties")
    return struct_shape(batch.schema.field(index).type) if index >= 0 else NO_SLOTS


def _rows_setting_column(column: pa.Array) -> Bools | None:
    """Return a mask of the rows that set a column other than a property; None if no row does."""
    # Data is never null: a delta without data has empty bytes.
    if pa.types.is_binary(column.type):
        return _bools(pc.greater(pc.binary_length(column), 0).fill_null(fill_value=False))
    return None if column.null_count == len(column) else _bools(column.is_valid())


def _bools(mask: pa.Array) -> Bools:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _merged_properties(rows: pa.RecordBatch, order: _Order, count: int) -> dict[str, pa.Array]:
    """Return the columns that hold the properties of the merged rows."""
    names = rows.schema.names
    struct = rows.column("properties") if "properties" in names else None
    children = struct.flatten() if struct is not None else []
    nulls = _nulls(rows.column("nulls")) if "nulls" in names else {}
    in_more = _values_in_more(rows.column("more")) if "more" in names else {}
    by_name: dict[str, list[int]] = {}
    for index, slot in enumerate(_shape(rows).slots):
        by_name.setdefault(slot.logical, []).append(index)
    selected_children: list[pa.Array | None] = [None] * len(children)
    unset_sources: pa.Array | None = None
    kept_nulls: list[tuple[Int64s, npt.NDArray[Any]]] = []
    kept_more: list[tuple[str, Int64s, npt.NDArray[Any]]] = []
    for logical in dict.fromkeys((*by_name, *nulls, *in_more)):
        columns = [children[index] for index in by_name.get(logical, ())]
        rows_outside = [
            outside.rows for outside in (nulls.get(logical), in_more.get(logical)) if outside
        ]
        sets = _rows_setting(columns, rows_outside, rows.num_rows)
        sources = order.sources(sets)
        if sets is None:
            # All properties that no row sets have the same sources, so these are converted once.
            unset_sources = unset_sources if unset_sources is not None else pa.array(sources)
        selected = unset_sources if sets is None else pa.array(sources)
        for index in by_name.get(logical, ()):
            selected_children[index] = children[index].take(selected)
        if logical in nulls:
            kept_nulls.append(nulls[logical].at_sources(sources))
        if logical in in_more:
            kept_more.append((logical, *in_more[logical].at_sources(sources)))
    merged = {"sparse": pa.array(np.ones(count, dtype=np.bool_))}
    if struct is not None:
        merged["properties"] = pa.StructArray.from_arrays(
            selected_children, fields=list(struct.type)
        )
    if "nulls" in names:
        merged["nulls"] = _listed(kept_nulls, count)
    if "more" in names:
        merged["more"] = _encoded(kept_more, count)
    return merged


def _rows_setting(
    columns: Iterable[pa.Array], rows_outside: Iterable[Int64s], count: int
) -> Bools | None:
    """Return a mask of the rows that set a property, also to null; None if no row does."""
    mask: Bools | None = None
    for column in columns:
        if column.null_count == count:
            continue
        valid = _bools(column.is_valid())
        mask = valid if mask is None else mask | valid
    for rows in rows_outside:
        mask = np.zeros(count, dtype=np.bool_) if mask is None else mask.copy()
        mask[rows] = True
    return mask


def _nulls(column: pa.ListArray) -> dict[str, _SparseValues]:
    """Return the paths of explicit nulls, grouped by property."""
    if column.null_count == len(column):
        return {}
    encoded = column.flatten().dictionary_encode()
    paths = np.array(encoded.dictionary.to_pylist(), dtype=object)
    rows = np.asarray(pc.list_parent_indices(column).to_numpy(), dtype=np.int64)
    codes = np.asarray(encoded.indices.to_numpy(), dtype=np.int64)
    tops = [_top(path) for path in paths]
    by_property = {}
    for logical in dict.fromkeys(tops):
        is_property = np.array([top == logical for top in tops])[codes]
        by_property[logical] = _SparseValues(rows[is_property], paths[codes[is_property]])
    return by_property


def _top(path: str) -> str:
    """Return the top-level property of a path."""
    name = []
    letters = iter(path)
    for letter in letters:
        if letter in ".[":
            break
        name.append(next(letters) if letter == "\\" else letter)
    return "".join(name)


def _values_in_more(column: pa.BinaryArray) -> dict[str, _SparseValues]:
    """Return the values in the column ``more``, by property."""
    # A loop in Python is fast enough, because few events have values there.
    by_property: dict[str, tuple[list[int], list[Any]]] = {}
    for row in np.flatnonzero(_bools(column.is_valid())).tolist():
        for logical, value in overflow.nodes(column[row].as_py()).items():
            rows, values = by_property.setdefault(logical, ([], []))
            rows.append(row)
            values.append(value)
    return {
        logical: _SparseValues(np.array(rows, dtype=np.int64), _objects(values))
        for logical, (rows, values) in by_property.items()
    }


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    """Return an array of objects that keeps each list as a single value."""
    objects = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        objects[index] = value
    return objects


def _listed(null_paths: Iterable[tuple[Int64s, npt.NDArray[Any]]], count: int) -> pa.Array:
    """Return the column ``nulls`` of merged rows from positions and paths."""
    parts = [part for part in null_paths if len(part[0])]
    kind = pa.list_(pa.string())
    if not parts:
        return pa.nulls(count, kind)
    places = np.concatenate([part_places for part_places, _ in parts])
    paths = np.concatenate([part_values for _, part_values in parts])
    order = np.argsort(places, kind="stable")
    counts = np.bincount(places, minlength=count)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(paths[order], pa.string()), mask=pa.array(counts == 0)
    )


def _encoded(more_values: Iterable[tuple[str, Int64s, npt.NDArray[Any]]], count: int) -> pa.Array:
    """Return the column ``more`` of merged rows from properties, positions and values."""
    cells: dict[int, dict[str, Any]] = {}
    for logical, place, value in _values_of(more_values):
        cells.setdefault(place, {})[logical] = value
    encoded = [overflow.of_nodes(cells[row]) if row in cells else None for row in range(count)]
    return pa.array(encoded, pa.binary())


def _values_of(
    more_values: Iterable[tuple[str, Int64s, npt.NDArray[Any]]],
) -> Iterator[tuple[str, int, Any]]:
    """Yield the values one by one, each with its property and its position."""
    for logical, places, values in more_values:
        for position, value in zip(places.tolist(), values, strict=True):
            yield logical, position, value
