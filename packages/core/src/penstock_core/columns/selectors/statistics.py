"""Decides from bounds of columns whether a part of the store can have a matching event.

For a whole part this module derives whether an expression *may hold* (be true) and whether it *may
fail* (be false) for some event. An expression may be unknown in any case. An expression that is not
handled here may hold and may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from operator import add, mul, sub
from typing import Any, Final, NamedTuple

from penstock_core.columns.schema.layout import PRIORITY_DEFAULT
from penstock_core.columns.schema.moments import us_of
from penstock_core.columns.selectors.comparison import MIRRORED
from penstock_core.columns.selectors.compiler import microseconds
from penstock_core.columns.selectors.expressions import (
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Compare,
    Comparison,
    Expression,
    Float,
    In,
    Integer,
    IsNull,
    Like,
    Literal,
    Matches,
    Not,
    Now,
    Or,
    Reference,
    Text,
    Truth,
    each_references,
)
from penstock_core.columns.selectors.headers import column_path
from penstock_core.columns.selectors.patterns import parts
from penstock_core.vocabulary.topics import fixed_part, topic_matches


class ColumnStatistics(NamedTuple):
    """Bounds of one column in one part of the store; unknown fields are None.

    Values are Python objects: numbers, text, booleans, and times with a time zone.
    """

    minimum: Any = None
    """A lower bound of all values except NaN; text is ordered by code point."""
    maximum: Any = None
    """An upper bound of all values except NaN."""
    null_count: int | None = None
    """Number of events without a value."""
    distinct: Sequence[Any] | None = None
    """Distinct values, which include all values of the column."""

    @property
    def has_no_value(self) -> bool:
        """Whether the column has only nulls, or does not exist."""
        return self.distinct is not None and not self.distinct


NOTHING_KNOWN: Final = ColumnStatistics()
"""Statistics of a column that may have any values."""
ONLY_NULLS: Final = ColumnStatistics(distinct=())
"""Statistics of a column without values."""


class Outcomes(NamedTuple):
    """The possible outcomes of an expression, in addition to unknown."""

    may_hold: bool
    """Whether the expression may be true."""
    may_fail: bool
    """Whether the expression may be false."""

    def reversed(self) -> Outcomes:
        """Return the possible outcomes of the negated expression."""
        return Outcomes(self.may_fail, self.may_hold)


ANYTHING: Final = Outcomes(may_hold=True, may_fail=True)
UNKNOWN: Final = Outcomes(may_hold=False, may_fail=False)

_LEAST: Final = -(1 << 63)
"""The smallest integer of 64 bits."""
_FEW: Final = 64
"""Longer lists of options are compared with the bounds all at once.

To compare the options of a longer list one by one would take more time than reading the events.
"""


class StoreStatistics(NamedTuple):
    """The statistics of a part of the store, and the current time."""

    columns: Mapping[str, ColumnStatistics]
    """Statistics by column path."""
    now_us: int | None = None
    """The time of ``NOW()`` in microseconds; None if it differs between events."""


def outcomes(node: Expression, statistics: StoreStatistics) -> Outcomes:
    """Return the possible outcomes of ``node`` in a part of the store."""
    match node:
        case And(operands):
            parts_outcomes = [outcomes(operand, statistics) for operand in operands]
            return Outcomes(
                all([o.may_hold for o in parts_outcomes]), any([o.may_fail for o in parts_outcomes])
            )
        case Or(operands):
            parts_outcomes = [outcomes(operand, statistics) for operand in operands]
            return Outcomes(
                any([o.may_hold for o in parts_outcomes]), all([o.may_fail for o in parts_outcomes])
            )
        case Not(operand):
            return outcomes(operand, statistics).reversed()
        case Compare(operator, left, right):
            return _compare(operator, left, right, statistics=statistics)
        case Between(operand, low, high, negated):
            ends = And(
                (
                    Compare(Comparison.AT_LEAST, operand, low),
                    Compare(Comparison.AT_MOST, operand, high),
                )
            )
            return _reversed_if(outcomes(ends, statistics), is_turned=negated)
        case In(operand, options, negated):
            return _reversed_if(_in(operand, options, statistics), is_turned=negated)
        case Like() | Matches():
            return _reversed_if(_pattern(node, statistics), is_turned=node.negated)
        case IsNull(Reference() as reference, negated):
            return _reversed_if(_is_null(reference, statistics), is_turned=negated)
        case Reference() | Truth():
            return _plain(node, statistics)
        case _:
            return ANYTHING


def _in(operand: Expression, options: Sequence[Literal], statistics: StoreStatistics) -> Outcomes:
    """Return the possible outcomes of ``IN``, from those of the equivalent comparisons."""
    if len(options) > _FEW:
        return _among(operand, options, statistics)
    equals = [Compare(Comparison.EQUAL, operand, option) for option in options]
    return outcomes(Or(tuple(equals)), statistics)


def _among(
    operand: Expression, options: Sequence[Literal], statistics: StoreStatistics
) -> Outcomes:
    """Return the outcomes of a long list of options. ``IN`` may hold if an option is within the
    bounds of the column."""
    column = _statistics_of(operand, statistics) if isinstance(operand, Reference) else None
    if column is None:
        return ANYTHING
    if column.has_no_value:
        return UNKNOWN
    low, high, values = column.minimum, column.maximum, [option.value for option in options]
    samples = (low, high, *(column.distinct or ()), *values)
    types = {_BOUND_TYPES.get(type(sample)) for sample in samples}
    # Values of several types do not compare, and a bound may be NaN.
    if types not in ({_BoundType.NUMBER}, {_BoundType.TEXT}) or not low <= high:
        return ANYTHING
    in_bounds = (value for value in values if low <= value <= high)
    if column.distinct is None:
        return Outcomes(any(True for _ in in_bounds), may_fail=True)
    return Outcomes(any(value in column.distinct for value in in_bounds), may_fail=True)


def _plain(node: Reference | Truth, statistics: StoreStatistics) -> Outcomes:
    """Return the possible outcomes of a reference or literal that is used as a condition."""
    if isinstance(node, Truth):
        return Outcomes(may_hold=node.value, may_fail=not node.value)
    return _compare(Comparison.EQUAL, node, Truth(value=True), statistics=statistics)


def _reversed_if(result: Outcomes, *, is_turned: bool) -> Outcomes:
    """Return the opposite outcomes if ``is_turned``, otherwise the outcomes themselves."""
    return result.reversed() if is_turned else result


def _statistics_of(reference: Reference, statistics: StoreStatistics) -> ColumnStatistics | None:
    """Return the statistics of a reference; None if its values are computed or array elements."""
    if reference.steps[0] == "JMSDeliveryMode":
        return None  # computed from two columns
    column = statistics.columns.get(column_path(reference.steps))
    if reference.steps[0] == "JMSPriority":
        return _priority(column)
    if column is None or column.has_no_value:
        return column  # an absent array has no elements either
    return column if all(isinstance(step, str) for step in reference.steps) else None


def _priority(column: ColumnStatistics | None) -> ColumnStatistics | None:
    """Return statistics of the priority; null means the default."""
    if column is None or column.null_count == 0:
        return column
    if column.has_no_value:
        return ColumnStatistics(PRIORITY_DEFAULT, PRIORITY_DEFAULT, 0, distinct=(PRIORITY_DEFAULT,))
    if column.minimum is None or column.maximum is None:
        return None
    distinct = None if column.distinct is None else (*column.distinct, PRIORITY_DEFAULT)
    bounds = min(column.minimum, PRIORITY_DEFAULT), max(column.maximum, PRIORITY_DEFAULT)
    return ColumnStatistics(*bounds, 0, distinct)


def _is_null(reference: Reference, statistics: StoreStatistics) -> Outcomes:
    column = _statistics_of(reference, statistics)
    if column is not None and column.has_no_value:
        # If the array is absent, it is unknown whether an element is null.
        return Outcomes(may_hold=True, may_fail=False)
    return Outcomes(may_hold=column is None or column.null_count != 0, may_fail=True)


def _compare(
    operator: Comparison, left: Expression, right: Expression, statistics: StoreStatistics
) -> Outcomes:
    """Return the outcomes of a comparison of a column with a literal."""
    if isinstance(right, Reference) and not isinstance(left, Reference):
        operator, left, right = MIRRORED[operator], right, left
    if not isinstance(left, Reference):
        return ANYTHING
    column = _statistics_of(left, statistics)
    if column is None:
        return ANYTHING
    if column.has_no_value:
        # An empty array has no element to compare with the missing value, so the outcome is false.
        return ANYTHING if each_references(right) else UNKNOWN
    literal = _literal(right, statistics.now_us)
    if literal is None:
        return ANYTHING
    if _is_of_another_type(literal, column):
        return UNKNOWN
    scale = _scale(left, literal, column)
    return ANYTHING if scale is None else _bounded(operator, scale, column)


def _literal(node: Expression, now_us: int | None) -> Text | Integer | Float | Truth | None:
    """Return the value of ``node`` if it is the same for all events; otherwise None."""
    match node:
        case Text() | Integer() | Float() | Truth():
            return node
        case Now() if now_us is not None:
            return Integer(now_us // 1_000)
        case Arithmetic(operator, left, right) if operator in _WHOLE:
            left_value, right_value = _literal(left, now_us), _literal(right, now_us)
            if isinstance(left_value, Integer) and isinstance(right_value, Integer):
                result = _WHOLE[operator](left_value.value, right_value.value)
                return Integer(result) if _LEAST <= result < -_LEAST else None
            return None
        case _:
            return None


_WHOLE: Final[dict[ArithmeticOperator, Callable[[int, int], int]]] = {
    ArithmeticOperator.ADD: add,
    ArithmeticOperator.SUBTRACT: sub,
    ArithmeticOperator.MULTIPLY: mul,
}


def _is_of_another_type(literal: Text | Integer | Float | Truth, column: ColumnStatistics) -> bool:
    """Whether all values of the column have one type, which does not compare with the literal."""
    others = _NOT_COMPARED[type(literal)]
    return (
        _BOUND_TYPES.get(type(column.minimum)) in others
        and _BOUND_TYPES.get(type(column.maximum)) in others
    )


class _BoundType(Enum):
    """The type of a bound of a column."""

    NUMBER = 1
    TEXT = 2
    TRUTH = 3
    TIME = 4


_BOUND_TYPES: Final[dict[type, _BoundType]] = {
    int: _BoundType.NUMBER,
    float: _BoundType.NUMBER,
    str: _BoundType.TEXT,
    bool: _BoundType.TRUTH,
    datetime: _BoundType.TIME,
}
_COMPARED: Final[dict[type, _BoundType]] = {
    Text: _BoundType.TEXT,
    Integer: _BoundType.NUMBER,
    Float: _BoundType.NUMBER,
    Truth: _BoundType.TRUTH,
}
_NOT_COMPARED: Final[dict[type, tuple[_BoundType, ...]]] = {
    Text: (_BoundType.TRUTH, _BoundType.NUMBER),
    Integer: (_BoundType.TRUTH, _BoundType.TEXT),
    Float: (_BoundType.TRUTH, _BoundType.TEXT),
    Truth: (_BoundType.TEXT, _BoundType.TIME, _BoundType.NUMBER),
}


class _Scale(NamedTuple):
    """A literal, and the conversion of bounds to values that compare with it."""

    literal: Any
    of_bound: Callable[[Any], Any] | None = None
    """Converts a bound; None if bounds compare without conversion."""


def _scale(
    reference: Reference, literal: Text | Integer | Float | Truth, column: ColumnStatistics
) -> _Scale | None:
    """Return how to compare ``literal`` with the bounds of a column; None if that is impossible."""
    bound_type = _BOUND_TYPES.get(type(column.minimum))
    samples = (column.maximum, *(column.distinct or ()))
    if bound_type is None or any(
        [_BOUND_TYPES.get(type(sample)) is not bound_type for sample in samples]
    ):
        return None
    if bound_type is _BoundType.TIME:
        return _time_scale(reference, literal)
    return _Scale(literal.value) if bound_type is _COMPARED[type(literal)] else None


def _time_scale(reference: Reference, literal: Text | Integer | Float | Truth) -> _Scale | None:
    """Return how to compare a literal with bounds that are times; None if it does not compare."""
    is_number = reference.steps == ("JMSTimestamp",)
    match literal:
        case Text(text) if not is_number and (moment := microseconds(text)) is not None:
            return _Scale(moment, us_of)
        case Integer(number) | Float(number):
            return _Scale(number, lambda moment: us_of(moment) // 1_000)
        case _:
            return None


def _bounded(operator: Comparison, scale: _Scale, column: ColumnStatistics) -> Outcomes:
    """Return the outcomes of a comparison from the bounds of a column."""
    literal, low, high = scale.literal, column.minimum, column.maximum
    if scale.of_bound is not None:
        low, high = scale.of_bound(low), scale.of_bound(high)
    if not low <= high:  # a bound is NaN
        return ANYTHING
    may_hold, may_fail = _WITHIN[operator](low, high, literal)
    # The list of values is more exact than the bounds.
    if operator is Comparison.EQUAL and column.distinct is not None:
        values = column.distinct
        may_hold = literal in (values if scale.of_bound is None else map(scale.of_bound, values))
    # Booleans compare with ``=`` and ``<>`` only.
    if type(low) is bool and operator not in (Comparison.EQUAL, Comparison.UNEQUAL):
        return UNKNOWN
    if type(low) is float or type(high) is float:
        # NaN fails all comparisons except `<>`, and the bounds do not show whether NaN occurs.
        return Outcomes(may_hold or operator is Comparison.UNEQUAL, may_fail=True)
    return Outcomes(may_hold, may_fail)


_WITHIN: Final[dict[Comparison, Callable[[Any, Any, Any], tuple[bool, bool]]]] = {
    Comparison.EQUAL: lambda low, high, value: (low <= value <= high, not low == value == high),
    Comparison.UNEQUAL: lambda low, high, value: (not low == value == high, low <= value <= high),
    Comparison.LESS: lambda low, high, value: (low < value, high >= value),
    Comparison.GREATER: lambda low, high, value: (high > value, low <= value),
    Comparison.AT_MOST: lambda low, high, value: (low <= value, high > value),
    Comparison.AT_LEAST: lambda low, high, value: (high >= value, low < value),
}
"""Whether a comparison with a value may hold, and may fail, between two bounds."""


def _pattern(node: Like | Matches, statistics: StoreStatistics) -> Outcomes:
    """Return the outcomes of LIKE or MATCHES without its NOT."""
    if not isinstance(node.operand, Reference):
        return ANYTHING
    if isinstance(node, Like):
        return _like(node.operand, node.pattern, node.escape, statistics=statistics)
    return _matches(node.operand, node.filter, statistics)


def _like(
    reference: Reference,
    pattern: str,
    escape: str,
    statistics: StoreStatistics,
) -> Outcomes:
    """Return the outcomes of LIKE from the fixed prefix of the pattern."""
    column = _statistics_of(reference, statistics)
    pieces = parts(pattern, escape)
    if column is not None and column.has_no_value:
        return UNKNOWN
    if column is None or not pieces or not pieces[0]:
        return ANYTHING
    low, high, start = column.minimum, column.maximum, pieces[0]
    if not (isinstance(low, str) and isinstance(high, str)):
        return ANYTHING
    # The bounds are cut to the length of the prefix, because a longer bound that begins with the
    # prefix is greater than the prefix itself.
    size = len(start)
    return Outcomes(may_hold=low[:size] <= start <= high[:size], may_fail=True)


def _matches(reference: Reference, text: str, statistics: StoreStatistics) -> Outcomes:
    """Return the outcomes of a topic filter, by all values if they are known, otherwise by the
    fixed prefix of the filter."""
    column = _statistics_of(reference, statistics)
    if column is None:
        return ANYTHING
    if column.has_no_value:
        return UNKNOWN
    low, high = column.minimum, column.maximum
    if not (isinstance(low, str) and isinstance(high, str)):
        return ANYTHING
    if column.distinct is not None and all(isinstance(value, str) for value in column.distinct):
        return Outcomes(any(topic_matches(text, value) for value in column.distinct), may_fail=True)
    start = fixed_part(text)
    size = len(start)
    return Outcomes(may_hold=low[:size] <= start <= high[:size], may_fail=True)
