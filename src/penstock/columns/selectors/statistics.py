"""Whether a part of the store can hold a match at all, told from bounds of its columns.

Reasoning is on whole columns: an expression *may hold* and *may fail* in some event. Unknown is
always possible and is neither. Everything not understood may do both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from penstock.columns.selectors.compiler import microseconds, since_epoch
from penstock.columns.selectors.expressions import (
    And,
    Between,
    Compare,
    Comparison,
    Expression,
    Float,
    In,
    Integer,
    IsNull,
    Like,
    Not,
    Or,
    Reference,
    Text,
    Truth,
)
from penstock.columns.selectors.headers import column_path
from penstock.columns.selectors.patterns import parts


class ColumnStatistics(NamedTuple):
    """What is known of one column in one part of the store. None where it is not known.

    Values are Python's: numbers, text, booleans, and times with a time zone.
    """

    minimum: Any
    """Not greater than any value. NaN does not count; text by code point."""
    maximum: Any
    """Not less than any value."""
    null_count: int | None = None
    distinct: Sequence[Any] | None = None
    """All values there are, perhaps more."""


class Outcomes(NamedTuple):
    """What an expression can come to, besides unknown."""

    may_hold: bool
    may_fail: bool

    def reversed(self) -> Outcomes:
        return Outcomes(self.may_fail, self.may_hold)


ANYTHING: Final = Outcomes(may_hold=True, may_fail=True)

_DERIVED: Final = ("JMSPriority", "JMSDeliveryMode")
"""Their nulls stand for values, which bounds do not show."""
_MIRRORED: Final = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "<>": "<>"}


def outcomes(node: Expression, statistics: Mapping[str, ColumnStatistics]) -> Outcomes:
    """What ``node`` can come to in a part of the store."""
    match node:
        case And(operands):
            found = [outcomes(operand, statistics) for operand in operands]
            return Outcomes(all(o.may_hold for o in found), any(o.may_fail for o in found))
        case Or(operands):
            found = [outcomes(operand, statistics) for operand in operands]
            return Outcomes(any(o.may_hold for o in found), all(o.may_fail for o in found))
        case Not(operand):
            return outcomes(operand, statistics).reversed()
        case Compare(operator, left, right):
            return _compare(operator, left, right, statistics)
        case Between(operand, low, high, negated):
            ends = And(
                (
                    Compare(Comparison.AT_LEAST, operand, low),
                    Compare(Comparison.AT_MOST, operand, high),
                )
            )
            return _turned(outcomes(ends, statistics), is_turned=negated)
        case In(operand, options, negated):
            equals = [Compare(Comparison.EQUAL, operand, option) for option in options]
            return _turned(outcomes(Or(tuple(equals)), statistics), is_turned=negated)
        case Like(Reference() as reference, pattern, escape, negated):
            return _turned(_like(reference, pattern, escape, statistics), is_turned=negated)
        case IsNull(Reference() as reference, negated):
            return _turned(_is_null(reference, statistics), is_turned=negated)
        case Truth(answer):
            return Outcomes(may_hold=answer, may_fail=not answer)
        case _:
            return ANYTHING


def _turned(found: Outcomes, *, is_turned: bool) -> Outcomes:
    return found.reversed() if is_turned else found


def _known(
    reference: Reference, statistics: Mapping[str, ColumnStatistics]
) -> ColumnStatistics | None:
    if not all(isinstance(step, str) for step in reference.steps):
        return None
    name = reference.steps[0]
    if name in _DERIVED:
        return None
    return statistics.get(column_path(reference.steps))


def _is_null(reference: Reference, statistics: Mapping[str, ColumnStatistics]) -> Outcomes:
    known = _known(reference, statistics)
    return Outcomes(may_hold=known is None or known.null_count != 0, may_fail=True)


def _compare(
    operator: str,
    left: Expression,
    right: Expression,
    statistics: Mapping[str, ColumnStatistics],
) -> Outcomes:
    if isinstance(right, Reference):
        operator, left, right = _MIRRORED[operator], right, left
    if not isinstance(left, Reference) or not isinstance(right, Text | Integer | Float | Truth):
        return ANYTHING
    known = _known(left, statistics)
    if known is None:
        return ANYTHING
    scale = _scale(left, right, known)
    return ANYTHING if scale is None else _bounded(operator, scale, known)


class _Scale(NamedTuple):
    """How bounds and the literal are brought to numbers, or texts, that compare."""

    literal: Any
    of_bound: Callable[[Any], Any]


def _scale(
    reference: Reference, literal: Text | Integer | Float | Truth, known: ColumnStatistics
) -> _Scale | None:
    samples = [known.minimum, known.maximum, *(known.distinct or ())]
    if all(isinstance(sample, datetime) for sample in samples):
        return _time_scale(reference, literal)
    match literal:
        case Text(text) if all(isinstance(sample, str) for sample in samples):
            return _Scale(text, _itself)
        case Integer(number) | Float(number) if all(_is_number(sample) for sample in samples):
            return _Scale(number, _itself)
        case Truth(answer) if all(isinstance(sample, bool) for sample in samples):
            return _Scale(answer, _itself)
        case _:
            return None


def _time_scale(reference: Reference, literal: Text | Integer | Float | Truth) -> _Scale | None:
    is_number = reference.steps == ("JMSTimestamp",)
    match literal:
        case Text(text) if not is_number and (moment := microseconds(text)) is not None:
            return _Scale(moment, since_epoch)
        case Integer(number) | Float(number):
            return _Scale(number, lambda moment: since_epoch(moment) // 1_000)
        case _:
            return None


def _itself(bound: Any) -> Any:
    return bound


def _is_number(sample: object) -> bool:
    return isinstance(sample, int | float) and not isinstance(sample, bool)


def _bounded(operator: str, scale: _Scale, known: ColumnStatistics) -> Outcomes:
    literal = scale.literal
    low, high = scale.of_bound(known.minimum), scale.of_bound(known.maximum)
    if not low <= high:  # NaN among the bounds
        return ANYTHING
    holds = {
        "=": low <= literal <= high,
        "<>": not low == literal == high,
        "<": low < literal,
        ">": high > literal,
        "<=": low <= literal,
        ">=": high >= literal,
    }
    fails = {"=": "<>", "<>": "=", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}
    found = Outcomes(holds[operator], holds[fails[operator]])
    if known.distinct is not None and operator == "=":
        found = found._replace(may_hold=literal in map(scale.of_bound, known.distinct))
    if isinstance(low, bool) and operator not in ("=", "<>"):
        return Outcomes(may_hold=False, may_fail=False)
    if isinstance(low, float) or isinstance(high, float):
        # A NaN fails all comparisons but `<>`, and bounds do not show it.
        return Outcomes(found.may_hold or operator == "<>", may_fail=True)
    return found


def _like(
    reference: Reference,
    pattern: str,
    escape: str,
    statistics: Mapping[str, ColumnStatistics],
) -> Outcomes:
    known = _known(reference, statistics)
    pieces = parts(pattern, escape)
    if known is None or not pieces or not pieces[0]:
        return ANYTHING
    low, high, start = known.minimum, known.maximum, pieces[0]
    if not (isinstance(low, str) and isinstance(high, str)):
        return ANYTHING
    size = len(start)
    return Outcomes(may_hold=low[:size] <= start <= high[:size], may_fail=True)
