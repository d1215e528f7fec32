"""``+ - * /`` over values (SEM F1).

Operations on whole numbers return whole numbers, as in Java: ``7 / 2`` is 3. The result is unknown
if it does not fit 64 bits, or after a division by zero. A time counts as milliseconds since the
epoch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.selectors.expressions import ArithmeticOperator
from penstock_core.columns.selectors.typed_columns import (
    Column,
    ColumnType,
    TypedColumn,
    Value,
    floor_divided,
    merged,
    numbers_of,
)

_CHECKED: Final[dict[ArithmeticOperator, str]] = {
    ArithmeticOperator.ADD: "add_checked",
    ArithmeticOperator.SUBTRACT: "subtract_checked",
    ArithmeticOperator.MULTIPLY: "multiply_checked",
    ArithmeticOperator.DIVIDE: "divide_checked",
}
_FLOATING: Final[dict[ArithmeticOperator, str]] = {
    ArithmeticOperator.ADD: "add",
    ArithmeticOperator.SUBTRACT: "subtract",
    ArithmeticOperator.MULTIPLY: "multiply",
    ArithmeticOperator.DIVIDE: "divide",
}
_LEAST: Final = -(1 << 63)
"""The smallest integer of 64 bits."""


def calculated(operator: ArithmeticOperator, left: Value, right: Value) -> Value:
    """Return the value of ``left operator right``, without a typed column for types that cannot be
    combined."""
    return merged(
        tuple(
            _calculated(operator, left_lane, right_lane)
            for left_lane in numeric(left)
            for right_lane in numeric(right)
        )
    )


def negated(value: Value) -> Value:
    """Return ``-value``."""
    zero = TypedColumn(ColumnType.INTEGER, pa.scalar(0, pa.int64()))
    return tuple(
        # The smallest integer has no negative: the checked subtraction makes it unknown.
        _calculated(ArithmeticOperator.SUBTRACT, zero, typed_column)
        if typed_column.kind is ColumnType.INTEGER
        else TypedColumn(ColumnType.FLOAT, pc.negate(typed_column.column))
        for typed_column in numeric(value)
    )


def numeric(value: Value) -> Value:
    """Return the numeric columns of a value, with times as milliseconds since the epoch."""
    typed_columns = []
    for typed_column in value:
        if typed_column.kind in (ColumnType.INTEGER, ColumnType.FLOAT):
            typed_columns.append(typed_column)
        elif typed_column.kind is ColumnType.TIME:
            typed_columns.append(
                TypedColumn(ColumnType.INTEGER, floor_divided(typed_column.column, 1_000))
            )
    return merged(tuple(typed_columns))


def _calculated(operator: ArithmeticOperator, left: TypedColumn, right: TypedColumn) -> TypedColumn:
    """Return the result of an operation on two typed columns, unknown after a division by zero."""
    divisor = right.column
    # Arrow would raise an error for a division by zero; with null the result is unknown.
    if operator is ArithmeticOperator.DIVIDE:
        null = pa.scalar(None, divisor.type)
        divisor = pc.if_else(pc.equal(divisor, pa.scalar(0, divisor.type)), null, divisor)
    if left.kind is ColumnType.INTEGER and right.kind is ColumnType.INTEGER:
        return TypedColumn(ColumnType.INTEGER, _whole_result(operator, left.column, divisor))
    left_floats, right_floats = (
        pc.cast(column, pa.float64(), safe=False) for column in (left.column, divisor)
    )
    return TypedColumn(
        ColumnType.FLOAT, getattr(pc, _FLOATING[operator])(left_floats, right_floats)
    )


def _whole_result(operator: ArithmeticOperator, left: Column, right: Column) -> Column:
    """Return the result of an operation on whole numbers; null in rows where it does not fit."""
    # The checked function of Arrow fails for the whole column if one row overflows, which is rare.
    try:
        return getattr(pc, _CHECKED[operator])(left, right)
    except pa.ArrowInvalid:
        return _without_overflow(operator, left, right)


def _without_overflow(operator: ArithmeticOperator, left: Column, right: Column) -> Column:
    """Return the result of ``_whole_result``, but null in rows where it does not fit 64 bits."""
    if isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar):
        return pa.scalar(None, pa.int64())
    rows = len(left if isinstance(left, pa.Array) else right)
    left_numbers, no_left = _numbers(left, rows)
    right_numbers, no_right = _numbers(right, rows)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        result, overflows = _wrapped(operator, left_numbers, right_numbers)
    return pa.array(result, mask=overflows | no_left | no_right)


def _numbers(column: Column, rows: int) -> tuple[Any, Any]:
    return numbers_of(pa.repeat(column, rows) if isinstance(column, pa.Scalar) else column)


def _wrapped(operator: ArithmeticOperator, left: Any, right: Any) -> tuple[Any, Any]:
    """Return the result modulo 2 ** 64, and a mask of the rows whose exact result does not fit 64
    bits."""
    match operator:
        case ArithmeticOperator.ADD:
            result = left + right
            # Only a sum whose sign differs from the signs of both operands has overflowed.
            return result, ((left ^ result) & (right ^ result)) < 0
        case ArithmeticOperator.SUBTRACT:
            result = left - right
            return result, ((left ^ right) & (left ^ result)) < 0
        case ArithmeticOperator.MULTIPLY:
            result = left * right
            divisor = np.where(right == 0, 1, right)
            # The division below does not notice this overflow: product and quotient both wrap to
            # the smallest integer.
            flips = (left == _LEAST) & (right == -1)
            return result, flips | ((right != 0) & (np.floor_divide(result, divisor) != left))
        case ArithmeticOperator.DIVIDE:
            overflows = (left == _LEAST) & (right == -1)
            divisor = np.where((right == 0) | overflows, 1, right)
            quotient = np.floor_divide(left, divisor)
            # NumPy rounds down, Java rounds towards zero.
            inexact = (quotient * divisor != left) & ((left < 0) != (divisor < 0))
            return quotient + inexact, overflows
