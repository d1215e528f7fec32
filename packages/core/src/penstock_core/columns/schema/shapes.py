"""Shapes: types of properties that can grow to hold further types without loss (SEM E2).

Unlike an Arrow type, a shape records which fields of a struct hold the same property in different
types. Shapes are immutable values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.schema.layout import LOGICAL_NAME, PROPERTY_COLUMNS_MAX

LEAVES: Final[dict[str, pa.DataType]] = {
    str(kind): kind
    for kind in (
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.timestamp("us", tz="UTC"),
        pa.timestamp("us"),
    )
}
"""Arrow types of single values, by Arrow's name for them."""

NULL: Final = "null"
"""The shape of a property that was always null."""
UTC: Final = "timestamp[us, tz=UTC]"
"""The shape of times with a zone."""
NAIVE: Final = "timestamp[us]"
"""The shape of times without a zone."""

_WIDTHS: Final = (("int8", "int16", "int32", "int64"), ("float", "double"))
"""Number types that can be widened without loss, the narrowest first."""
_LABELS: Final = {
    **dict.fromkeys(_WIDTHS[0], "int"),
    **dict.fromkeys(_WIDTHS[1], "float"),
    UTC: "timestamp_utc",
    NAIVE: "timestamp",
}


class ListShape(Struct, frozen=True):
    """A list; all elements have the shape ``element``."""

    element: Shape


class Slot(Struct, frozen=True):
    """One field of a struct."""

    name: str
    """Name of the Arrow field."""
    logical: str
    """Name of the property in the field."""
    shape: Shape


class StructShape(Struct, frozen=True):
    """A dictionary. Several slots may hold one property in different types."""

    slots: tuple[Slot, ...] = ()


Shape = str | ListShape | StructShape


class Unsupported(Exception):
    """Raised for an Arrow type that no property can have; ``path`` locates it in the column."""

    def __init__(self, kind: pa.DataType, path: str = "") -> None:
        super().__init__(f"type {kind} at {path or 'the top'}")
        self.kind = kind
        self.path = path


def label(shape: Shape) -> str:
    """Return the suffix that names a field of a second type, as in ``price::string``."""
    if isinstance(shape, ListShape):
        return f"list<{label(shape.element)}>"
    if isinstance(shape, StructShape):
        return "struct"
    return _LABELS.get(shape, shape)


def united(first: Shape, second: Shape) -> Shape | None:
    """Return the smallest shape that holds both without loss; None if no shape can."""
    if first == second or second == NULL:
        return first
    if first == NULL:
        return second
    if isinstance(first, StructShape) and isinstance(second, StructShape):
        growth = ShapeBuilder(first)
        for slot in second.slots:
            growth.place(slot.logical, slot.shape)
        return growth.shape
    if isinstance(first, ListShape) and isinstance(second, ListShape):
        element = united(first.element, second.element)
        return None if element is None else ListShape(element)
    for widths in _WIDTHS:
        if first in widths and second in widths:
            return max(first, second, key=widths.index)
    return None


def fits(wide: Shape, narrow: Shape) -> bool:
    """Whether ``wide`` can hold every value of ``narrow`` without loss."""
    return united(wide, narrow) == wide


NO_SLOTS: Final = StructShape()


class ShapeBuilder:
    """A struct shape under construction: assigns properties to slots, which it widens or adds."""

    __slots__ = ("_leaves", "_limit", "_places", "_slots")

    def __init__(self, start: StructShape = NO_SLOTS, limit: int | None = None) -> None:
        self._slots = list(start.slots)
        self._limit = limit
        self._leaves = leaf_count(start) if limit is not None else 0
        self._places: dict[str, list[int]] = {}
        for index, slot in enumerate(self._slots):
            self._places.setdefault(slot.logical, []).append(index)

    @property
    def shape(self) -> StructShape:
        return StructShape(tuple(self._slots))

    def place(self, logical: str, shape: Shape) -> int | None:
        """Widen a slot of the property so that it can hold ``shape``, or add a slot. Return the
        index of the slot; None if the limit of columns would be exceeded."""
        for index in self._places.get(logical, ()):
            slot = self._slots[index]
            union = united(slot.shape, shape)
            if union is None:
                # Values of another type have another slot of the same property.
                continue
            if union == slot.shape:
                return index
            if not self._may_add(leaf_count(union) - leaf_count(slot.shape)):
                return None
            self._slots[index] = Slot(slot.name, logical, union)
            return index
        if not self._may_add(leaf_count(shape)):
            return None
        self._places.setdefault(logical, []).append(len(self._slots))
        self._slots.append(Slot(self._free_name(logical, shape), logical, shape))
        return len(self._slots) - 1

    def _may_add(self, leaves: int) -> bool:
        """Count more columns of single values. Return False without counting above the limit."""
        if self._limit is None:
            return True
        if self._leaves + leaves > self._limit:
            return False
        self._leaves += leaves
        return True

    def _free_name(self, logical: str, shape: Shape) -> str:
        """Return a field name that is not in use: the property's, or one with its type."""
        used_names = {slot.name for slot in self._slots}
        if logical not in used_names:
            return logical
        name = typed = f"{logical}::{label(shape)}"
        # A publisher may also use a name such as `price::string` for a property.
        number = 2
        while name in used_names:
            name = f"{typed}.{number}"
            number += 1
        return name


def leaf_count(shape: Shape) -> int:
    """Return the number of columns of single values in a shape."""
    if isinstance(shape, StructShape):
        return sum(leaf_count(slot.shape) for slot in shape.slots)
    if isinstance(shape, ListShape):
        return leaf_count(shape.element)
    return 1


def nesting(shape: Shape) -> int:
    """Return the number of lists and structs around the innermost value."""
    if isinstance(shape, ListShape):
        return 1 + nesting(shape.element)
    if isinstance(shape, StructShape):
        return 1 + max((nesting(slot.shape) for slot in shape.slots), default=0)
    return 0


def holds_empty_struct(shape: Shape) -> bool:
    """Whether the shape contains a struct without fields, which most Arrow readers refuse."""
    if isinstance(shape, StructShape):
        return not shape.slots or any(holds_empty_struct(slot.shape) for slot in shape.slots)
    return isinstance(shape, ListShape) and holds_empty_struct(shape.element)


def grown(
    start: StructShape, slots: Iterable[Slot], limit: int = PROPERTY_COLUMNS_MAX
) -> StructShape:
    """Return ``start`` with ``slots`` added up to the limit; ``start`` itself if nothing
    changed."""
    growth = ShapeBuilder(start, limit)
    for slot in slots:
        if not holds_empty_struct(slot.shape):
            growth.place(slot.logical, slot.shape)
    shape = growth.shape
    return start if shape == start else shape


def arrow_type(shape: Shape) -> pa.DataType:
    """Return the Arrow type of a shape."""
    if isinstance(shape, StructShape):
        return pa.struct([arrow_field(slot) for slot in shape.slots])
    if isinstance(shape, ListShape):
        return pa.list_(arrow_type(shape.element))
    return LEAVES[shape]


def arrow_field(slot: Slot) -> pa.Field:
    """Return the Arrow field of a slot, with the property's name in its metadata if it differs."""
    metadata = {LOGICAL_NAME: slot.logical.encode()} if slot.name != slot.logical else None
    return pa.field(slot.name, arrow_type(slot.shape), metadata=metadata)


def shape_of(kind: pa.DataType, path: str = "") -> Shape:
    """Return the shape of an Arrow type. Raises :class:`Unsupported` if no property can have it."""
    if pa.types.is_struct(kind):
        return struct_shape(kind, path)
    if pa.types.is_list(kind):
        return ListShape(shape_of(kind.value_type, f"{path}[]"))
    name = str(kind)
    if LEAVES.get(name) != kind:
        raise Unsupported(kind, path)
    return name


def struct_shape(kind: pa.StructType, path: str = "") -> StructShape:
    """Return the shape of a struct type, with property names from the metadata of its fields."""
    return StructShape(tuple(_slots_of(kind, path)))


def _slots_of(kind: pa.StructType, path: str) -> Iterator[Slot]:
    for index in range(kind.num_fields):
        field = kind.field(index)
        name: str = field.name
        logical = (field.metadata or {}).get(LOGICAL_NAME)
        inner = f"{path}.{name}" if path else name
        yield Slot(name, name if logical is None else logical.decode(), shape_of(field.type, inner))
