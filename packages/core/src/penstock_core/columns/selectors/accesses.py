"""Property values that a selector requires, for its lookup in an index.

An event that a selector matches has at least one of the selector's *accesses*: a property with a
certain value, with text that begins with a prefix, or with a number in a range. Most events have
none of them, so that the selector need not be evaluated on them.
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
from penstock_core.columns.selectors.headers import HEADERS
from penstock_core.columns.selectors.outcomes import reads_published_only
from penstock_core.columns.selectors.patterns import parts
from penstock_core.vocabulary.topics import fixed_part, has_wildcards

Number = int | float
Steps = tuple[Step, ...]

PREFIX_CHARACTERS_MAX: Final = 64
"""Maximum number of characters of a prefix in the index. A selector with a longer prefix is found
by the first characters, and then has to be evaluated."""


class ValueFamily(Enum):
    """A group of values that compare with each other."""

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
    """The property is text that begins with ``text``."""

    steps: Steps
    text: str


class NumberRange(Struct, frozen=True):
    """The property is a number between two ends. An end of None is unbounded."""

    steps: Steps
    low: Number | None = None
    high: Number | None = None
    without_low: bool = False
    """Whether ``low`` itself is outside the range."""
    without_high: bool = False
    """Whether ``high`` itself is outside the range."""

    def holds(self, number: Number) -> bool:
        """Whether the range includes ``number``, compared exactly for all numeric types."""
        low, high = self.low, self.high
        if low is not None and (number < low or (self.without_low and number == low)):
            return False
        return high is None or not (number > high or (self.without_high and number == high))

    def within(self, other: NumberRange) -> NumberRange:
        """Return the intersection with ``other``."""
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
    """The accesses of an expression, which does not hold for events with none of them."""

    any_of: tuple[Access, ...]
    is_exact: bool
    """Whether the expression holds for every event with one of the accesses, so that it need not be
    evaluated."""


def accesses_of(node: Expression) -> Sequence[Accesses]:
    """Return alternative sets of index look-ups (accesses) for ``node``. The look-ups of each set
    find every event for which ``node`` may hold.

    Empty if ``node`` has to be evaluated on each event.
    """
    match node:
        case And(operands):
            return _of_all(operands)
        case Or(operands):
            return _of_any(operands)
        case _:
            accesses = _of_predicate(node) if reads_published_only(node) else None
            return () if accesses is None else (accesses,)


def texts_of(node: Expression, name: str) -> frozenset[str] | None:
    """Return texts such that ``node`` holds only for events whose property ``name`` has one of
    them; None if it may hold for other events.

    A text that is a valid time also equals stored times, so there is no result for it.
    """
    if name in HEADERS:  # a selector reads the header of this name, and not the property
        return None
    fewest: frozenset[str] | None = None
    for alternative in accesses_of(node):
        texts = frozenset(
            access.value
            for access in alternative.any_of
            if isinstance(access, Equal)
            and access.steps == (name,)
            and access.family is ValueFamily.TEXT
            and isinstance(access.value, str)
        )
        is_complete = len(texts) == len(alternative.any_of)
        if is_complete and (fewest is None or len(texts) < len(fewest)):
            fewest = texts
    return fewest


def _of_all(operands: Sequence[Expression]) -> Sequence[Accesses]:
    """Return the accesses of AND. Each operand alone is sufficient; ranges of one property are
    intersected."""
    alternatives: list[Accesses] = []
    ranges: dict[Steps, NumberRange] = {}
    for operand in operands:
        for alternative in accesses_of(operand):
            match alternative.any_of:
                case (NumberRange() as range_,):
                    earlier = ranges.get(range_.steps)
                    ranges[range_.steps] = range_ if earlier is None else earlier.within(range_)
                case _:
                    # No access is exact, because the other operands have to hold as well.
                    alternatives.append(Accesses(alternative.any_of, is_exact=False))
    return [*alternatives, *(Accesses((range_,), is_exact=False) for range_ in ranges.values())]


def _of_any(operands: Sequence[Expression]) -> Sequence[Accesses]:
    """Return the accesses of OR: the accesses of all operands together, the first alternative of
    each operand."""
    alternatives_of_operands = [accesses_of(operand) for operand in operands]
    if not all(alternatives_of_operands):
        return ()
    first = [alternatives[0] for alternatives in alternatives_of_operands]
    accesses = tuple(
        dict.fromkeys(access for alternative in first for access in alternative.any_of)
    )
    return (Accesses(accesses, is_exact=all(alternative.is_exact for alternative in first)),)


def _of_predicate(node: Expression) -> Accesses | None:
    """Return the accesses of a single predicate; None if it has none."""
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
    """Return the access of a comparison with a literal; None if no index can answer it."""
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
    """Return the look-ups for ``BETWEEN`` two numbers; None for other operands."""
    if not (isinstance(low, Integer | Float) and isinstance(high, Integer | Float)):
        return None
    return Accesses((NumberRange(steps, low.value, high.value),), is_exact=True)


def _equal(steps: Steps, literals: Sequence[Expression]) -> Accesses | None:
    """Return the accesses for values equal to one of the literals; None for other expressions."""
    accesses: list[Access] = []
    for literal in literals:
        match literal:
            case Text(text):
                accesses.append(Equal(steps, ValueFamily.TEXT, text))
                # Text that is a valid time also equals stored times.
                if (moment := microseconds(text)) is not None:
                    accesses.append(Equal(steps, ValueFamily.MOMENT, moment))
            case Integer(number) | Float(number):
                accesses.append(Equal(steps, ValueFamily.NUMBER, number))
            case Truth(answer):
                accesses.append(Equal(steps, ValueFamily.TRUTH, answer))
            case _:
                return None
    return Accesses(tuple(dict.fromkeys(accesses)), is_exact=True)


def _like(steps: Steps, pattern: str, escape: str) -> Accesses | None:
    """Return the access of LIKE: the whole text or its fixed prefix; None without a prefix."""
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
    """Return the accesses of MATCHES: the whole topic, or the fixed prefix of the topic filter."""
    if not has_wildcards(text):
        return _text(steps, text)
    if not (start := fixed_part(text)[:PREFIX_CHARACTERS_MAX]):
        return None
    return Accesses((Prefix(steps, start),), is_exact=False)


def _text(steps: Steps, text: str) -> Accesses:
    """Return the access for exactly this text. It does not include times, because patterns never
    match times."""
    return Accesses((Equal(steps, ValueFamily.TEXT, text),), is_exact=True)
