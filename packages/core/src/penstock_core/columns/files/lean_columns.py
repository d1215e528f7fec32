"""Writes batches with only the columns they need, so that rare properties do not cost every row.

A column takes space in every row of a file. Properties that few events have move to ``more`` in the
rows that have them, if the empty cells of their columns together would take more space than all
values in the file. Columns without any value are left out. No value is lost:
:mod:`penstock_core.columns.events.lifted_columns` moves the properties back into columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock_core.columns.files.segments import SegmentImage, encode_segment
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.layout import BODY
from penstock_core.columns.schema.rows import Rows
from penstock_core.columns.schema.schema import ChannelSchema, Parts
from penstock_core.columns.schema.schema_fit import dense_rows, place_of, typed_properties
from penstock_core.columns.schema.shapes import (
    LEAVES,
    NO_SLOTS,
    ListShape,
    Shape,
    Slot,
    StructShape,
    arrow_type,
    grown,
)
from penstock_core.columns.schema.values import is_struct
from penstock_core.vocabulary.compression import Compression

FREE_BYTES: Final = 64 << 10
"""Bytes that the empty cells of a file may take even if its events are small."""

_OVERFLOW_COLUMNS: Final = frozenset({"more", "sparse", "nulls"})
"""The columns that hold properties without a column."""
_STAMPS_BYTES: Final = 16
"""Bytes of the id and the publish time of an event."""
_OFFSET_BYTES: Final = 4
"""Bytes of a cell of variable length without a value."""
_VALIDITY_BYTES: Final = 1 / 8
"""Bytes of the validity bit of a cell."""

Path = tuple[str, ...]
"""Names of fields from the properties to a column inside them."""
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Indices = np.ndarray[Any, np.dtype[np.int64]]


class _Column(NamedTuple):
    """A leaf column of the properties: single values, or lists of them."""

    path: Path
    values: int
    """Number of values in the column."""
    empty_bytes: float
    """Bytes that the column's cells without a value take."""


class Needs:
    """Counts the values of events in each column of their channel, to choose the columns of a
    file."""

    def __init__(self, channel: ChannelSchema) -> None:
        self._channel = channel
        self._full = channel.properties
        self._names: frozenset[str] = frozenset()
        self._headers = NO_SLOTS
        self._counts: dict[Path, int] = {}
        """Number of values in each column."""
        self._lengths: dict[Path, int] = {}
        """Number of list elements at each path, summed over all events."""
        self._rows = 0
        self._value_bytes = 0.0
        """Bytes of all values in the events."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Count stored events, or a body. The channel's schema must already have the columns of
        ``batch``."""
        self._rows += batch.num_rows
        self._value_bytes += _STAMPS_BYTES * batch.num_rows
        parts = Parts.of(batch.schema)
        self._names |= parts.names - {"properties"}
        self._headers = grown(self._headers, parts.headers.slots)
        for name in parts.names - {"properties"}:
            self._value_bytes += batch.column(name).nbytes
        if not parts.properties.slots:
            return
        struct = batch.column("properties")
        dense = 1.0
        if "sparse" in parts.names:
            dense -= (batch.column("sparse").true_count or 0) / max(1, batch.num_rows)
        self._tally((), struct, parts.properties, full=self._full, dense=dense)
        if "nulls" in parts.names:
            for name, rows in _explicit_nulls(batch.column("nulls")).items():
                self._count((name,), len(rows))

    def add_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Call :meth:`add` for each batch."""
        for batch in batches:
            self.add(batch)

    def _tally(
        self,
        path: Path,
        struct: pa.StructArray,
        source: StructShape,
        full: StructShape,
        dense: float,
    ) -> None:
        """Count the values of a struct. ``dense`` is the share of rows whose nulls are values."""
        for index, slot in enumerate(source.slots):
            place = place_of(slot, full)
            if place is None:
                continue
            slot_path = (*path, place.name)
            array: Any = struct.field(index)
            # An estimate: nulls in dense rows are values, and nulls are assumed to be spread
            # evenly.
            count = len(array) - int((1 - dense) * array.null_count)
            self._count(slot_path, count)
            source_shape, full_shape = slot.shape, place.shape
            while isinstance(source_shape, ListShape) and isinstance(full_shape, ListShape):
                array = array.flatten()
                source_shape, full_shape = source_shape.element, full_shape.element
                self._lengths[slot_path] = self._lengths.get(slot_path, 0) + len(array)
            if isinstance(source_shape, StructShape) and isinstance(full_shape, StructShape):
                self._tally(slot_path, array, source_shape, full=full_shape, dense=dense)
            elif count:
                # nbytes includes empty cells, so only the share of cells with a value counts.
                self._value_bytes += array.nbytes * count / max(1, len(array), count)

    def _count(self, path: Path, count: int) -> None:
        if count:
            self._counts[path] = self._counts.get(path, 0) + count

    def shape(
        self,
        free_bytes: int = FREE_BYTES,
        required: StructShape = NO_SLOTS,
        optional: StructShape = NO_SLOTS,
    ) -> StructShape:
        """Return the properties that get a column because they are frequent enough.

        ``required`` are columns to keep in any case. ``optional`` are columns without a value so
        far that are kept if their empty cells fit into the bytes allowed for empty cells.
        """
        columns = sorted(
            self._columns((), self._full, self._rows, optional=_paths((), optional)),
            key=lambda candidate: -candidate.values,
        )
        kept_paths = _paths((), required)
        budget = max(self._value_bytes, free_bytes)
        start = 0
        while start < len(columns):
            end = start
            # Columns with equally many values are kept or dropped together, so the order of columns
            # does not matter.
            while end < len(columns) and columns[end].values == columns[start].values:
                end += 1
            budget -= sum(column.empty_bytes for column in columns[start:end])
            if budget < 0:
                break
            kept_paths.update(column.path for column in columns[start:end])
            start = end
        return _restricted((), self._full, kept_paths)

    def _columns(
        self, path: Path, full: StructShape, rows: int, optional: Collection[Path]
    ) -> Iterator[_Column]:
        """Yield the leaf columns that have values, or are in ``optional``."""
        for slot in full.slots:
            slot_path = (*path, slot.name)
            count = self._counts.get(slot_path, 0)
            if not count and slot_path not in optional:
                continue
            shape, lists = slot.shape, 0
            while isinstance(shape, ListShape):
                shape, lists = shape.element, lists + 1
            if isinstance(shape, StructShape):
                yield from self._columns(
                    slot_path, shape, self._lengths.get(slot_path, rows), optional=optional
                )
            else:
                width = _OFFSET_BYTES if lists else _width(shape)
                yield _Column(slot_path, count, max(0, rows - count) * (width + _VALIDITY_BYTES))

    def schema(self, free_bytes: int = FREE_BYTES) -> ChannelSchema:
        """Return the schema for these events; rare properties move to ``more``."""
        shape = self.shape(free_bytes)
        names = self._names | ({"properties"} if shape.slots else set())
        if self._leaves_out(shape):
            names |= _OVERFLOW_COLUMNS
        return ChannelSchema(Parts(names, shape, self._headers))

    def open_schema(
        self, required: StructShape = NO_SLOTS, optional: StructShape = NO_SLOTS
    ) -> ChannelSchema:
        """Return the schema of a file that any events of the channel can be added to later.

        Its property columns are those of :meth:`shape`. It has the overflow columns of the counted
        events, because events may have in ``more`` properties that became frequent only later.
        """
        shape = self.shape(required=required, optional=optional)
        names = (self._channel.names | self._names) - {"properties"}
        if shape.slots:
            names |= {"properties"}
        if shape != self._full:
            names |= _OVERFLOW_COLUMNS
        return ChannelSchema(Parts(names, shape, self._channel.headers))

    def _leaves_out(self, shape: StructShape) -> bool:
        """Return whether ``shape`` lacks a column that has counted values."""
        return any(path not in _paths((), shape) for path in self._counts)


def lean(
    batches: Sequence[pa.RecordBatch], channel: ChannelSchema, free_bytes: int = FREE_BYTES
) -> list[pa.RecordBatch]:
    """Return the events of ``batches`` in one schema that has only the columns they need."""
    first = batches[0].schema
    # Dense batches in the channel's schema need all its columns, so nothing has to be counted.
    if "sparse" not in first.names and all(
        batch.schema.equals(channel.arrow, check_metadata=True) for batch in batches
    ):
        return list(batches)
    needs = Needs(channel)
    for batch in batches:
        needs.add(batch)
    return fitted_in(batches, needs.schema(free_bytes), channel)


def lean_image(
    batches: Sequence[pa.RecordBatch], channel: ChannelSchema, compression: Compression
) -> SegmentImage:
    """Return a segment with the events of ``batches``, in the columns they need."""
    lean_batches = lean(batches, channel)
    return encode_segment(
        lean_batches, note=channel.note(lean_batches[0].schema), compression=compression
    )


def fitted_in(
    batches: Iterable[pa.RecordBatch], schema: ChannelSchema, channel: ChannelSchema
) -> list[pa.RecordBatch]:
    """Return the batches in ``schema``, which may have fewer property columns than ``channel``.

    Properties without a column move to ``more``. If one batch then needs further columns (``more``,
    ``sparse``, ``nulls``), all batches get these columns, so that they have one schema.
    """
    narrowed = [_without(batch, schema.properties, channel.properties) for batch in batches]
    for batch in narrowed:
        schema = schema.grown(batch.schema)
    return [schema.conform(batch) for batch in narrowed]


def has_columns(physical: ChannelSchema, required: StructShape) -> bool:
    """Whether a file with the columns ``physical`` has all columns of ``required``."""
    return _paths((), required) <= _paths((), physical.properties)


# --- leaving columns out ------------------------------------------------------------------


def _without(batch: pa.RecordBatch, kept: StructShape, full: StructShape) -> pa.RecordBatch:
    """Return a batch with only the property columns of ``kept``; other values move to ``more``."""
    parts = Parts.of(batch.schema)
    source = parts.properties
    leaving = [i for i, slot in enumerate(source.slots) if _loses(slot, kept, full)]
    if not leaving:
        return batch
    struct = batch.column("properties")
    columns = {name: batch.column(name) for name in batch.schema.names}
    hits = _Hits(batch, struct, source, names=parts.names)
    spilled: dict[int, list[Slot]] = {}
    for index in leaving:
        slot = source.slots[index]
        rows = hits.rows_losing(index, kept, full)
        for row in rows.tolist():
            spilled.setdefault(row, []).append(slot)
    if spilled:
        columns["more"] = _more(batch, struct, source, spilled=spilled)
    narrow, shape = _narrowed(struct, source, kept, full=full)
    if shape.slots:
        columns["properties"] = narrow
    else:
        del columns["properties"]
    # The columns stamped by the realm come first, then those of a body in their usual order.
    order = [*(n for n in batch.schema.names if n not in BODY), *(n for n in BODY if n in columns)]
    fields = [
        batch.schema.field(name)
        if name not in ("properties", "more")
        else pa.field(name, columns[name].type)
        for name in order
    ]
    return pa.RecordBatch.from_arrays([columns[name] for name in order], schema=pa.schema(fields))


def _kept_place(slot: Slot, kept: StructShape, full: StructShape) -> tuple[Slot, Slot] | None:
    """Return the slot of ``full`` that a slot belongs to, and the part of that slot that is kept.

    Return None if no part of the slot is kept, also if only other fields of the same dictionary
    are kept.
    """
    place = place_of(slot, full)
    if place is None:
        return None
    kept_slot = next((field for field in kept.slots if field.name == place.name), None)
    if kept_slot is None:
        return None
    if is_struct(slot.shape):
        inner_kept, inner_full = _inner(kept_slot.shape), _inner(place.shape)
        if all(
            _kept_place(field, inner_kept, inner_full) is None for field in _inner(slot.shape).slots
        ):
            return None
    return place, kept_slot


def _loses(slot: Slot, kept: StructShape, full: StructShape) -> bool:
    """Whether values of a slot lose their column, at any depth. ``kept`` are the property columns
    that stay, and ``full`` those of the channel."""
    places = _kept_place(slot, kept, full)
    if places is None:
        return True
    source, full_shape, kept_shape = slot.shape, places[0].shape, places[1].shape
    if not is_struct(source):
        return False
    return any(
        _loses(field, _inner(kept_shape), _inner(full_shape)) for field in _inner(source).slots
    )


def _inner(shape: Shape) -> StructShape:
    """Return the struct in a shape of lists of structs."""
    while isinstance(shape, ListShape):
        shape = shape.element
    assert isinstance(shape, StructShape), "a struct lies below"
    return shape


class _Hits:
    """Finds the rows of a batch that have values in removed columns."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        struct: pa.StructArray,
        source: StructShape,
        names: frozenset[str],
    ) -> None:
        self._struct = struct
        self._source = source
        self._dense = dense_rows(batch) & _valid(struct)
        self._null_rows = _explicit_nulls(batch.column("nulls")) if "nulls" in names else {}

    def rows_losing(self, index: int, kept: StructShape, full: StructShape) -> Indices:
        """Return the rows that would lose a value: those with a value in a removed column, at slot
        ``index`` or nested in it."""
        slot = self._source.slots[index]
        # In a dense row a null is explicit, so it is also a value.
        hits = self._dense.copy()
        if slot.logical in self._null_rows:
            hits[self._null_rows[slot.logical]] = True
        owners = np.where(_valid(self._struct), np.arange(len(hits)), -1)
        _mark(self._struct.field(index), slot, owners, kept=kept, full=full, hits=hits)
        return np.flatnonzero(hits)


def _mark(
    array: Any, slot: Slot, owners: Indices, kept: StructShape, full: StructShape, hits: Bools
) -> None:
    """Set ``hits`` to True for the rows with a removed value in ``array``. ``owners`` has the row
    of each value of the array, or -1 for a value inside a null."""
    owners = np.where(_valid(array), owners, -1)
    places = _kept_place(slot, kept, full)
    if places is None:
        hits[owners[owners >= 0]] = True
        return
    shape, full_shape, kept_shape = slot.shape, places[0].shape, places[1].shape
    if not is_struct(shape):
        return
    while isinstance(shape, ListShape):
        offsets = np.asarray(array.offsets.to_numpy(), dtype=np.int64)
        parents = np.repeat(np.arange(len(array)), np.diff(offsets))
        # The offsets of a slice point into the elements of the whole column.
        array = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        owners = np.where(_valid(array), owners[parents], -1)
        shape = shape.element
    assert isinstance(shape, StructShape), "a struct lies below"
    for index, field in enumerate(shape.slots):
        if _loses(field, _inner(kept_shape), _inner(full_shape)):
            _mark(
                array.field(index),
                field,
                owners,
                kept=_inner(kept_shape),
                full=_inner(full_shape),
                hits=hits,
            )


def _narrowed(
    array: Any, source: StructShape, kept: StructShape, full: StructShape
) -> tuple[pa.StructArray, StructShape]:
    """Return a struct, and its shape, without the removed fields at any depth."""
    slots, children = [], []
    for index, slot in enumerate(source.slots):
        places = _kept_place(slot, kept, full)
        if places is None:
            continue
        child, shape = _narrow(
            array.field(index), slot.shape, places[1].shape, full=places[0].shape
        )
        slots.append(Slot(slot.name, slot.logical, shape))
        children.append(child)
    narrowed_shape = StructShape(tuple(slots))
    mask = array.is_null() if array.null_count else None
    fields = list(arrow_type(narrowed_shape))
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask), narrowed_shape


def _narrow(array: Any, source: Shape, kept: Shape, full: Shape) -> tuple[pa.Array, Shape]:
    """Return an array, and its shape, without the removed fields inside it."""
    if isinstance(source, StructShape):
        assert isinstance(kept, StructShape), "as in the channel"
        assert isinstance(full, StructShape), "as in the channel"
        return _narrowed(array, source, kept, full=full)
    if isinstance(source, ListShape) and is_struct(source):
        assert isinstance(kept, ListShape), "as in the channel"
        assert isinstance(full, ListShape), "as in the channel"
        inner, shape = _narrow(array.values, source.element, kept.element, full=full.element)
        list_shape = ListShape(shape)
        # Only the elements change; validity and offsets are shared.
        buffers = array.buffers()[:2]
        kind = arrow_type(list_shape)
        narrowed_list = pa.Array.from_buffers(
            kind, len(array), buffers, array.null_count, array.offset, [inner]
        )
        return narrowed_list, list_shape
    return array, source


def _more(
    batch: pa.RecordBatch,
    struct: pa.StructArray,
    source: StructShape,
    spilled: dict[int, list[Slot]],
) -> pa.BinaryArray:
    """Return the column ``more`` with the properties of ``spilled`` added, by row."""
    rows = Rows(batch)
    has_more = "more" in batch.schema.names
    cells: list[bytes | None] = (
        batch.column("more").to_pylist() if has_more else [None] * batch.num_rows
    )
    fields = {slot.name: struct.field(i) for i, slot in enumerate(source.slots)}
    for row, slots in spilled.items():
        leaving = {slot.name for slot in slots}
        staying = {
            slot.logical
            for slot in source.slots
            if slot.name not in leaving and fields[slot.name][row].is_valid
        }
        moved = typed_properties(rows.properties(row), row, slots, columns=fields, staying=staying)
        cells[row] = overflow.extended(cells[row], moved)
    return pa.array(cells, pa.binary())


def _restricted(path: Path, shape: StructShape, kept: set[Path]) -> StructShape:
    """Return ``shape`` with only the columns at the paths ``kept``, without structs that become
    empty."""
    slots = []
    for slot in shape.slots:
        slot_path = (*path, slot.name)
        if is_struct(slot.shape):
            inner = _restricted(slot_path, _inner(slot.shape), kept)
            if inner.slots:
                slots.append(Slot(slot.name, slot.logical, _around(slot.shape, inner)))
        elif slot_path in kept:
            slots.append(slot)
    return StructShape(tuple(slots))


def _around(shape: Shape, inner: StructShape) -> Shape:
    """Return ``inner`` in as many lists as ``shape`` has."""
    return ListShape(_around(shape.element, inner)) if isinstance(shape, ListShape) else inner


def _paths(path: Path, shape: StructShape) -> set[Path]:
    """Return the paths of all fields of a struct at ``path``, at any depth."""
    paths: set[Path] = set()
    for slot in shape.slots:
        slot_path = (*path, slot.name)
        paths.add(slot_path)
        if is_struct(slot.shape):
            paths |= _paths(slot_path, _inner(slot.shape))
    return paths


def _width(shape: Shape) -> float:
    """Return the bytes of a cell of a leaf column, without its validity bit."""
    assert isinstance(shape, str), "a single value"
    kind = LEAVES[shape]
    if pa.types.is_null(kind):
        return -_VALIDITY_BYTES  # a column of nulls takes no bytes
    return _OFFSET_BYTES if shape in ("string", "binary") else kind.bit_width / 8


def _valid(array: Any) -> Bools:
    """Return a mask of the values that are not null."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _explicit_nulls(column: Any) -> dict[str, Indices]:
    """Return the rows of each explicit null in the column ``nulls``, by the top-level property.

    A row occurs once for each of its paths, so several times if a property has several nulls.
    """
    if column.null_count == len(column):
        return {}
    # Events of one publisher have the same few paths, so Python sees each distinct path only once.
    encoded = column.flatten().dictionary_encode()
    codes: dict[str, int] = {}
    code_of_path = [
        codes.setdefault(_top(path), len(codes)) for path in encoded.dictionary.to_pylist()
    ]
    if not codes:
        return {}  # all lists are empty
    row_codes = np.array(code_of_path, np.int64)[encoded.indices.to_numpy()]
    lengths = column.value_lengths().fill_null(0).to_numpy()
    rows = np.repeat(np.arange(len(column)), lengths)
    order = np.argsort(row_codes, kind="stable")
    ends = np.cumsum(np.bincount(row_codes, minlength=len(codes)))
    return dict(zip(codes, np.split(rows[order], ends[:-1]), strict=True))


def _top(path: str) -> str:
    """Return the top-level property of a path."""
    name, escaped = [], False
    for character in path:
        if not escaped and character == "\\":
            escaped = True
            continue
        if not escaped and character in ".[":
            break
        name.append(character)
        escaped = False
    return "".join(name)
