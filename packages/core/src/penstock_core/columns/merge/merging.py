"""Merges deltas into full events, by columns (SEM K2, K4).

Rows are sorted by key, each key in the order of publishing. The value of a property comes from
the newest row that sets it, so several deltas of one key in a batch cost no more than one.
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

_KEPT = ("tag", "headers", "priority")
"""Columns that a delta leaves unchanged if it does not set them.

TTL, origin and time of the merged event are always those of the delta.
"""


class _Said(NamedTuple):
    """Values of one property outside its column: listed nulls of sparse rows, or overflow."""

    rows: Int64s
    """The rows that have such a value, ascending."""
    values: npt.NDArray[Any]

    def of(self, sources: Int64s) -> tuple[Int64s, npt.NDArray[Any]]:
        """The positions in ``sources`` whose rows have such a value, and these values."""
        low = np.searchsorted(self.rows, sources, "left")
        counts = np.searchsorted(self.rows, sources, "right") - low
        places = np.repeat(np.arange(len(sources)), counts)
        within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return places, self.values[np.repeat(low, counts) + within]


class _Order:
    """Rows sorted by key, and where in that order each key and each full event starts."""

    def __init__(self, slots: Int64s, whole: Bools, wanted: Int64s) -> None:
        self.order: Int64s = np.argsort(slots, kind="stable")
        ranked = slots[self.order]
        starts = np.ones(len(slots), dtype=np.bool_)
        starts[1:] = ranked[1:] != ranked[:-1]
        self._ends = starts | whole[self.order]
        place = np.empty(len(slots), dtype=np.int64)
        place[self.order] = self._places = np.arange(len(slots))
        self._wanted = place[wanted]

    def sources(self, says: Bools | None) -> Int64s:
        """For each wanted row the row that its value comes from: the newest row of its key up to
        it that sets the value, but none before its last full event.

        ``says`` is the mask of rows that set the value; None if no delta does.
        """
        is_source = self._ends if says is None else self._ends | says[self.order]
        newest = np.maximum.accumulate(np.where(is_source, self._places, 0))
        found: Int64s = self.order[newest[self._wanted]]
        return found


def merge(rows: pa.RecordBatch, slots: Int64s, whole: Bools, wanted: Int64s) -> pa.RecordBatch:
    """The rows ``wanted`` (ascending), each merged with those before it of the same slot.

    A row that is ``whole`` replaces everything before it. The first row of a slot is taken as a
    full event. ``rows`` are :func:`normal`; the result is so too, and has their schema.
    """
    if whole.all():
        return rows if len(wanted) == rows.num_rows else rows.take(pa.array(wanted))
    order = _Order(slots, whole, wanted)
    names = rows.schema.names
    columns = {name: rows.column(name) for name in names}
    own = pa.array(wanted)
    merged = {name: column.take(own) for name, column in columns.items() if name not in _KEPT}
    for name in (*_KEPT, "data"):
        if name in names:
            merged[name] = columns[name].take(pa.array(order.sources(_given(columns[name]))))
    if "sparse" in names:
        merged |= _merged_properties(rows, order, len(wanted))
    return pa.RecordBatch.from_arrays([merged[name] for name in names], schema=rows.schema)


def normal(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events of ``batch``, with all rows sparse if the schema has sparse rows."""
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


def _given(column: pa.Array) -> Bools | None:
    """A mask of the rows that set a column which is not a property; None if no row does."""
    if pa.types.is_binary(column.type):
        return _bools(pc.greater(pc.binary_length(column), 0).fill_null(fill_value=False))
    return None if column.null_count == len(column) else _bools(column.is_valid())


def _bools(mask: pa.Array) -> Bools:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _merged_properties(rows: pa.RecordBatch, order: _Order, count: int) -> dict[str, pa.Array]:
    names = rows.schema.names
    struct = rows.column("properties") if "properties" in names else None
    children = struct.flatten() if struct is not None else []
    nulls = _nulls(rows.column("nulls")) if "nulls" in names else {}
    left_over = _overflow(rows.column("more")) if "more" in names else {}
    by_name: dict[str, list[int]] = {}
    for index, slot in enumerate(_shape(rows).slots):
        by_name.setdefault(slot.logical, []).append(index)
    taken: list[pa.Array | None] = [None] * len(children)
    unsaid: pa.Array | None = None
    kept_nulls: list[tuple[Int64s, npt.NDArray[Any]]] = []
    kept_more: list[tuple[str, Int64s, npt.NDArray[Any]]] = []
    for logical in dict.fromkeys((*by_name, *nulls, *left_over)):
        own = [children[index] for index in by_name.get(logical, ())]
        beside = [said.rows for said in (nulls.get(logical), left_over.get(logical)) if said]
        says = _says(own, beside, rows.num_rows)
        sources = order.sources(says)
        if says is None:
            unsaid = unsaid if unsaid is not None else pa.array(sources)
        picked = unsaid if says is None else pa.array(sources)
        for index in by_name.get(logical, ()):
            taken[index] = children[index].take(picked)
        if logical in nulls:
            kept_nulls.append(nulls[logical].of(sources))
        if logical in left_over:
            kept_more.append((logical, *left_over[logical].of(sources)))
    found = {"sparse": pa.array(np.ones(count, dtype=np.bool_))}
    if struct is not None:
        found["properties"] = pa.StructArray.from_arrays(taken, fields=list(struct.type))
    if "nulls" in names:
        found["nulls"] = _listed(kept_nulls, count)
    if "more" in names:
        found["more"] = _encoded(kept_more, count)
    return found


def _says(columns: Iterable[pa.Array], beside: Iterable[Int64s], count: int) -> Bools | None:
    """A mask of the rows that set a property, also to null; None if no row does."""
    found: Bools | None = None
    for column in columns:
        if column.null_count == count:
            continue
        valid = _bools(column.is_valid())
        found = valid if found is None else found | valid
    for rows in beside:
        found = np.zeros(count, dtype=np.bool_) if found is None else found.copy()
        found[rows] = True
    return found


def _nulls(column: pa.ListArray) -> dict[str, _Said]:
    """The paths of explicit nulls, grouped by property."""
    if column.null_count == len(column):
        return {}
    encoded = column.flatten().dictionary_encode()
    paths = np.array(encoded.dictionary.to_pylist(), dtype=object)
    rows = np.asarray(pc.list_parent_indices(column).to_numpy(), dtype=np.int64)
    codes = np.asarray(encoded.indices.to_numpy(), dtype=np.int64)
    tops = [_top(path) for path in paths]
    found = {}
    for logical in dict.fromkeys(tops):
        of_it = np.array([top == logical for top in tops])[codes]
        found[logical] = _Said(rows[of_it], paths[codes[of_it]])
    return found


def _top(path: str) -> str:
    """The top-level property of a path."""
    name = []
    rest = iter(path)
    for letter in rest:
        if letter in ".[":
            break
        name.append(next(rest) if letter == "\\" else letter)
    return "".join(name)


def _overflow(column: pa.BinaryArray) -> dict[str, _Said]:
    """Values in ``more``, grouped by property. A Python loop, because few events have any."""
    found: dict[str, tuple[list[int], list[Any]]] = {}
    for row in np.flatnonzero(_bools(column.is_valid())).tolist():
        for logical, value in overflow.nodes(column[row].as_py()).items():
            rows, values = found.setdefault(logical, ([], []))
            rows.append(row)
            values.append(value)
    return {
        logical: _Said(np.array(rows, dtype=np.int64), _objects(values))
        for logical, (rows, values) in found.items()
    }


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    """An array of objects in which lists stay single values."""
    found = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        found[index] = value
    return found


def _listed(kept: Iterable[tuple[Int64s, npt.NDArray[Any]]], count: int) -> pa.Array:
    parts = [part for part in kept if len(part[0])]
    kind = pa.list_(pa.string())
    if not parts:
        return pa.nulls(count, kind)
    places = np.concatenate([own for own, _ in parts])
    paths = np.concatenate([own for _, own in parts])
    order = np.argsort(places, kind="stable")
    counts = np.bincount(places, minlength=count)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(paths[order], pa.string()), mask=pa.array(counts == 0)
    )


def _encoded(kept: Iterable[tuple[str, Int64s, npt.NDArray[Any]]], count: int) -> pa.Array:
    cells: dict[int, dict[str, Any]] = {}
    for logical, place, value in _each(kept):
        cells.setdefault(place, {})[logical] = value
    encoded = [overflow.of_nodes(cells[row]) if row in cells else None for row in range(count)]
    return pa.array(encoded, pa.binary())


def _each(
    kept: Iterable[tuple[str, Int64s, npt.NDArray[Any]]],
) -> Iterator[tuple[str, int, Any]]:
    for logical, places, values in kept:
        for place, value in zip(places.tolist(), values, strict=True):
            yield logical, place, value
