"""The six comparisons. Values of types that do not compare give unknown (SEM F1).

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
from penstock_core.columns.selectors.lanes import (
    UNKNOWN,
    Column,
    LaneType,
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
"""By comparison, the equivalent one with its sides swapped."""
_TIMES: Final = (LaneType.TIME, LaneType.MOMENT)
_NUMBERS: Final = (LaneType.INTEGER, LaneType.FLOAT)
_EQUALITIES: Final = (Comparison.EQUAL, Comparison.UNEQUAL)
_EXACT: Final = float(1 << 53)
"""Whole numbers below this convert to float without loss."""


def compared(operator: Comparison, left: Value, right: Value) -> Column:
    """The outcome of ``left operator right`` by row; null where it is unknown."""
    found = []
    for kind, column in left:
        for other, against in right:
            outcome = _compared(operator, kind, column, other, against)
            if outcome is not None:
                found.append(outcome)
    return first_known(found)


def _compared(
    operator: Comparison, kind: LaneType, left: Column, other: LaneType, right: Column
) -> Column | None:
    if kind is LaneType.TIME and other in _NUMBERS:
        kind, left = LaneType.INTEGER, floor_divided(left, 1_000)
    elif other is LaneType.TIME and kind in _NUMBERS:
        other, right = LaneType.INTEGER, floor_divided(right, 1_000)
    if (kind is LaneType.TIME and other in _TIMES) or (
        kind is LaneType.MOMENT and other is LaneType.TIME
    ):
        return getattr(pc, _FUNCTIONS[operator])(left, right)
    if kind is LaneType.INTEGER and other is LaneType.FLOAT:
        return _mixed(operator, left, right)
    if kind is LaneType.FLOAT and other is LaneType.INTEGER:
        return _mixed(MIRRORED[operator], right, left)
    if kind is not other or kind in (LaneType.OTHER, LaneType.MOMENT):
        return None
    if kind is LaneType.TRUTH and operator not in _EQUALITIES:
        return None
    return getattr(pc, _FUNCTIONS[operator])(left, right)


def _mixed(operator: Comparison, whole: Column, floating: Column) -> Column:
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
    """The exact comparison of rows that are equal after rounding to float."""
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
    """Both as whole numbers. 2 ** 63, one too large for int64, becomes a pair in the same order."""
    floats = np.asarray(floating, dtype=np.float64)
    too_large = floats >= 2.0**63
    within = np.where(np.isfinite(floats) & (np.abs(floats) < 2.0**63), floats, 0.0)
    exact = within.astype(np.int64)
    exact = np.where(floats == -(2.0**63), np.int64(-(1 << 63)), exact)
    left = np.where(too_large, np.int64(0), np.asarray(whole, dtype=np.int64))
    return left, np.where(too_large, np.int64(1), exact)
