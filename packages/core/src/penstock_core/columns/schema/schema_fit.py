"""Converts property columns from a narrow shape to a wider one, by columns, without loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.layout import key_path
from penstock_core.columns.schema.rows import Rows
from penstock_core.columns.schema.shapes import (
    NULL,
    ListShape,
    Shape,
    Slot,
    StructShape,
    arrow_type,
    fits,
)
from penstock_core.columns.schema.values import is_struct

Indices = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def place_of(source: Slot, target: StructShape) -> Slot | None:
    """Return the slot of ``target`` that can hold the values of ``source`` without loss, or
    None."""
    for slot in target.slots:
        if slot.logical == source.logical and fits(slot.shape, source.shape):
            return slot
    return None


def unplaced(source: StructShape, target: StructShape) -> list[Slot]:
    """Return the slots of ``source`` without a slot in ``target``; their values move to
    ``more``."""
    return [slot for slot in source.slots if place_of(slot, target) is None]


def lacks(source: Shape, target: Shape) -> bool:
    """Return True if ``target`` has a property, at any depth, that ``source`` does not have.

    A null of that property in a row from ``source`` means "absent", so such rows must become
    sparse.
    """
    if isinstance(source, ListShape) and isinstance(target, ListShape):
        return lacks(source.element, target.element)
    if not isinstance(source, StructShape) or not isinstance(target, StructShape):
        return False
    source_names = {slot.logical for slot in source.slots}
    if any(slot.logical not in source_names for slot in target.slots):
        return True
    pairs = ((slot, place_of(slot, target)) for slot in source.slots)
    return any(place is not None and lacks(slot.shape, place.shape) for slot, place in pairs)


def fitted(array: pa.Array, source: Shape, target: Shape) -> pa.Array:
    """Return ``array`` in the Arrow type of ``target``. Values of fields without a slot in
    ``target`` are left out."""
    kind = arrow_type(target)
    if array.type.equals(kind, check_metadata=True):
        return array
    if source == NULL:
        return pa.nulls(len(array), kind)
    if isinstance(source, StructShape) and isinstance(target, StructShape):
        return _fitted_struct(array, source, target, kind=kind)
    if isinstance(source, ListShape) and isinstance(target, ListShape):
        # `values` has all elements, also those outside a slice, so that the stored offsets still
        # fit.
        inner = fitted(array.values, source.element, target.element)
        buffers = array.buffers()[:2]
        return pa.Array.from_buffers(
            kind, len(array), buffers, array.null_count, array.offset, [inner]
        )
    return array.cast(kind)


def _fitted_struct(
    array: pa.StructArray, source: StructShape, target: StructShape, kind: pa.StructType
) -> pa.StructArray:
    """Return a struct in the type ``kind``; fields that ``source`` lacks are null."""
    children: dict[str, pa.Array] = {}
    for index, slot in enumerate(source.slots):
        place = place_of(slot, target)
        if place is not None:
            children[place.name] = fitted(array.field(index), slot.shape, place.shape)
    arrays = [
        children[slot.name] if slot.name in children else pa.nulls(len(array), field.type)
        for slot, field in zip(target.slots, kind, strict=True)
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)


def dense_rows(batch: pa.RecordBatch) -> Bools:
    """Return a mask of the events that are not sparse: their nulls are explicit nulls."""
    index = batch.schema.get_field_index("sparse")
    if index < 0:
        return np.ones(batch.num_rows, dtype=np.bool_)
    sparse = batch.column(index).fill_null(fill_value=False)
    dense: Bools = ~np.asarray(sparse.to_numpy(zero_copy_only=False), dtype=np.bool_)
    return dense


class NullPaths(NamedTuple):
    """The explicit nulls of some rows."""

    rows: Indices
    """The row of each null, ascending."""
    paths: pa.StringArray
    """The path of each null."""

    def column(self, stored: pa.Array | None, count: int) -> pa.ListArray:
        """Return the column ``nulls`` of ``count`` rows: the paths of rows with explicit nulls, and
        the ``stored`` paths of other rows."""
        counts = np.bincount(self.rows, minlength=count)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), self.paths)
        if stored is None:
            stored = pa.nulls(count, lists.type)
        rows = np.arange(count)
        # The first `count` candidates are the new paths, the others the stored ones.
        candidates = pa.concat_arrays([lists, stored.cast(lists.type)])
        return candidates.take(pa.array(np.where(counts > 0, rows, rows + count)))


def explicit_nulls(array: pa.StructArray, shape: StructShape, rows: Bools) -> NullPaths | None:
    """Return the paths of all nulls in the rows selected by the mask ``rows``, which must not be
    sparse; None if these rows do not have nulls.
    """
    if not rows.any():
        return None
    owners = np.where(rows & ~_is_null(array), np.arange(len(array)), -1)
    collector = _NullCollector()
    collector.collect(array, shape, owners, path="")
    return collector.paths()


def nulls_column(batch: pa.RecordBatch, shape: StructShape) -> pa.ListArray | None:
    """Return the column ``nulls`` of a batch with properties after all its rows have become sparse;
    None if no row that was not sparse has an explicit null, so that the column stays."""
    explicit = explicit_nulls(batch.column("properties"), shape, dense_rows(batch))
    if explicit is None:
        return None
    index = batch.schema.get_field_index("nulls")
    return explicit.column(None if index < 0 else batch.column(index), batch.num_rows)


def _is_null(array: pa.Array) -> Bools:
    if array.null_count == 0:
        return np.zeros(len(array), dtype=np.bool_)
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


Path = str | Callable[[int], str]
"""The path of all elements of an array, or a function that returns the path of an element."""


class _NullCollector:
    """Collects the paths of nulls.

    A path outside of lists is the same for all its rows, so it takes no work per row.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        """Distinct paths."""
        self._rows: list[Indices] = []
        """Rows of nulls."""
        self._codes: list[Indices] = []
        """Indexes in ``_texts`` of the paths of these nulls."""

    def paths(self) -> NullPaths | None:
        """Return the collected paths, by row; None without nulls."""
        if not self._rows:
            return None
        rows = np.concatenate(self._rows)
        order = np.argsort(rows, kind="stable")
        codes = np.concatenate(self._codes)[order]
        return NullPaths(rows[order], pa.array(self._texts, pa.string()).take(pa.array(codes)))

    def _add(self, rows: Indices, texts: Sequence[str], codes: Indices) -> None:
        self._rows.append(rows)
        # `codes` count from the first of `texts`.
        self._codes.append(codes + len(self._texts))
        self._texts += texts

    def collect(
        self, array: pa.StructArray, shape: StructShape, owners: Indices, path: Path
    ) -> None:
        """Add the paths of nulls in a struct.

        ``owners`` has the row of each element of the array, or -1 for elements to skip.
        """
        fields: dict[str, list[tuple[Shape, pa.Array]]] = {}
        for index, slot in enumerate(shape.slots):
            fields.setdefault(slot.logical, []).append((slot.shape, array.field(index)))
        for logical, typed in fields.items():
            # A property is null only if all its fields, one for each type, are null.
            is_null = owners >= 0
            for _, child in typed:
                is_null &= _is_null(child)
            elements = np.flatnonzero(is_null)
            if len(elements) and isinstance(path, str):
                codes = np.zeros(len(elements), dtype=np.int64)
                self._add(owners[elements], [key_path(path, logical)], codes)
            elif len(elements):
                texts = [
                    key_path(_path_of(path, element), logical) for element in elements.tolist()
                ]
                self._add(owners[elements], texts, np.arange(len(elements)))
            for inner, child in typed:
                if is_struct(inner):
                    self._descend(child, inner, owners, path=_below(path, logical))

    def _descend(self, array: pa.Array, shape: Shape, owners: Indices, path: Path) -> None:
        """Add the paths of nulls below a value; rows that are null themselves are skipped."""
        owners = np.where(_is_null(array), -1, owners)
        if isinstance(shape, StructShape):
            self.collect(array, shape, owners, path=path)
            return
        assert isinstance(shape, ListShape), "a struct lies below"
        offsets = np.asarray(array.offsets.to_numpy(), dtype=np.int64)
        # A null list may have elements. They are skipped, because its owner is -1.
        parents = np.repeat(np.arange(len(array)), np.diff(offsets))
        # The offsets of a slice point into the elements of the whole column.
        first, end = int(offsets[0]), int(offsets[-1])
        positions = np.arange(first, end) - offsets[parents]

        def element_path(element: int) -> str:
            return f"{_path_of(path, int(parents[element]))}[{positions[element]}]"

        values = array.values.slice(first, end - first)
        self._descend(values, shape.element, owners[parents], path=element_path)


def _path_of(path: Path, element: int) -> str:
    return path if isinstance(path, str) else path(element)


def _below(path: Path, logical: str) -> Path:
    """Return the path of a field inside the value at ``path``."""
    if isinstance(path, str):
        return key_path(path, logical)
    return lambda element: key_path(path(element), logical)


_WIDTH: Final[dict[str, type]] = {
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "float": np.float32,
}


def spilled(batch: pa.RecordBatch, source: StructShape, slots: list[Slot]) -> pa.BinaryArray:
    """Return the column ``more`` of a batch after ``slots`` of its properties moved there.

    The function has a loop in Python over the rows that have a value, or an explicit null, in one
    of the slots.
    """
    struct = batch.column("properties")
    columns = {slot.name: struct.field(source.slots.index(slot)) for slot in slots}
    leaving = {slot.name for slot in slots}
    staying = {slot.logical for slot in source.slots if slot.name not in leaving}
    index = batch.schema.get_field_index("more")
    cells = pa.nulls(batch.num_rows, pa.binary()) if index < 0 else batch.column(index)
    moves = np.zeros(batch.num_rows, dtype=np.bool_)
    for column in columns.values():
        moves |= ~_is_null(column)
    # An explicit null stays where its property keeps another column; otherwise it also moves.
    if any(slot.logical not in staying for slot in slots):
        moves |= dense_rows(batch)
        nulls_index = batch.schema.get_field_index("nulls")
        if nulls_index >= 0:
            moves |= ~_is_null(batch.column(nulls_index))
    if not moves.any():
        return cells
    rows = Rows(batch)
    moved = [
        overflow.extended(
            rows.value("more", row),
            typed_properties(rows.properties(row), row, slots, columns=columns, staying=staying),
        )
        for row in np.flatnonzero(moves).tolist()
    ]
    return pc.replace_with_mask(cells, pa.array(moves), pa.array(moved, pa.binary()))


def typed_properties(
    properties: dict[str, Any],
    row: int,
    slots: list[Slot],
    columns: dict[str, pa.Array],
    staying: set[str],
) -> dict[str, Any]:
    """Return the properties of a row that come from ``slots``, with numbers as wide as in the
    column.

    A null is included only if no column of the same property is ``staying``.
    """
    typed: dict[str, Any] = {}
    for slot in slots:
        if slot.logical not in properties:
            continue
        if columns[slot.name][row].is_valid:
            typed[slot.logical] = _typed(slot.shape, properties[slot.logical])
        elif slot.logical not in staying:
            typed.setdefault(slot.logical, None)
    return typed


def _typed(shape: Shape, value: Any) -> Any:
    """Return a value read from a column, with numbers as wide as in the column."""
    if value is None:
        return None
    if isinstance(shape, ListShape):
        return [_typed(shape.element, element) for element in value]
    if isinstance(shape, StructShape):
        return {key: _typed_inner(shape, key, inner) for key, inner in value.items()}
    return _WIDTH[shape](value) if shape in _WIDTH else value


def _typed_inner(shape: StructShape, key: str, value: Any) -> Any:
    """Return the value of a dictionary's key in the type of the field that holds it."""
    slots = [slot for slot in shape.slots if slot.logical == key]
    # A property with values of several types has a slot for each. The value shows its slot.
    for slot in slots:
        if len(slots) == 1 or _suits(slot.shape, value):
            return _typed(slot.shape, value)
    return value


def _suits(shape: Shape, value: Any) -> bool:
    """Whether a value read from a column can come from a column of this shape."""
    if isinstance(shape, ListShape):
        return isinstance(value, list) and all(
            element is None or _suits(shape.element, element) for element in value
        )
    if isinstance(shape, StructShape):
        return isinstance(value, dict)
    if shape.startswith("int"):
        # For isinstance(), a bool is also an int.
        return type(value) is int
    return shape in ("float", "double") and type(value) is float
