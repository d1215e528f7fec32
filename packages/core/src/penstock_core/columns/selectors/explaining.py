"""Explains a selector in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock_core.columns.selectors.expressions import (
    And,
    Between,
    Compare,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Matches,
    Not,
    Or,
    each_references,
)
from penstock_core.columns.selectors.patterns import parts
from penstock_core.columns.selectors.wording import canonical, path, quoted

_INDENT: Final = "  "
_WORDS: Final[dict[Comparison, str]] = {
    Comparison.EQUAL: "is",
    Comparison.UNEQUAL: "exists and is not",
    Comparison.LESS: "is less than",
    Comparison.GREATER: "is greater than",
    Comparison.AT_MOST: "is at most",
    Comparison.AT_LEAST: "is at least",
}


def explained(expression: Expression) -> list[str]:
    """Return the conditions an event must meet, one per line, with nested conditions indented."""
    return list(_lines(expression, 0))


def _lines(node: Expression, depth: int) -> Iterator[str]:
    """Yield the lines that explain a condition, indented by ``depth``."""
    indent = _INDENT * depth
    match node:
        case And(operands) | Or(operands):
            all_of = isinstance(node, And)
            yield indent + ("all of these hold:" if all_of else "at least one of these holds:")
            for operand in operands:
                yield from _lines(operand, depth + 1)
        case Not(operand):
            yield f"{indent}this is false, not just unknown:"
            yield from _lines(operand, depth + 1)
        case _:
            references = each_references(node)
            for_element = (
                f"for at least one element of {path(references[0].steps)}: " if references else ""
            )
            yield f"{indent}{for_element}{_condition(node)}"


def _condition(node: Expression) -> str:
    """Return a predicate in words."""
    match node:
        case Compare(operator, left, right):
            return f"{canonical(left)} {_WORDS[operator]} {canonical(right)}"
        case Between(operand, low, high, negated):
            word = "is outside" if negated else "is in"
            return f"{canonical(operand)} {word} the range {canonical(low)} to {canonical(high)}"
        case In(operand, options, negated):
            word = "exists and is not one of" if negated else "is one of"
            return f"{canonical(operand)} {word} {', '.join(map(canonical, options))}"
        case Like():
            return _like(node)
        case Matches(operand, text, negated):
            verb = "is text and does not match" if negated else "matches"
            return f"{canonical(operand)} {verb} the topic filter {quoted(text)}"
        case IsNull(operand, negated):
            return f"{canonical(operand)} {'exists' if negated else 'is missing or null'}"
        case _:
            return f"{canonical(node)} is TRUE"


def _like(node: Like) -> str:
    """Return LIKE in words. The words depend on the positions of the wildcards in the pattern."""
    subject, pieces = canonical(node.operand), parts(node.pattern, node.escape)
    if pieces == [""]:
        return f"{subject} is {'never matched' if node.negated else 'any text'}"
    match pieces:
        case [str(text), ""] if text:
            verb, object_text = "begin", f"with {quoted(text)}"
        case ["", str(text)] if text:
            verb, object_text = "end", f"with {quoted(text)}"
        case ["", str(text), ""] if text:
            verb, object_text = "contain", quoted(text)
        case _:
            escape = f", where {quoted(node.escape)} makes the next character plain"
            verb, object_text = (
                "match",
                f"the pattern {quoted(node.pattern)}{escape if node.escape else ''}",
            )
    if node.negated:
        return f"{subject} is text and does not {verb} {object_text}"
    return f"{subject} {verb}{'es' if verb == 'match' else 's'} {object_text}"
