"""Converts dictionaries to property columns (SEM E2). :mod:`.rows` converts them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from types import NoneType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.arrays import array_of
from penstock_core.columns.schema.layout import (
    PROPERTY_COLUMNS_MAX,
    UTC_MICROSECONDS,
    check_property_name,
    key_path,
)
from penstock_core.columns.schema.nested_columns import Column, Level
from penstock_core.columns.schema.schema_cache import FieldsCache
from penstock_core.columns.schema.shapes import (
    LEAVES,
    Shape,
    ShapeBuilder,
    StructShape,
    arrow_type,
    fits,
    holds_empty_struct,
    nesting,
    united,
)
from penstock_core.columns.schema.values import NATIVE, NotAProperty, inspect, levels_of, refusal
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX

Properties = Mapping[str, Any]


class PropertyColumns(NamedTuple):
    """Columns that hold the properties of a batch; a column that is not needed is None."""

    properties: pa.StructArray | None = None
    sparse: pa.BooleanArray | None = None
    nulls: pa.ListArray | None = None
    more: pa.BinaryArray | None = None
    plan: pa.StructType | None = None
    """The type of ``properties`` if it is common: one cached object for equal types."""


NO_PROPERTIES: Final = PropertyColumns()

COLUMN_NESTING_MAX: Final = 24
"""Largest number of nested lists and dictionaries in columns, because Arrow's readers stop at 64
levels.

Values with more levels are kept in ``more``.
"""

# Types whose values Arrow converts without inspection.
_FAST: Final[dict[type, pa.DataType]] = {
    **{kind: LEAVES[leaf] for kind, leaf in NATIVE.items()},
    NoneType: LEAVES["null"],
}

_PLANS_MAX: Final = 1024
"""Maximum number of cached plans."""
_PLANS_FIELDS_MAX: Final = 16_384
"""Maximum number of fields in all cached plans, not counting the newest plan. It bounds the memory,
because a name has at most 255 characters."""
_Plan = tuple[pa.StructType, list[pa.DataType]]
"""The type of the struct of properties, and the types of its fields."""
_plans: FieldsCache[tuple[Any, ...], _Plan] = FieldsCache(_PLANS_MAX, _PLANS_FIELDS_MAX)


def property_columns(rows: Sequence[Properties | None]) -> PropertyColumns:
    """Return the columns for a list of property dictionaries, one per row.

    Raises :class:`InvalidEvent` with the event, the property and the allowed types.
    """
    if not any(rows):
        return NO_PROPERTIES
    uniform = _uniform(rows)
    return uniform if uniform is not None else _general(rows)


def _uniform(rows: Sequence[Properties | None]) -> PropertyColumns | None:
    """Return the columns if all rows have the same keys, and each key one type; otherwise None.
    This is the fast path."""
    first = rows[0]
    if not first:
        return None
    try:
        columns: Any
        if len(rows) == 1:
            columns = [(value,) for value in first.values()]
            arrow_types = [_FAST.get(type(value)) for value in first.values()]
        else:
            # Equal lengths, and a KeyError for a missing name, together prove that all keys are
            # equal.
            if set(map(len, rows)) != {len(first)}:  # type: ignore[arg-type]  # None: caught
                return None
            columns = _columns(tuple(first), rows)
            arrow_types = [_kind(column) for column in columns]
        if None in arrow_types:
            arrow_types = [
                kind if kind is not None else _timestamp_kind(column)
                for kind, column in zip(arrow_types, columns, strict=True)
            ]
        plan = _plan(tuple(first), arrow_types)
        if plan is None:
            return None
        struct_type, types = plan
        arrays = list(map(array_of, columns, types))
    except (KeyError, TypeError, ValueError, OverflowError, pa.ArrowException):
        return None  # the general path reports any error, with its event
    struct = pa.Array.from_buffers(struct_type, len(rows), [None], 0, 0, arrays)
    return PropertyColumns(struct, plan=struct_type)


def _columns(names: tuple[str, ...], rows: Sequence[Any]) -> list[Sequence[Any]]:
    # Name by name: an itemgetter of all names would build a tuple for each row.
    return [list(map(itemgetter(name), rows)) for name in names]


def _kind(column: Sequence[Any]) -> pa.DataType | None:
    """Return the Arrow type of values of one plain Python type; None for other values."""
    kinds = set(map(type, column))
    if len(kinds) > 1:
        kinds.discard(NoneType)
    return _FAST.get(kinds.pop()) if len(kinds) == 1 else None


def _timestamp_kind(column: Sequence[Any]) -> pa.DataType | None:
    aware = all(type(value) is datetime and value.tzinfo is UTC for value in column)
    return UTC_MICROSECONDS if aware else None


def _plan(names: tuple[str, ...], kinds: list[pa.DataType | None]) -> _Plan | None:
    """Return the cached Arrow types for these names and types; None if columns cannot hold them."""
    # Simple Arrow types are singletons, so their ids identify them.
    key = (names, *map(id, kinds))
    plan = _plans.get(key)
    if plan is not None:
        return plan
    if None in kinds or len(names) > PROPERTY_COLUMNS_MAX:
        return None
    for name in names:
        check_property_name(name)
    types = [kind for kind in kinds if kind is not None]
    plan = (pa.struct(list(zip(names, types, strict=True))), types)
    _plans.add(key, plan, len(key))
    return plan


class _Cell(NamedTuple):
    """A property value of one row, with the slot of its column."""

    name: str
    slot: int | None
    """Index of the slot; None if no column can hold the value."""
    plain: Any
    """The value as a plain Python value, for the column."""
    value: Any
    """The value as published, for ``more``."""


def _general(rows: Sequence[Properties | None]) -> PropertyColumns:
    """Return the columns of any rows: types may differ, keys be missing and values be nested."""
    growth = ShapeBuilder(limit=PROPERTY_COLUMNS_MAX)
    places: dict[tuple[str, Shape | None], int | None] = {}
    cells = [_cells(index, row, growth, places) for index, row in enumerate(rows)]
    slots = growth.shape.slots
    kept_slots = {i: slot for i, slot in enumerate(slots) if not holds_empty_struct(slot.shape)}
    shape = StructShape(tuple(kept_slots.values()))
    names = {index: slot.name for index, slot in kept_slots.items()}
    level = Level(shape)
    arrow_rows = [_arrow_row(level, names, row) for row in cells]
    return PropertyColumns(
        _struct([row.fields for row in arrow_rows], shape) if shape.slots else None,
        pa.array([row.sparse for row in arrow_rows])
        if any(row.sparse for row in arrow_rows)
        else None,
        pa.array([row.nulls or None for row in arrow_rows], pa.list_(pa.string()))
        if any(row.nulls for row in arrow_rows)
        else None,
        pa.array([row.more for row in arrow_rows], pa.binary())
        if any(row.more for row in arrow_rows)
        else None,
    )


def _struct(rows: list[dict[str, Any] | None], shape: StructShape) -> pa.StructArray:
    """Return dictionaries as a column of structs in the Arrow type of ``shape``."""
    # Arrow converts a list of dictionaries much faster if it is wrapped in another list.
    return pa.array([rows], pa.list_(arrow_type(shape))).values


def _cells(
    index: int,
    row: Properties | None,
    growth: ShapeBuilder,
    places: dict[tuple[str, Shape | None], int | None],
) -> list[_Cell]:
    """Return the properties of a row, each with the slot of its column. Raises
    :class:`InvalidEvent`."""
    cells = []
    for name, value in (row or {}).items():
        try:
            shape, plain = inspect(value)
        except NotAProperty as error:
            raise refusal(error, index, name) from None
        except RecursionError:
            raise _too_deep(index, name) from None
        if shape is None and levels_of(value) > NESTING_MAX:
            raise _too_deep(index, name)
        key = (name, shape)
        # Rows of a batch mostly have the same names and types, so each pair is checked once.
        if key not in places:
            try:
                check_property_name(name)
            except InvalidEvent as error:
                raise InvalidEvent(f"event {index}: {error}") from None
            levels = 0 if shape is None else nesting(shape)
            if levels > NESTING_MAX:
                raise _too_deep(index, name)
            if shape is None or levels > COLUMN_NESTING_MAX:
                # No column can hold the value: it goes to `more`.
                places[key] = None
            else:
                places[key] = growth.place(name, shape)
        cells.append(_Cell(name, places[key], plain, value))
    return cells


def _too_deep(index: int, name: str) -> InvalidEvent:
    return InvalidEvent(f"event {index}, {overflow.too_deep(name)}")


class _ArrowRow(NamedTuple):
    """A row in the form that Arrow converts."""

    fields: dict[str, Any] | None = None
    sparse: bool = False
    nulls: list[str] = []  # noqa: RUF012 - a default that is never modified
    more: bytes | None = None


def _arrow_row(level: Level, names: dict[int, str], cells: list[_Cell]) -> _ArrowRow:
    """Divide the properties of a row into fields, explicit nulls and ``more``."""
    if not cells:
        return _ArrowRow()
    more_properties = {cell.name: cell.value for cell in cells if cell.slot not in names}
    column_properties = {cell.name: cell.plain for cell in cells if cell.slot in names}
    nulls: list[str] = []
    sparse = _gaps(level, {**more_properties, **column_properties}, "", nulls, skip=more_properties)
    if not level.is_renamed:
        fields = column_properties
    else:
        fields = {
            names[cell.slot]: _arrow_named(
                _column(level.columns[cell.name], cell.plain), cell.plain
            )
            for cell in cells
            if cell.slot in names and cell.plain is not None
        }
    return _ArrowRow(
        fields,
        sparse,
        nulls if sparse else [],
        overflow.encoded(more_properties) if more_properties else None,
    )


def _gaps(
    level: Level,
    value: Mapping[str, Any],
    path: str,
    nulls: list[str],
    skip: Mapping[str, Any] | None = None,
) -> bool:
    """Add the paths of explicit nulls in a dictionary to ``nulls``. Return whether the dictionary
    lacks a key of its level, at any depth, so that its row has to be sparse."""
    lacks = False
    for logical, columns in level.columns.items():
        if skip and logical in skip:
            continue
        if logical not in value:
            lacks = True
            continue
        inner = value[logical]
        if inner is None:
            nulls.append(key_path(path, logical))
        elif isinstance(inner, dict | list):
            inner_level = _column(columns, inner).level
            if inner_level is not None and _gaps_inside(
                inner_level, inner, key_path(path, logical), nulls
            ):
                lacks = True
    return lacks


def _gaps_inside(level: Level, value: Any, path: str, nulls: list[str]) -> bool:
    """Do as :func:`_gaps` for a dictionary, or for each dictionary in a list at any depth."""
    if isinstance(value, dict):
        return _gaps(level, value, path, nulls)
    lacks = False
    for index, element in enumerate(value):
        if element is not None and _gaps_inside(level, element, f"{path}[{index}]", nulls):
            lacks = True
    return lacks


def _column(columns: list[Column], plain: Any) -> Column:
    """Return the column that can hold a value, out of the columns of one name."""
    if len(columns) == 1:
        return columns[0]
    shape, _ = inspect(plain)
    assert shape is not None, "a value columns cannot hold went to `more`"
    for column in columns:
        if fits(column.shape, shape):
            return column
    # The value may have been a narrower number when it was published, which a plain int does not
    # show.
    return next(column for column in columns if united(column.shape, shape) is not None)


def _arrow_named(column: Column, plain: Any) -> Any:
    """Return a plain value with names of Arrow fields in place of dictionary keys."""
    level = column.level
    if level is None or not level.is_renamed:
        return plain
    if isinstance(plain, dict):
        columns = {
            key: _column(level.columns[key], inner)
            for key, inner in plain.items()
            if inner is not None
        }
        return {item.name: _arrow_named(item, plain[key]) for key, item in columns.items()}
    return [None if element is None else _arrow_named(column, element) for element in plain]
