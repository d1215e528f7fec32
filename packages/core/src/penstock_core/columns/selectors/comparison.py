"""The six comparisons. The outcome for values of types that do not compare is unknown (SEM F1).

Text compares by code point, with all six operators (JMS allows only ``=`` and ``<>``). Booleans
compare with ``=`` and ``<>``. A time compares with another time and with literal ISO 8601 text to
the microsecond, and with a number as whole milliseconds since the epoch. Text without a zone is
UTC. Whole numbers and floats compare exactly, without rounding one to the other.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.selectors.expressions import Comparison
from penstock_core.columns.selectors.typed_columns import (
    UNKNOWN,
    Column,
    ColumnType,
    Value,
    first_known,
    floor_divided,
    numbers_of,
)

_FUNCTIONS: Final[dict[Comparison, str]] = {
    Comparison.EQUAL: "equal",
    Comparison.UNEQUAL: "not_equal",
    Comparison.LESS: "less",
    Comparison.GREATER: "greater",
    Comparison.AT_MOST: "less_equal",
    Comparison.AT_LEAST: "greater_equal",
}
_NUMPY: Final[dict[Comparison, Any]] = {
    Comparison.EQUAL: np.equal,
    Comparison.UNEQUAL: np.not_equal,
    Comparison.LESS: np.less,
    Comparison.GREATER: np.greater,
    Comparison.AT_MOST: np.less_equal,
    Comparison.AT_LEAST: np.greater_equal,
}
MIRRORED: Final = {
    Comparison.EQUAL: Comparison.EQUAL,
    Comparison.UNEQUAL: Comparison.UNEQUAL,
    Comparison.LESS: Comparison.GREATER,
    Comparison.GREATER: Comparison.LESS,
    Comparison.AT_MOST: Comparison.AT_LEAST,
    Comparison.AT_LEAST: Comparison.AT_MOST,
}
"""The equivalent comparison with its sides swapped, for each comparison."""
_TIMES: Final = (ColumnType.TIME, ColumnType.MOMENT)
_NUMBERS: Final = (ColumnType.INTEGER, ColumnType.FLOAT)
_EQUALITIES: Final = (Comparison.EQUAL, Comparison.UNEQUAL)
_EXACT: Final = float(1 << 53)
"""Whole numbers below this bound convert to float without loss."""


def compared(operator: Comparison, left: Value, right: Value) -> Column:
    """Return the outcome of ``left operator right`` by row; null where it is unknown."""
    outcomes = []
    for kind, column in left:
        for right_kind, right_column in right:
            outcome = _compared(operator, kind, column, right_kind, right_column)
            if outcome is not None:
                outcomes.append(outcome)
    return first_known(outcomes)


def _compared(
    operator: Comparison, left_kind: ColumnType, left: Column, right_kind: ColumnType, right: Column
) -> Column | None:
    """Return the comparison of two typed columns; None if their types do not compare."""
    # A time compares with a number as milliseconds since 1970; its own unit is microseconds.
    if left_kind is ColumnType.TIME and right_kind in _NUMBERS:
        left_kind, left = ColumnType.INTEGER, floor_divided(left, 1_000)
    elif right_kind is ColumnType.TIME and left_kind in _NUMBERS:
        right_kind, right = ColumnType.INTEGER, floor_divided(right, 1_000)
    if (left_kind is ColumnType.TIME and right_kind in _TIMES) or (
        left_kind is ColumnType.MOMENT and right_kind is ColumnType.TIME
    ):
        return getattr(pc, _FUNCTIONS[operator])(left, right)
    if left_kind is ColumnType.INTEGER and right_kind is ColumnType.FLOAT:
        return _mixed(operator, left, right)
    if left_kind is ColumnType.FLOAT and right_kind is ColumnType.INTEGER:
        return _mixed(MIRRORED[operator], right, left)
    if left_kind is not right_kind or left_kind in (ColumnType.OTHER, ColumnType.MOMENT):
        return None
    if left_kind is ColumnType.TRUTH and operator not in _EQUALITIES:
        return None
    return getattr(pc, _FUNCTIONS[operator])(left, right)


def _mixed(operator: Comparison, whole: Column, floating: Column) -> Column:
    """Return the exact comparison of whole numbers with floats."""
    # Compare as floats first, then correct the few rows that rounding may affect.
    rounded = pc.cast(whole, pa.float64(), safe=False)
    outcome = getattr(pc, _FUNCTIONS[operator])(rounded, floating)
    if isinstance(whole, pa.Scalar) and whole.is_valid and abs(whole.as_py()) < _EXACT:
        return outcome  # no value was rounded
    # Rounding keeps the order, so only equality with a large float can be wrong.
    largest = pc.max(pc.abs(floating)) if isinstance(floating, pa.Array) else pc.abs(floating)
    if not (largest.is_valid and largest.as_py() >= _EXACT):
        return outcome
    tied = pc.equal(rounded, floating)
    return pc.if_else(tied, _whole_ties(operator, whole, floating), outcome)


def _whole_ties(operator: Comparison, whole: Column, floating: Column) -> Column:
    """Return the exact comparison of rows that are equal after rounding to float."""
    if isinstance(whole, pa.Scalar) and isinstance(floating, pa.Scalar):
        if not (whole.is_valid and floating.is_valid):
            return UNKNOWN
        return pa.scalar(bool(_NUMPY[operator](*_as_whole(whole.as_py(), floating.as_py()))))
    numbers = [_numbers(column) for column in (whole, floating)]
    left, right = _as_whole(*numbers)
    return pa.array(_NUMPY[operator](left, right))


def _numbers(column: Column) -> Any:
    if isinstance(column, pa.Scalar):
        return column.as_py() if column.is_valid else 0
    return numbers_of(column)[0]


def _as_whole(whole: Any, floating: Any) -> tuple[Any, Any]:
    """Return both columns as whole numbers whose comparison is the same. A float of 2 ** 63 is too
    large for int64: it becomes 1, and the whole number beside it becomes 0."""
    floats = np.asarray(floating, dtype=np.float64)
    too_large = floats >= 2.0**63
    in_bounds = np.where(np.isfinite(floats) & (np.abs(floats) < 2.0**63), floats, 0.0)
    exact = in_bounds.astype(np.int64)
    exact = np.where(floats == -(2.0**63), np.int64(-(1 << 63)), exact)
    comparable = np.where(too_large, np.int64(0), np.asarray(whole, dtype=np.int64))
    return comparable, np.where(too_large, np.int64(1), exact)
