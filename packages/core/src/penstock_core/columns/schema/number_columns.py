"""One column for the integers and floats of a property (SEM E10).

A channel stores the integers and the floats of one property in two fields, so that each event keeps
its type. Readers see a single column of doubles if each integer is exact as a double; otherwise two
columns with the types in their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import LOGICAL_NAME
from penstock_core.columns.schema.shapes import (
    ListShape,
    Shape,
    Slot,
    StructShape,
    arrow_type,
    label,
    struct_shape,
)
from penstock_core.columns.schema.struct_fields import fields_of

EXACT_MAX: Final = 1 << 53
"""All integers of at most this absolute value are exact as doubles."""

_DOUBLE: Final = "double"
_NUMBERS: Final = frozenset(("int8", "int16", "int32", "int64", "float", _DOUBLE))


class NotExact(Exception):
    """Raised if an integer is not exact as a double."""


class ShownColumn(NamedTuple):
    """A column shown to readers: one field of a struct, or the two number fields of one
    property."""

    name: str
    logical: str
    """Name of the property in the column."""
    shape: Shape
    sources: tuple[int, ...]
    """Indexes of the column's fields in the struct."""
    is_joined: bool
    """Whether the column has to be computed, because it or a field inside it joins two fields."""

    @property
    def field(self) -> pa.Field:
        """The Arrow field, with the property's name in its metadata if it differs."""
        return _field(self.name, self.logical, arrow_type(self.shape))

    def compute(self, arrays: Sequence[pa.Array], shapes: Sequence[Shape]) -> pa.Array:
        """Return the column computed from its sources and their shapes. Raises
        :class:`NotExact`."""
        columns = [_shown(*pair, self.shape) for pair in zip(arrays, shapes, strict=True)]
        return columns[0] if len(columns) == 1 else pc.coalesce(*columns)


def shown_columns(shape: StructShape) -> tuple[ShownColumn, ...]:
    """Return the columns that readers see for the fields of a struct, in the order of the
    fields."""
    groups: list[tuple[Slot, Shape, list[int]]] = []
    for index, slot in enumerate(shape.slots):
        for position, (first, group_shape, sources) in enumerate(groups):
            joined = (
                joined_shape(group_shape, slot.shape) if first.logical == slot.logical else None
            )
            if joined is not None:
                groups[position] = (first, joined, [*sources, index])
                break
        else:
            groups.append((slot, slot.shape, [index]))
    used_names = {slot.name for slot in shape.slots}
    columns = []
    for first, stored, sources in groups:
        shown = _shown_shape(stored)
        names = [shape.slots[index].name for index in sources]
        # Prefer the plain name of the property if one of the joined fields has it.
        name = first.logical if first.logical in names or len(names) == 1 else ""
        if not name:
            name = f"{first.logical}::{label(shown).replace('float', 'number')}"
        # A field of another property may already have the name.
        if len(names) == 1 or (name in used_names and name not in names):
            name = names[0]
        is_joined = len(names) > 1 or shown != stored
        columns.append(
            ShownColumn(name, first.logical, shown, sources=tuple(sources), is_joined=is_joined)
        )
    return tuple(columns)


def typed_columns(shape: StructShape) -> dict[str, int]:
    """Return the index of each field of a struct that is joined with another field, by the name of
    the column with its exact type, such as ``price::int``.
    """
    field_indexes: dict[str, int] = {}
    used_names = {slot.name for slot in shape.slots}
    for column in shown_columns(shape):
        if len(column.sources) == 1:
            continue
        for index in column.sources:
            slot = shape.slots[index]
            name = f"{slot.logical}::{label(slot.shape)}"
            field_indexes[slot.name if name in used_names else name] = index
    return field_indexes


def typed_field(name: str, slot: Slot) -> pa.Field:
    """Return the Arrow field of a column under a name from :func:`typed_columns`."""
    return _field(name, slot.logical, arrow_type(slot.shape))


def has_joined(kind: pa.StructType) -> bool:
    """Whether a struct of properties has numbers of one property in two fields, at any depth."""
    return any(column.is_joined for column in shown_columns(struct_shape(kind)))


def _field(name: str, logical: str, kind: pa.DataType) -> pa.Field:
    metadata = {LOGICAL_NAME: logical.encode()} if name != logical else None
    return pa.field(name, kind, metadata=metadata)


def joined_shape(first: Shape, second: Shape) -> Shape | None:
    """Return the shape that holds the numbers of both shapes as doubles; None if one of them is not
    numeric."""
    if isinstance(first, ListShape) and isinstance(second, ListShape):
        element = joined_shape(first.element, second.element)
        return None if element is None else ListShape(element)
    return _DOUBLE if first in _NUMBERS and second in _NUMBERS else None


def _shown_shape(shape: Shape) -> Shape:
    """Return the shape that readers see, with joined numbers at any depth."""
    if isinstance(shape, ListShape):
        return ListShape(_shown_shape(shape.element))
    if isinstance(shape, StructShape):
        return StructShape(
            tuple(
                Slot(column.name, column.logical, column.shape) for column in shown_columns(shape)
            )
        )
    return shape


def _shown(array: pa.Array, stored: Shape, shown: Shape) -> pa.Array:
    """Return an array in the shape that readers see. Raises :class:`NotExact`."""
    if stored == shown:
        return array
    if isinstance(stored, StructShape):
        children = fields_of(array)
        arrays, fields = [], []
        for column in shown_columns(stored):
            sources = [children[index] for index in column.sources]
            arrays.append(column.compute(sources, [stored.slots[i].shape for i in column.sources]))
            fields.append(column.field)
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=_mask(array))
    if isinstance(stored, ListShape) and isinstance(shown, ListShape):
        # flatten() leaves out the elements of null lists, so the stored offsets do not fit its
        # result.
        values = _shown(array.flatten(), stored.element, shown.element)
        lengths = np.asarray(pc.list_value_length(array).fill_null(0).to_numpy(), np.int64)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=arrow_type(shown), mask=_mask(array))
    try:
        return array.cast(pa.float64())
    except pa.ArrowInvalid as error:
        raise NotExact(str(error)) from None


def _mask(array: pa.Array) -> Any:
    return array.is_null() if array.null_count else None
