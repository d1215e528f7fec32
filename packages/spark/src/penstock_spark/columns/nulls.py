"""Computes the column ``nulls``: the names of the columns that an event sets to null.

Spark has one kind of null, but a property of an event can be null or absent (SEM E2). The
difference matters to merges: a null changes a property, while an absent property stays as it was
(SEM K2). The column ``nulls`` distinguishes the two.
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
from penstock_core.columns.schema.schema_fit import dense_rows
from penstock_core.columns.schema.shapes import NO_SLOTS, StructShape, struct_shape

Bools = npt.NDArray[np.bool_]

NULLS: Final = "nulls"
"""Name of the column."""
NULLS_TYPE: Final = pa.list_(pa.string())


def nulls_of(batch: pa.RecordBatch, columns: Mapping[str, tuple[str, pa.Array]]) -> pa.Array:
    """Return, for each event of a stored batch, the list of columns that the event sets to null;
    null if it sets none.

    ``columns`` has the property and the values of each column, by name. If a property has a value
    of another type, or one that fits no column, the event sets the property's other columns to
    null.
    """
    explicit = _ExplicitProperties(batch)
    names, rows_and_codes = list(columns), []
    for code, name in enumerate(names):
        logical, values = columns[name]
        if values.null_count:
            rows = np.flatnonzero(_as_mask(values.is_null()) & explicit.mask_of(logical))
            rows_and_codes.append((rows, np.full(len(rows), code, dtype=np.int32)))
    return _lists(names, rows_and_codes, batch.num_rows)


class _ExplicitProperties:
    """Finds the events of a batch that set a property, to a value or to null."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        struct = batch.column("properties") if "properties" in names else None
        shape = NO_SLOTS if struct is None else _shape_of(struct)
        self._count = batch.num_rows
        self._values: dict[str, list[pa.Array]] = {}
        fields = () if struct is None else struct.flatten()
        for slot, values in zip(shape.slots, fields, strict=True):
            self._values.setdefault(slot.logical, []).append(values)
        self._explicit_null_rows = _explicit_null_rows(batch, struct)
        self._listed_nulls = _listed_nulls(batch)
        self._overflow_rows = _overflowing(batch)

    def mask_of(self, logical: str) -> Bools:
        """Return a mask of the events that set the property ``logical``."""
        mask = np.zeros(self._count, dtype=np.bool_)
        if logical in self._values:
            mask |= self._explicit_null_rows
            for values in self._values[logical]:
                if values.null_count < self._count:
                    mask |= _as_mask(values.is_valid())
        for rows in (
            self._listed_nulls.get(key_path("", logical)),
            self._overflow_rows.get(logical),
        ):
            if rows is not None:
                mask[rows] = True
        return mask


def _shape_of(struct: pa.StructArray) -> StructShape:
    return struct_shape(struct.type)


def _explicit_null_rows(batch: pa.RecordBatch, struct: Any) -> Bools:
    """Return a mask of the events whose null properties are explicit nulls, and not absent."""
    if struct is None:
        return np.zeros(batch.num_rows, dtype=np.bool_)
    return _as_mask(struct.is_valid()) & dense_rows(batch)


def _listed_nulls(batch: pa.RecordBatch) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of the events that list a property as null, by path of the property."""
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


def _overflowing(batch: pa.RecordBatch) -> dict[str, list[int]]:
    """Return the rows of the events with a value that fits no column, by property. Few events have
    such values, so a loop over them is fast enough."""
    if "more" not in batch.schema.names:
        return {}
    column = batch.column("more")
    rows_by_property: dict[str, list[int]] = {}
    for row in np.flatnonzero(_as_mask(column.is_valid())).tolist():
        for logical in overflow.nodes(column[row].as_py()):
            rows_by_property.setdefault(logical, []).append(row)
    return rows_by_property


def _lists(
    names: list[str],
    rows_and_codes: Iterable[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]],
    count: int,
) -> pa.Array:
    """Return the column ``nulls`` for ``count`` events.

    Each pair in ``rows_and_codes`` has the events that set a column to null, and the index of the
    column in ``names``.
    """
    parts = [part for part in rows_and_codes if len(part[0])]
    if not parts:
        return pa.nulls(count, NULLS_TYPE)
    rows = np.concatenate([values for values, _ in parts])
    codes = np.concatenate([values for _, values in parts])
    # The stable sort below groups the names by row and keeps the order of columns within a row.
    counts = np.bincount(rows, minlength=count)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    texts = pa.array(names, pa.string()).take(pa.array(codes[np.argsort(rows, kind="stable")]))
    return pa.ListArray.from_arrays(pa.array(offsets), texts, mask=pa.array(counts == 0))


def _as_mask(mask: pa.Array) -> Bools:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)
