"""What a selector requires of a single property: by that it is found in an index.

An event that a selector matches has at least one of the selector's *accesses*: a property with a
value, with text that begins so, or with a number in a range. Most events have none of them, and
the selector need not be put to these.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from msgspec import Struct

from penstock_core.columns.selectors.comparison import MIRRORED
from penstock_core.columns.selectors.compiler import microseconds
from penstock_core.columns.selectors.expressions import (
    And,
    Between,
    Compare,
    Comparison,
    Expression,
    Float,
    In,
    Integer,
    Like,
    Matches,
    Or,
    Reference,
    Step,
    Text,
    Truth,
)
from penstock_core.columns.selectors.outcomes import is_given
from penstock_core.columns.selectors.patterns import parts
from penstock_core.vocabulary.topics import fixed_part, has_wildcards

Number = int | float
Steps = tuple[Step, ...]

PREFIX_CHARACTERS_MAX: Final = 64
"""Characters of a prefix that are looked up: of a longer one only so many, and the selector says
the rest."""


class ValueFamily(Enum):
    """The values that compare with each other."""

    TEXT = "text"
    NUMBER = "numbers; a time is its whole milliseconds since the epoch"
    MOMENT = "microseconds of a time"
    TRUTH = "true or false"


class Equal(Struct, frozen=True):
    """The property has this value."""

    steps: Steps
    family: ValueFamily
    value: str | Number | bool


class Prefix(Struct, frozen=True):
    """The property is text that begins so."""

    steps: Steps
    text: str


class NumberRange(Struct, frozen=True):
    """The property is a number between two ends; None: there is no end on that side."""

    steps: Steps
    low: Number | None = None
    high: Number | None = None
    without_low: bool = False
    without_high: bool = False

    def holds(self, number: Number) -> bool:
        """Whether it includes ``number``, exactly, whatever the types are."""
        low, high = self.low, self.high
        if low is not None and (number < low or (self.without_low and number == low)):
            return False
        return high is None or not (number > high or (self.without_high and number == high))

    def within(self, other: NumberRange) -> NumberRange:
        """The part of it that lies in ``other``, too."""
        low, without_low = self.low, self.without_low
        if low is None or (other.low is not None and other.low > low):
            low, without_low = other.low, other.without_low
        elif other.low == low:
            without_low = without_low or other.without_low
        high, without_high = self.high, self.without_high
        if high is None or (other.high is not None and other.high < high):
            high, without_high = other.high, other.without_high
        elif other.high == high:
            without_high = without_high or other.without_high
        return NumberRange(
            self.steps, low, high, without_low=without_low, without_high=without_high
        )


Access = Equal | Prefix | NumberRange


class Accesses(Struct, frozen=True):
    """The accesses of an expression: it holds for no event that has none of them."""

    any_of: tuple[Access, ...]
    is_exact: bool
    """Whether it holds for every event that has one of them."""


def accesses_of(node: Expression) -> Sequence[Accesses]:
    """The ways in which events are found for which ``node`` may hold; each alone is enough. None at
    all: it has to be put to each event."""
    match node:
        case And(operands):
            return _of_all(operands)
        case Or(operands):
            return _of_any(operands)
        case _:
            found = _of_predicate(node) if is_given(node) else None
            return () if found is None else (found,)


def _of_all(operands: Sequence[Expression]) -> Sequence[Accesses]:
    """One operand is enough to look by; ranges of one property are one range."""
    found: list[Accesses] = []
    ranges: dict[Steps, NumberRange] = {}
    for operand in operands:
        for way in accesses_of(operand):
            match way.any_of:
                case (NumberRange() as part,):
                    known = ranges.get(part.steps)
                    ranges[part.steps] = part if known is None else known.within(part)
                case _:
                    found.append(Accesses(way.any_of, is_exact=False))
    return [*found, *(Accesses((part,), is_exact=False) for part in ranges.values())]


def _of_any(operands: Sequence[Expression]) -> Sequence[Accesses]:
    """Each operand has to be looked up: in its first way."""
    ways = [accesses_of(operand) for operand in operands]
    if not all(ways):
        return ()
    first = [found[0] for found in ways]
    accesses = tuple(dict.fromkeys(access for way in first for access in way.any_of))
    return (Accesses(accesses, is_exact=all(way.is_exact for way in first)),)


def _of_predicate(node: Expression) -> Accesses | None:
    match node:
        case Compare(operator, Reference() as left, right) if not left.has_each:
            return _compared(left.steps, operator, right)
        case Compare(operator, left, Reference() as right) if not right.has_each:
            return _compared(right.steps, MIRRORED[operator], left)
        case Between(Reference() as operand, low, high, negated) if not (
            negated or operand.has_each
        ):
            return _between(operand.steps, low, high)
        case In(Reference() as operand, options, negated) if not (negated or operand.has_each):
            return _equal(operand.steps, options)
        case Like(Reference() as operand, pattern, escape, negated) if not (
            negated or operand.has_each
        ):
            return _like(operand.steps, pattern, escape)
        case Matches(Reference() as operand, text, negated) if not (negated or operand.has_each):
            return _matches(operand.steps, text)
        case Reference(steps) if not node.has_each:
            return _equal(steps, (Truth(value=True),))
        case _:
            return None


def _compared(steps: Steps, operator: Comparison, literal: Expression) -> Accesses | None:
    if operator is Comparison.EQUAL:
        return _equal(steps, (literal,))
    if not isinstance(literal, Integer | Float) or operator is Comparison.UNEQUAL:
        return None
    end = literal.value
    match operator:
        case Comparison.LESS | Comparison.AT_MOST:
            part = NumberRange(steps, high=end, without_high=operator is Comparison.LESS)
        case _:
            part = NumberRange(steps, low=end, without_low=operator is Comparison.GREATER)
    return Accesses((part,), is_exact=True)


def _between(steps: Steps, low: Expression, high: Expression) -> Accesses | None:
    if not (isinstance(low, Integer | Float) and isinstance(high, Integer | Float)):
        return None
    return Accesses((NumberRange(steps, low.value, high.value),), is_exact=True)


def _equal(steps: Steps, literals: Sequence[Expression]) -> Accesses | None:
    found: list[Access] = []
    for literal in literals:
        match literal:
            case Text(text):
                found.append(Equal(steps, ValueFamily.TEXT, text))
                if (moment := microseconds(text)) is not None:
                    found.append(Equal(steps, ValueFamily.MOMENT, moment))
            case Integer(number) | Float(number):
                found.append(Equal(steps, ValueFamily.NUMBER, number))
            case Truth(answer):
                found.append(Equal(steps, ValueFamily.TRUTH, answer))
            case _:
                return None
    return Accesses(tuple(dict.fromkeys(found)), is_exact=True)


def _like(steps: Steps, pattern: str, escape: str) -> Accesses | None:
    match parts(pattern, escape):
        case []:
            return _text(steps, "")
        case [str(text)] if text:
            return _text(steps, text)
        case [str(text), *rest] if text:
            is_exact = rest == [""] and len(text) <= PREFIX_CHARACTERS_MAX
            return Accesses((Prefix(steps, text[:PREFIX_CHARACTERS_MAX]),), is_exact=is_exact)
        case _:
            return None


def _matches(steps: Steps, text: str) -> Accesses | None:
    """By the whole topic, or by what each topic begins with that the filter takes."""
    if not has_wildcards(text):
        return _text(steps, text)
    if not (start := fixed_part(text)[:PREFIX_CHARACTERS_MAX]):
        return None
    return Accesses((Prefix(steps, start),), is_exact=False)


def _text(steps: Steps, text: str) -> Accesses:
    """The very text: a pattern does not compare with times."""
    return Accesses((Equal(steps, ValueFamily.TEXT, text),), is_exact=True)
