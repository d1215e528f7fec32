"""The syntax tree of a selector, made of frozen records.

A *predicate* is ``Compare``, ``Between``, ``In``, ``Like``, ``Matches``, ``IsNull``, or a boolean
reference that is not an operand. A predicate with ``NAMES[]`` among its operands searches an array:
it is true if it is true for at least one element, unknown if the array is absent, and false if the
array is empty (SEM F2).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct


class Expression(Struct, frozen=True, tag=True):
    """A node with a value: true, false, a number, text, a time, or unknown."""


class Each(Struct, frozen=True, tag=True):
    """The step ``[]`` of a reference: any element of an array."""


Step = str | int | Each
"""One step of a reference: a name, an index from zero, or any element."""


class Text(Expression, frozen=True, gc=False):
    """Text in single quotes; a quote inside is written twice."""

    value: str


class Integer(Expression, frozen=True, gc=False):
    """A whole number of 64 bits."""

    value: int


class Float(Expression, frozen=True, gc=False):
    """An approximate number: written with a point, an exponent, or the suffix F or D."""

    value: float


class Truth(Expression, frozen=True, gc=False):
    """TRUE or FALSE."""

    value: bool


Literal = Text | Integer | Float | Truth


class Reference(Expression, frozen=True):
    """A property, a header name, ``event_id``, ``tag`` or ``published`` (SEM F1, F2)."""

    steps: tuple[Step, ...]

    @property
    def has_each(self) -> bool:
        """Whether the reference names all elements of an array instead of one value."""
        return any(isinstance(step, Each) for step in self.steps)


class Now(Expression, frozen=True):
    """``NOW()``: milliseconds since the epoch at the time the selector is applied (SEM F3)."""


class DistanceUnit(StrEnum):
    """The unit of a distance."""

    KILOMETRES = "K"
    MILES = "M"
    NAUTICAL_MILES = "N"


class Distance(Expression, frozen=True):
    """``DISTANCE(lat, lon, unit)``: great-circle distance from a point, in degrees, to the event's
    ``latitude`` and ``longitude`` (SEM F3)."""

    latitude: float
    longitude: float
    unit: DistanceUnit


class DataLength(Expression, frozen=True):
    """``EVENTDATA.LENGTH()``: size of the event's data in bytes (SEM F3)."""


class DataText(Expression, frozen=True):
    """``EVENTDATA.AS_STRING(offset, length)``: a range of bytes of the data, read as UTF-8.

    A range beyond the end is cut; the value is unknown if the bytes are not UTF-8 (SEM F3).
    """

    offset: int
    length: int


class ArithmeticOperator(StrEnum):
    """An arithmetic operator, as it is written."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"


class Arithmetic(Expression, frozen=True):
    """Two numbers combined; unknown if one is not a number, or the result does not fit (SEM F1)."""

    operator: ArithmeticOperator
    left: Expression
    right: Expression


class Negative(Expression, frozen=True):
    """A number with its sign changed."""

    operand: Expression


class Comparison(StrEnum):
    """A comparison operator, as it is written."""

    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    GREATER = ">"
    AT_MOST = "<="
    AT_LEAST = ">="


class Compare(Expression, frozen=True):
    """A comparison; unknown if the types of the sides do not compare (SEM F1)."""

    operator: Comparison
    left: Expression
    right: Expression


class Between(Expression, frozen=True):
    """``BETWEEN``: both ends belong to the range."""

    operand: Expression
    low: Expression
    high: Expression
    negated: bool = False


class In(Expression, frozen=True):
    """``IN``: equal to one of the options. Unknown options count as in a chain of OR."""

    operand: Expression
    options: tuple[Literal, ...]
    negated: bool = False


class Like(Expression, frozen=True):
    """``LIKE``: the whole text matches the pattern.

    ``_`` matches any one character and ``%`` any number of characters, including line ends. A
    character after ``escape`` stands for itself.
    """

    operand: Expression
    pattern: str
    escape: str = ""
    negated: bool = False


class Matches(Expression, frozen=True):
    """``MATCHES``: the text is a topic that the topic filter matches, level by level (SEM F6)."""

    operand: Expression
    filter: str
    negated: bool = False


class IsNull(Expression, frozen=True):
    """``IS NULL``: the value is unknown; negated: the value is known. The outcome itself is never
    unknown."""

    operand: Expression
    negated: bool = False


class Not(Expression, frozen=True):
    """``NOT``: swaps true and false; unknown stays unknown."""

    operand: Expression


class And(Expression, frozen=True):
    """``AND``: false if any part is false, otherwise unknown if any is unknown. Parts are never
    ``And`` themselves."""

    operands: tuple[Expression, ...]


class Or(Expression, frozen=True):
    """``OR``: true if any part is true, otherwise unknown if any is unknown. Parts are never ``Or``
    themselves."""

    operands: tuple[Expression, ...]


PREDICATES = (Compare, Between, In, Like, Matches, IsNull)
"""Nodes that are predicates."""
CONDITIONS = (*PREDICATES, Not, And, Or)
"""Nodes whose value is true, false or unknown."""
_LEAVES = frozenset((Text, Integer, Float, Truth, Reference, Now, Distance, DataLength, DataText))


def children(node: Expression) -> tuple[Expression, ...]:
    """Return the direct operands of ``node``, in the order written."""
    if type(node) in _LEAVES:  # the most frequent case first, because the cases below are slow
        return ()
    match node:
        case Compare(_, left, right) | Arithmetic(_, left, right):
            return (left, right)
        case Between(operand, low, high):
            return (operand, low, high)
        case And(operands) | Or(operands):
            return operands
        case In(operand) | Like(operand) | Matches(operand) | IsNull(operand):
            return (operand,)
        case Not(operand) | Negative(operand):
            return (operand,)
        case _:
            return ()


def walk(node: Expression) -> Iterator[Expression]:
    """Yield ``node`` and everything below it, parents first."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(reversed(children(current)))


def each_references(predicate: Expression) -> list[Reference]:
    """Return the references to array elements that ``predicate`` itself searches.

    References inside nested predicates are left out.
    """
    references = []
    pending = list(children(predicate)) if isinstance(predicate, CONDITIONS) else [predicate]
    while pending:
        node = pending.pop()
        if isinstance(node, Reference) and node.has_each:
            references.append(node)
        if not isinstance(node, CONDITIONS):
            pending.extend(children(node))
    return references
