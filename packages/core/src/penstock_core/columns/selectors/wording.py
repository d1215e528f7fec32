"""The canonical text of an expression: capital keywords, single spaces, no extra parentheses."""

from __future__ import annotations

from typing import assert_never

from penstock_core.columns.selectors.expressions import (
    PREDICATES,
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Compare,
    DataLength,
    DataText,
    Distance,
    Each,
    Expression,
    Float,
    In,
    Integer,
    IsNull,
    Like,
    Matches,
    Negative,
    Not,
    Now,
    Or,
    Reference,
    Step,
    Text,
    Truth,
)

# Binding powers, from the loosest to the tightest operator.
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _SIGNED, _ATOM = range(8)


def canonical(node: Expression) -> str:
    """Return the canonical text of ``node``, which is the same for all spellings and parses to
    ``node`` again."""
    match node:
        case Or(operands):
            return " OR ".join(_inside(operand, _AND) for operand in operands)
        case And(operands):
            return " AND ".join(_inside(operand, _NOT) for operand in operands)
        case Not(operand):
            return f"NOT {_inside(operand, _NOT)}"
        case Arithmetic(operator, left, right):
            power = _power(node)
            # Operators group from the left, so an equally tight one on the right needs parentheses.
            return f"{_inside(left, power)} {operator} {_inside(right, power + 1)}"
        case Negative(operand):
            return f"-{_inside(operand, _SIGNED)}"
        case _ if isinstance(node, PREDICATES):
            return _predicate(node)
        case _:
            return _atom(node)


def _inside(node: Expression, power: int) -> str:
    """Return the text of an operand, in parentheses if it binds less tightly than ``power``."""
    text = canonical(node)
    return f"({text})" if _power(node) < power else text


def _power(node: Expression) -> int:
    """Return how tightly the operator of a node binds."""
    match node:
        case Or():
            return _OR
        case And():
            return _AND
        case Not():
            return _NOT
        case Arithmetic(ArithmeticOperator.ADD | ArithmeticOperator.SUBTRACT):
            return _SUM
        case Arithmetic():
            return _PRODUCT
        # The text shows the sign also of -0.0, which is not below 0.
        case Integer(value) | Float(value) if str(value).startswith("-"):
            return _SIGNED
        case Negative():
            return _SIGNED
        case _:
            return _PREDICATE if isinstance(node, PREDICATES) else _ATOM


def _predicate(node: Compare | Between | In | Like | Matches | IsNull) -> str:
    """Return the text of a predicate."""
    if isinstance(node, Compare):
        return f"{_inside(node.left, _SUM)} {node.operator} {_inside(node.right, _SUM)}"
    subject, negation = _inside(node.operand, _SUM), "NOT " if node.negated else ""
    match node:
        case Between(_, low, high):
            ends = f"{_inside(low, _SUM)} AND {_inside(high, _SUM)}"
            return f"{subject} {negation}BETWEEN {ends}"
        case In(_, options):
            return f"{subject} {negation}IN ({', '.join(map(canonical, options))})"
        case Like(_, pattern, escape):
            ending = f" ESCAPE {quoted(escape)}" if escape else ""
            return f"{subject} {negation}LIKE {quoted(pattern)}{ending}"
        case Matches(_, text):
            return f"{subject} {negation}MATCHES {quoted(text)}"
        case IsNull():
            return f"{subject} IS {negation}NULL"
        case _:
            assert_never(node)


def _atom(node: Expression) -> str:
    """Return the text of a node without operands that need parentheses."""
    match node:
        case Text(value):
            return quoted(value)
        case Truth(value):
            return "TRUE" if value else "FALSE"
        case Integer(number) | Float(number):
            return repr(number)
        case Reference(steps):
            return path(steps)
        case Now():
            return "NOW()"
        case Distance(latitude, longitude, unit):
            return f"DISTANCE({latitude!r}, {longitude!r}, {unit})"
        case DataLength():
            return "EVENTDATA.LENGTH()"
        case DataText(offset, length):
            return f"EVENTDATA.AS_STRING({offset}, {length})"
        case _:
            raise AssertionError(f"{type(node).__name__} has no canonical text")


def quoted(text: str) -> str:
    """Return ``text`` as a selector literal."""
    return "'" + text.replace("'", "''") + "'"


def path(steps: tuple[Step, ...]) -> str:
    """Return a reference as written: ``CONTACTS[].name``."""
    words = []
    for step in steps:
        match step:
            case Each():
                words.append("[]")
            case int():
                words.append(f"[{step}]")
            case str():
                words.append(f".{step}")
            case _:
                assert_never(step)
    return "".join(words).removeprefix(".")
