"""Validation of bodies from clients, before any other code reads them."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from penstock_core.bounds import TTL_MS_MAX
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.layout import (
    BODY,
    BODY_ROWS_MAX,
    DELIVERY_TIME,
    HEADERS,
    PRIORITY_MAX,
    PROPERTY_COLUMNS_MAX,
    PROPERTY_TYPES,
    STAMPED,
    check_property_name,
)
from penstock_core.columns.schema.properties import COLUMN_NESTING_MAX
from penstock_core.columns.schema.schema_cache import SchemaMemo
from penstock_core.columns.schema.shapes import (
    ListShape,
    Shape,
    StructShape,
    Unsupported,
    holds_empty_struct,
    leaf_count,
    nesting,
    struct_shape,
    united,
)
from penstock_core.vocabulary.errors import InvalidEvent

_NESTED: Final = ("properties", "headers")

_YEAR_1: Final = -62_135_596_800_000_000
"""Start of the year 1, in microseconds since 1970: the earliest time that Python represents."""
_YEAR_9999_END: Final = 253_402_300_799_999_999
"""End of the year 9999, in microseconds since 1970: the latest time that Python represents."""


def check_body(batch: pa.RecordBatch) -> None:
    """Raise :class:`InvalidEvent` unless ``batch`` is a body as described in
    :mod:`penstock_core.columns.schema.layout`.

    Checks the columns, their types and buffers, and the values: ``data`` has no nulls, ``ttl`` and
    ``priority`` are in bounds, timestamps are in the years 1 to 9999, ``more`` can be decoded.
    Refuses a batch without events, and a body with parts that only the realm may write: ids, times,
    ``origin``, properties with the reserved prefix.
    """
    if batch.num_rows > BODY_ROWS_MAX:
        raise InvalidEvent(
            f"the batch has {batch.num_rows} events; publish at most {BODY_ROWS_MAX} at once"
        )
    checked_columns = _schemas.of(batch.schema)
    try:
        # Before any value is read: damaged offsets would make readers leave the buffers.
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidEvent(f"the batch is damaged: {error}") from error
    if not batch.num_rows:
        raise InvalidEvent("the batch has no events; publish at least one")
    if not checked_columns:
        return
    # Nulls in lists take no bytes: without this limit a few offsets could claim billions of them.
    elements_max = max(BODY_ROWS_MAX, 8 * batch.nbytes) if checked_columns[-1][1] in _NESTED else 0
    for index, name in checked_columns:
        _check_values(name, batch.column(index), elements_max)


def check_schema(schema: pa.Schema) -> None:
    """Raise :class:`InvalidEvent` for a schema that no body may have."""
    _schemas.of(schema)


def _check_values(name: str, column: pa.Array, elements_max: int) -> None:
    """Raise :class:`InvalidEvent` for a value that the column of a body may not have."""
    if name == "data" and column.null_count:
        raise InvalidEvent(f"data has {column.null_count} nulls; use empty bytes")
    if name == "ttl":
        _check_range(name, column, 0, high=TTL_MS_MAX)
    elif name == "priority":
        _check_range(name, column, 0, high=PRIORITY_MAX)
    elif name == "more":
        for cell in column.drop_null().to_pylist():
            for property_name in overflow.decoded(cell):
                check_property_name(property_name)
            overflow.check_nesting(cell)
    elif name in _NESTED or name == DELIVERY_TIME:
        _check_nested(name, column, elements_max)


def _check_schema(schema: pa.Schema) -> tuple[tuple[int, str], ...]:
    """Return index and name of each column whose values must be checked, nested columns last.
    Raises :class:`InvalidEvent`."""
    try:
        for field in schema:
            _check_field(field)
        if len(set(schema.names)) < len(schema.names):
            raise InvalidEvent(f"a column name appears twice: {', '.join(schema.names)}")
    except UnicodeDecodeError as error:
        raise InvalidEvent(f"a field name is not UTF-8: {error}") from None
    except Unsupported as error:
        raise InvalidEvent(
            f"{error.path} has type {error.kind}, which properties cannot have ({PROPERTY_TYPES})"
        ) from None
    checked = ((i, field.name) for i, field in enumerate(schema) if _has_rules(field))
    # Nested columns last, so that the last entry shows check_body() whether one exists.
    return tuple(sorted(checked, key=lambda column: column[1] in _NESTED))


def _has_rules(field: pa.Field) -> bool:
    """Whether the values of a column must be checked."""
    if field.name in _NESTED:
        return _holds_checked_type(field.type)
    return field.name in ("data", "ttl", "priority", "more", DELIVERY_TIME)


def _holds_checked_type(kind: pa.DataType) -> bool:
    """Whether the type contains lists, whose length is limited, or timestamps, whose years are
    limited."""
    if pa.types.is_struct(kind):
        return any(_holds_checked_type(field.type) for field in kind)
    return bool(pa.types.is_list(kind) or pa.types.is_timestamp(kind))


_schemas = SchemaMemo(_check_schema)


def _check_field(field: pa.Field) -> None:
    """Raise :class:`InvalidEvent` if a body may not have this column."""
    name = field.name
    if name in STAMPED or name == "origin":
        raise InvalidEvent(f"column {name!r} is set by the realm; leave it out")
    if name not in BODY:
        raise InvalidEvent(
            f"unknown column {name!r}; allowed are {', '.join(BODY)}; put it in properties"
        )
    kind = BODY[name]
    if kind is not None:
        if field.type != kind:
            raise InvalidEvent(f"column {name!r} has type {field.type}; it must be {kind}")
    elif not pa.types.is_struct(field.type):
        raise InvalidEvent(f"column {name!r} has type {field.type}; it must be a struct")
    elif name == "headers":
        _check_headers(field.type)
    else:
        check_properties(struct_shape(field.type, "properties"))


def _check_headers(kind: pa.StructType) -> None:
    """Raise :class:`InvalidEvent` for unknown headers or wrong types."""
    names = [kind.field(index).name for index in range(kind.num_fields)]
    for index, name in enumerate(names):
        expected = HEADERS.get(name)
        if expected is None:
            raise InvalidEvent(f"unknown header {name!r}; allowed are {', '.join(HEADERS)}")
        if kind.field(index).type != expected:
            raise InvalidEvent(
                f"header {name!r} has type {kind.field(index).type}; it must be {expected}"
            )
    if not names or len(set(names)) < len(names):
        raise InvalidEvent(
            f"headers must have fields with distinct names; it has: {', '.join(names) or 'none'}"
        )


def check_properties(shape: StructShape) -> None:
    """Raise :class:`InvalidEvent` for a properties struct that a correct publisher never sends."""
    if leaf_count(shape) > PROPERTY_COLUMNS_MAX:
        raise InvalidEvent(
            f"properties has {leaf_count(shape)} columns; at most {PROPERTY_COLUMNS_MAX}; put the "
            f"rest into the column 'more'"
        )
    if holds_empty_struct(shape):
        raise InvalidEvent("properties has a struct without fields; use the column 'more'")
    if nesting(shape) > COLUMN_NESTING_MAX + 1:
        raise InvalidEvent(
            f"properties are nested {nesting(shape)} deep; beyond {COLUMN_NESTING_MAX} use 'more'"
        )
    _check_slots(shape)


def _check_slots(shape: Shape) -> None:
    """Raise :class:`InvalidEvent` for invalid names, and for fields of one name that could be one
    field."""
    if isinstance(shape, ListShape):
        _check_slots(shape.element)
    if not isinstance(shape, StructShape):
        return
    names = [slot.name for slot in shape.slots]
    if len(set(names)) < len(names):
        raise InvalidEvent(f"a property field appears twice: {', '.join(names)}")
    by_name: dict[str, list[Shape]] = {}
    for slot in shape.slots:
        check_property_name(slot.logical)
        for earlier_shape in by_name.get(slot.logical, ()):
            if united(earlier_shape, slot.shape) is not None:
                raise InvalidEvent(
                    f"property {slot.logical!r} has two fields whose types could share one"
                )
        by_name.setdefault(slot.logical, []).append(slot.shape)
        _check_slots(slot.shape)


def _check_range(name: str, column: pa.Array, low: int, high: int) -> None:
    # Events without a value are in range.
    values = (column.fill_null(low) if column.null_count else column).to_numpy()
    wrong = (values < low) | (values > high)
    if wrong.any():
        event = int(np.argmax(wrong))
        raise InvalidEvent(f"event {event}: {name} {values[event]} is not in {low}..{high}")


def _check_nested(name: str, array: pa.Array, elements_max: int) -> None:
    """Raise :class:`InvalidEvent` for times out of range, and for lists that claim too many
    elements."""
    kind = array.type
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            _check_nested(f"{name}.{field.name}", child, elements_max)
    elif pa.types.is_list(kind):
        elements = array.offsets[-1].as_py() - array.offsets[0].as_py()
        if elements > elements_max:
            raise InvalidEvent(f"{name} has {elements} elements, more than its bytes can hold")
        # The number is checked before the elements are read, because that takes time for each.
        if pa.types.is_nested(kind.value_type) or pa.types.is_timestamp(kind.value_type):
            _check_nested(f"{name}[]", array.flatten(), elements_max)
    elif pa.types.is_timestamp(kind):
        micros = array.view(pa.int64())
        values = (micros.fill_null(0) if micros.null_count else micros).to_numpy()
        if ((values < _YEAR_1) | (values > _YEAR_9999_END)).any():
            raise InvalidEvent(f"{name} holds a timestamp outside the years 1 to 9999")
