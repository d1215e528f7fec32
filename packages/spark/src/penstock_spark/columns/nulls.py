"""The column ``nulls``: the names of the columns that an event sets to null.

Spark has one kind of null, events have two: a property can be null or absent (SEM E2). For merging,
the difference counts: a null changes a property, an absent one leaves it as it was (SEM K2). The
column ``nulls`` tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.layout import key_path
from penstock_core.columns.schema.shapes import NO_SLOTS, StructShape, struct_shape

Bools = npt.NDArray[np.bool_]

NULLS: Final = "nulls"
"""Name of the column."""
NULLS_TYPE: Final = pa.list_(pa.string())


def nulls_of(batch: pa.RecordBatch, columns: Mapping[str, tuple[str, pa.Array]]) -> pa.Array:
    """The columns that each event of a stored batch sets to null; null if there are none.

    ``columns`` has the columns that are read: name to property and values. A property that came
    with another type, or with one that fits no column, sets its other columns to null.
    """
    says = _Says(batch)
    names, found = list(columns), []
    for code, name in enumerate(names):
        logical, values = columns[name]
        if values.null_count:
            rows = np.flatnonzero(_bools(values.is_null()) & says.of(logical))
            found.append((rows, np.full(len(rows), code, dtype=np.int32)))
    return _lists(names, found, batch.num_rows)


class _Says:
    """A mask of the events of a batch that set a property, to a value or to null."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        struct = batch.column("properties") if "properties" in names else None
        shape = NO_SLOTS if struct is None else _shape_of(struct)
        self._count = batch.num_rows
        self._values: dict[str, list[pa.Array]] = {}
        fields = () if struct is None else struct.flatten()
        for slot, values in zip(shape.slots, fields, strict=True):
            self._values.setdefault(slot.logical, []).append(values)
        self._dense = _dense(batch, struct)
        self._listed = _listed(batch)
        self._beside = _beside(batch)

    def of(self, logical: str) -> Bools:
        says = np.zeros(self._count, dtype=np.bool_)
        if logical in self._values:
            says |= self._dense
            for values in self._values[logical]:
                if values.null_count < self._count:
                    says |= _bools(values.is_valid())
        for rows in (self._listed.get(key_path("", logical)), self._beside.get(logical)):
            if rows is not None:
                says[rows] = True
        return says


def _shape_of(struct: pa.StructArray) -> StructShape:
    return struct_shape(struct.type)


def _dense(batch: pa.RecordBatch, struct: Any) -> Bools:
    """The events whose null properties are explicit ones."""
    if struct is None:
        return np.zeros(batch.num_rows, dtype=np.bool_)
    has_any = _bools(struct.is_valid())
    if "sparse" not in batch.schema.names:
        return has_any
    return has_any & ~_bools(batch.column("sparse").fill_null(fill_value=False))


def _listed(batch: pa.RecordBatch) -> dict[str, npt.NDArray[np.int64]]:
    """The events that list a path as null, by path."""
    if "nulls" not in batch.schema.names:
        return {}
    column = batch.column("nulls")
    if column.null_count == len(column):
        return {}
    encoded = column.flatten().dictionary_encode()
    rows = np.asarray(pc.list_parent_indices(column).to_numpy(), dtype=np.int64)
    codes = np.asarray(encoded.indices.to_numpy(), dtype=np.int64)
    paths: list[str] = encoded.dictionary.to_pylist()
    return {path: rows[codes == code] for code, path in enumerate(paths)}


def _beside(batch: pa.RecordBatch) -> dict[str, list[int]]:
    """By property: the events whose value fits no column. Row by row: few have any."""
    if "more" not in batch.schema.names:
        return {}
    column = batch.column("more")
    found: dict[str, list[int]] = {}
    for row in np.flatnonzero(_bools(column.is_valid())).tolist():
        for logical in overflow.nodes(column[row].as_py()):
            found.setdefault(logical, []).append(row)
    return found


def _lists(
    names: list[str],
    found: Iterable[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]],
    count: int,
) -> pa.Array:
    parts = [part for part in found if len(part[0])]
    if not parts:
        return pa.nulls(count, NULLS_TYPE)
    rows = np.concatenate([own for own, _ in parts])
    codes = np.concatenate([own for _, own in parts])
    counts = np.bincount(rows, minlength=count)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    texts = pa.array(names, pa.string()).take(pa.array(codes[np.argsort(rows, kind="stable")]))
    return pa.ListArray.from_arrays(pa.array(offsets), texts, mask=pa.array(counts == 0))


def _bools(mask: pa.Array) -> Bools:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)
