"""The values of a name, split into typed columns.

A property may be a number in some events and text in others. It is stored as one column per type
and read as one *value* with several typed columns. In every row at most one of these columns is
set, so an operation works on one typed column after the other and merges the results.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc

Column = Any
"""A pyarrow array, or a scalar for one value in every row. pyarrow has no type hints."""

_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_INT64_MAX: Final = (1 << 63) - 1


class ColumnType(Enum):
    """The type of a typed column, and how its values are stored."""

    TRUTH = "bool"
    TEXT = "string"
    INTEGER = "int64"
    FLOAT = "float64"
    TIME = "int64 microseconds since the epoch"
    MOMENT = "a time written as text; compares with times only"
    OTHER = "anything; present or not is all that counts"


class TypedColumn(NamedTuple):
    """The values of a name that have one type; null in the other rows."""

    kind: ColumnType
    column: Column


Value = tuple[TypedColumn, ...]
"""The value of an expression in every row; a row that is null in all columns is unknown."""

UNKNOWN: Final[Column] = pa.nulls(1, pa.bool_())[0]
"""The scalar null. The first call of ``pa.scalar`` would import pandas if it is installed."""


def value_of(columns: list[Column]) -> Value:
    """Return the value of a name that is stored in ``columns``."""
    typed_columns = map(typed_column_of, columns)
    return tuple(typed_column for typed_column in typed_columns if typed_column is not None)


def typed_column_of(column: Column) -> TypedColumn | None:
    """Return the typed column of a stored column; None for a type that only holds nulls."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_boolean(kind):
        return TypedColumn(ColumnType.TRUTH, column)
    if pa.types.is_timestamp(kind):
        return TypedColumn(ColumnType.TIME, _microseconds(column))
    # Before the table of types: a cast to int64 would fail for numbers above its maximum.
    if pa.types.is_uint64(kind):
        return _unsigned(column)
    if pa.types.is_decimal(kind):
        return TypedColumn(ColumnType.OTHER, column)
    for column_type, test, stored in _STORED:
        if test(kind):
            return TypedColumn(column_type, column if kind == stored else column.cast(stored))
    return TypedColumn(ColumnType.OTHER, column)


_STORED: Final = (
    (ColumnType.TEXT, pa.types.is_string, pa.string()),
    (ColumnType.TEXT, pa.types.is_large_string, pa.string()),
    (ColumnType.INTEGER, pa.types.is_integer, pa.int64()),
    (ColumnType.FLOAT, pa.types.is_floating, pa.float64()),
)


def _unsigned(column: Column) -> TypedColumn:
    """Return the typed column of unsigned numbers; if one of them exceeds int64, all become the
    nearest doubles."""
    maximum = pc.max(column).as_py()
    if maximum is None or maximum <= _INT64_MAX:
        return TypedColumn(ColumnType.INTEGER, column.cast(pa.int64()))
    # A safe cast would refuse integers that have no exact double.
    return TypedColumn(ColumnType.FLOAT, column.cast(pa.float64(), safe=False))


def _microseconds(column: Column) -> Column:
    """Return a column of times as microseconds since the epoch; unknown if that exceeds 64 bits."""
    unit = column.type.unit
    ticks = column.view(pa.int64())
    if unit == "us":
        return ticks
    if unit == "ns":
        return floor_divided(ticks, 1_000)
    factor = _MICROSECONDS[unit]
    limit = _INT64_MAX // factor
    fits = pc.and_(pc.greater_equal(ticks, -limit), pc.less_equal(ticks, limit))
    return pc.multiply(pc.if_else(fits, ticks, pa.scalar(None, pa.int64())), factor)


def floor_divided(column: Column, divisor: int) -> Column:
    """Return an int64 column divided and rounded down."""
    if isinstance(column, pa.Scalar):
        return pa.scalar(None if column.as_py() is None else column.as_py() // divisor, pa.int64())
    numbers, absent = numbers_of(column)
    # NumPy divides here, because Arrow's division rounds towards zero.
    return pa.array(np.floor_divide(numbers, divisor), mask=absent)


def numbers_of(column: Column) -> tuple[Any, Any]:
    """Return a numeric column as a NumPy array, and the mask of its nulls."""
    absent = column.is_null().to_numpy(zero_copy_only=False)
    # Arrow would convert integers with nulls to doubles, which lose digits.
    filled = column.fill_null(0) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False), absent


def merged(typed_columns: Value) -> Value:
    """Return a value with at most one typed column per kind, merged from ``typed_columns``."""
    by_kind: dict[ColumnType, Column] = {}
    for kind, column in typed_columns:
        by_kind[kind] = pc.coalesce(by_kind[kind], column) if kind in by_kind else column
    return tuple(TypedColumn(kind, column) for kind, column in by_kind.items())


def truth(value: Value) -> Column:
    """Return a value as a condition: unknown where it is neither true nor false."""
    columns = [column for kind, column in value if kind is ColumnType.TRUTH]
    return first_known(columns)


def first_known(columns: list[Column]) -> Column:
    """Return, for each row, the first value that is not null; unknown if all are null."""
    if not columns:
        return UNKNOWN
    return columns[0] if len(columns) == 1 else pc.coalesce(*columns)


def kleene_and(left: Column, right: Column) -> Column:
    """Return AND in three-valued logic."""
    return (pc.and_kleene if _may_be_unknown(left, right) else pc.and_)(left, right)


def kleene_or(left: Column, right: Column) -> Column:
    """Return OR in three-valued logic."""
    return (pc.or_kleene if _may_be_unknown(left, right) else pc.or_)(left, right)


def _may_be_unknown(*columns: Column) -> bool:
    """Whether any column has nulls. Without nulls, two-valued logic is many times faster."""
    return any(
        not column.is_valid if isinstance(column, pa.Scalar) else column.null_count > 0
        for column in columns
    )


def rows_of(column: Column, rows: int) -> Column:
    """Return ``column`` as an array of ``rows`` rows, also if it is a scalar."""
    return pa.repeat(column, rows) if isinstance(column, pa.Scalar) else column
