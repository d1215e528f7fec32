"""``+ - * /`` over values (SEM F1).

Operations on whole numbers give whole numbers, as in Java: ``7 / 2`` is 3. A result that does not
fit 64 bits, and a division by zero, is unknown. A time counts as milliseconds since the epoch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.selectors.expressions import ArithmeticOperator
from penstock_core.columns.selectors.lanes import (
    Column,
    Lane,
    LaneType,
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


def calculated(operator: ArithmeticOperator, left: Value, right: Value) -> Value:
    """The value of ``left operator right``, without a lane for types that cannot be combined."""
    return merged(
        tuple(
            _calculated(operator, one, other) for one in numeric(left) for other in numeric(right)
        )
    )


def negated(value: Value) -> Value:
    """``-value``."""
    zero = Lane(LaneType.INTEGER, pa.scalar(0, pa.int64()))
    return tuple(
        _calculated(ArithmeticOperator.SUBTRACT, zero, lane)
        if lane.kind is LaneType.INTEGER
        else Lane(LaneType.FLOAT, pc.negate(lane.column))
        for lane in numeric(value)
    )


def numeric(value: Value) -> Value:
    """The numeric lanes of a value, with times as milliseconds since the epoch."""
    lanes = []
    for lane in value:
        if lane.kind in (LaneType.INTEGER, LaneType.FLOAT):
            lanes.append(lane)
        elif lane.kind is LaneType.TIME:
            lanes.append(Lane(LaneType.INTEGER, floor_divided(lane.column, 1_000)))
    return merged(tuple(lanes))


def _calculated(operator: ArithmeticOperator, left: Lane, right: Lane) -> Lane:
    divisor = right.column
    if operator is ArithmeticOperator.DIVIDE:
        nothing = pa.scalar(None, divisor.type)
        divisor = pc.if_else(pc.equal(divisor, pa.scalar(0, divisor.type)), nothing, divisor)
    if left.kind is LaneType.INTEGER and right.kind is LaneType.INTEGER:
        return Lane(LaneType.INTEGER, _whole(operator, left.column, divisor))
    one, other = (pc.cast(column, pa.float64(), safe=False) for column in (left.column, divisor))
    return Lane(LaneType.FLOAT, getattr(pc, _FLOATING[operator])(one, other))


def _whole(operator: ArithmeticOperator, left: Column, right: Column) -> Column:
    try:
        return getattr(pc, _CHECKED[operator])(left, right)
    except pa.ArrowInvalid:
        return _without_overflow(operator, left, right)


def _without_overflow(operator: ArithmeticOperator, left: Column, right: Column) -> Column:
    """The result of ``_whole``, but null in rows where it does not fit 64 bits."""
    if isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar):
        return pa.scalar(None, pa.int64())
    rows = len(left if isinstance(left, pa.Array) else right)
    one, no_left = _numbers(left, rows)
    other, no_right = _numbers(right, rows)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        result, overflows = _wrapped(operator, one, other)
    return pa.array(result, mask=overflows | no_left | no_right)


def _numbers(column: Column, rows: int) -> tuple[Any, Any]:
    return numbers_of(pa.repeat(column, rows) if isinstance(column, pa.Scalar) else column)


def _wrapped(operator: ArithmeticOperator, one: Any, other: Any) -> tuple[Any, Any]:
    """The result modulo 2 ** 64, and a mask of the rows where that is wrong."""
    match operator:
        case ArithmeticOperator.ADD:
            result = one + other
            return result, ((one ^ result) & (other ^ result)) < 0
        case ArithmeticOperator.SUBTRACT:
            result = one - other
            return result, ((one ^ other) & (one ^ result)) < 0
        case ArithmeticOperator.MULTIPLY:
            result = one * other
            divisor = np.where(other == 0, 1, other)
            flips = (one == _LEAST) & (other == -1)
            return result, flips | ((other != 0) & (np.floor_divide(result, divisor) != one))
        case ArithmeticOperator.DIVIDE:
            overflows = (one == _LEAST) & (other == -1)
            divisor = np.where((other == 0) | overflows, 1, other)
            quotient = np.floor_divide(one, divisor)
            # NumPy rounds down, Java rounds towards zero.
            inexact = (quotient * divisor != one) & ((one < 0) != (divisor < 0))
            return quotient + inexact, overflows
