"""What a selector says, as a tree of frozen records.

A *predicate* (``Compare``, ``Between``, ``In``, ``Like``, ``IsNull``, or a boolean reference that
stands alone) is where an array is searched: with ``NAMES[]`` among its operands it holds when
it holds for one element, is unknown when the array is absent, and false when it is empty
(SEM F2).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct


class Expression(Struct, frozen=True, tag=True):
    """Anything with a value: true, false, a number, text, a time, or unknown."""


class Each(Struct, frozen=True, tag=True):
    """The step ``[]`` of a reference: any element of an array."""


Step = str | int | Each
"""One step of a reference: a name, an index from zero, or any element."""


class Text(Expression, frozen=True):
    """Text in single quotes; a quote inside is written twice."""

    value: str


class Integer(Expression, frozen=True):
    """An exact number of 64 bits."""

    value: int


class Float(Expression, frozen=True):
    """An approximate number: written with a point, an exponent, or the suffix F or D."""

    value: float


class Truth(Expression, frozen=True):
    """TRUE or FALSE."""

    value: bool


Literal = Text | Integer | Float | Truth


class Reference(Expression, frozen=True):
    """A property, a header name, ``event_id``, ``tag`` or ``published`` (SEM F1, F2)."""

    steps: tuple[Step, ...]

    @property
    def has_each(self) -> bool:
        """Whether it names elements of an array instead of one value."""
        return any(isinstance(step, Each) for step in self.steps)


class Now(Expression, frozen=True):
    """``NOW()``: milliseconds since the epoch when the selector is applied (SEM F3)."""


class DistanceUnit(StrEnum):
    """What a distance is measured in."""

    KILOMETRES = "K"
    MILES = "M"
    NAUTICAL_MILES = "N"


class Distance(Expression, frozen=True):
    """``DISTANCE(lat, lon, unit)``: along a great circle, from the given point (degrees) to the
    event's ``latitude`` and ``longitude`` (SEM F3)."""

    latitude: float
    longitude: float
    unit: DistanceUnit


class DataLength(Expression, frozen=True):
    """``EVENTDATA.LENGTH()``: bytes of the event's data (SEM F3)."""


class DataText(Expression, frozen=True):
    """``EVENTDATA.AS_STRING(offset, length)``: that part of the data, in bytes, as UTF-8; what
    there is of it, unknown where it is not UTF-8 (SEM F3)."""

    offset: int
    length: int


class ArithmeticOperator(StrEnum):
    """As written."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"


class Arithmetic(Expression, frozen=True):
    """Two numbers combined; unknown when either is none, or nothing fits (SEM F1)."""

    operator: ArithmeticOperator
    left: Expression
    right: Expression


class Negative(Expression, frozen=True):
    """A number with its sign turned."""

    operand: Expression


class Comparison(StrEnum):
    """As written."""

    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    GREATER = ">"
    AT_MOST = "<="
    AT_LEAST = ">="


class Compare(Expression, frozen=True):
    """Unknown when the sides are of types that do not compare (SEM F1)."""

    operator: Comparison
    left: Expression
    right: Expression


class Between(Expression, frozen=True):
    """Both ends belong to the range."""

    operand: Expression
    low: Expression
    high: Expression
    negated: bool = False


class In(Expression, frozen=True):
    """Equal to one of the options; unknown ones count as in a chain of OR."""

    operand: Expression
    options: tuple[Literal, ...]
    negated: bool = False


class Like(Expression, frozen=True):
    """The whole text fits the pattern: ``_`` is any character, ``%`` any number of them, line
    ends included; a character after ``escape`` stands for itself."""

    operand: Expression
    pattern: str
    escape: str = ""
    negated: bool = False


class IsNull(Expression, frozen=True):
    """The value is unknown or, negated, known. Never unknown itself."""

    operand: Expression
    negated: bool = False


class Not(Expression, frozen=True):
    """True and false swapped; unknown stays."""

    operand: Expression


class And(Expression, frozen=True):
    """False if one is, else unknown if one is. Never directly inside another."""

    operands: tuple[Expression, ...]


class Or(Expression, frozen=True):
    """True if one is, else unknown if one is. Never directly inside another."""

    operands: tuple[Expression, ...]


PREDICATES = (Compare, Between, In, Like, IsNull)
CONDITIONS = (*PREDICATES, Not, And, Or)


def children(node: Expression) -> tuple[Expression, ...]:
    """The expressions ``node`` is made of, in the order written."""
    match node:
        case Compare(_, left, right) | Arithmetic(_, left, right):
            return (left, right)
        case Between(operand, low, high):
            return (operand, low, high)
        case And(operands) | Or(operands):
            return operands
        case In(operand) | Like(operand) | IsNull(operand) | Not(operand) | Negative(operand):
            return (operand,)
        case _:
            return ()


def walk(node: Expression) -> Iterator[Expression]:
    """``node`` and everything below it, parents first."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(children(current)))


def each_references(predicate: Expression) -> list[Reference]:
    """The references to array elements that ``predicate`` itself searches, not those that a
    predicate inside it does."""
    found = []
    waiting = list(children(predicate)) if isinstance(predicate, CONDITIONS) else [predicate]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Reference) and node.has_each:
            found.append(node)
        if not isinstance(node, CONDITIONS):
            waiting.extend(children(node))
    return found
