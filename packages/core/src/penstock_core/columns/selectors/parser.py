"""Parses selector text to an expression, by precedence climbing (SEM F1, F4).

From the loosest to the tightest operator: OR, AND, NOT, predicates, ``+ -``, ``* /``, signs.
"""

from __future__ import annotations

from typing import Final

from penstock_core.columns.selectors.expressions import (
    CONDITIONS,
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
    Negative,
    Not,
    Or,
    Reference,
    Text,
    Truth,
    each_references,
)
from penstock_core.columns.selectors.patterns import WILDCARDS_MAX, wildcards
from penstock_core.columns.selectors.reader import TokenReader
from penstock_core.columns.selectors.references import read_name
from penstock_core.columns.selectors.tokens import Token, TokenKind
from penstock_core.vocabulary.topics import filter_fault

DEPTH_MAX: Final = 100
"""Maximum number of levels of nesting, in parentheses or in the tree."""
PATTERN_MAX: Final = 4_096
"""Maximum number of characters of a LIKE pattern."""

# Binding powers, from the loosest to the tightest operator; 0 is no operator.
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _SIGNED = range(1, 8)

_POWERS: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys((*Comparison, "BETWEEN", "IN", "LIKE", "IS", "NOT"), _PREDICATE),
    "+": _SUM,
    "-": _SUM,
    "*": _PRODUCT,
    "/": _PRODUCT,
}
_INTEGER_END: Final = 1 << 63
"""The first whole number that does not fit 64 bits; its negative does."""


def parse(text: str, *, is_stored: bool = False) -> Expression:
    """Parse ``text``.

    Raises ``InvalidSelector`` with line, column and what was expected (SEM F4), also for text
    longer than 65,536 characters, nested deeper than 100 levels, with a path of more than 100
    levels, or with more than 100 wildcards in a pattern. The last two limits do not apply if
    ``is_stored``, because a stored selector may be older than the limits.
    """
    return _Parser(text, is_stored=is_stored).selector()


class _Parser:
    """Parses one selector, token by token."""

    __slots__ = ("_depth", "_height", "_is_stored", "_reader")

    def __init__(self, text: str, *, is_stored: bool) -> None:
        self._is_stored = is_stored
        self._reader = TokenReader(text)
        self._depth = 0
        """Number of expressions around the current token, which bounds the recursion."""
        self._height = 0
        """Height of the last parsed expression, in levels of the tree."""

    def selector(self) -> Expression:
        """Parse the whole text. Raises ``InvalidSelector``."""
        expression = self._condition(_OR)
        if self._reader.token.kind is not TokenKind.END:
            expected = "AND, OR or the end" if isinstance(expression, CONDITIONS) else "an operator"
            raise self._reader.fault(f"{expected} after {self._reader.previous.shown}")
        return expression

    def _condition(self, minimum: int) -> Expression:
        """Parse an expression that is true, false or unknown. Raises ``InvalidSelector`` for a
        plain value."""
        start = self._reader.token
        expression = self._expression(minimum)
        self._check_condition(expression, start)
        return expression

    def _expression(self, minimum: int) -> Expression:
        """Parse operators that bind at least as tightly as ``minimum``."""
        start = self._reader.token
        self._depth += 1
        self._check_height(self._depth)
        left = self._prefix(minimum)
        maximum = _SIGNED
        while True:
            power = self._infix_power()
            if not minimum <= power <= maximum:
                break
            left = self._infix(left, power, start)
            # Predicates do not chain: `a = b = c` is an error.
            maximum = _AND if power <= _PREDICATE else maximum
        self._depth -= 1
        return left

    def _infix_power(self) -> int:
        """Return the binding power of the next token as an operator; 0 if it is not an operator."""
        token = self._reader.token
        if _is_matches(token):
            return _PREDICATE
        if token.kind not in (TokenKind.SIGN, TokenKind.KEYWORD):
            return 0
        return _POWERS.get(token.text, 0)

    def _prefix(self, minimum: int) -> Expression:
        """Parse NOT, a sign, parentheses or an operand."""
        token = self._reader.token
        if token.text == "NOT" and token.kind is TokenKind.KEYWORD and minimum <= _NOT:
            self._reader.advance()
            return self._one_level_deeper(Not(self._condition(_NOT)))
        if token.kind is TokenKind.SIGN and token.text in ("+", "-"):
            return self._signed()
        if self._reader.accept("("):
            expression = self._expression(_OR)
            self._reader.expect(")")
            return expression
        return self._operand()

    def _signed(self) -> Expression:
        """Parse a sign and the number or expression after it."""
        sign = self._reader.advance().text
        number = self._reader.token
        # The sign is part of the number: the smallest integer has no positive counterpart in 64
        # bits.
        if sign == "-" and number.kind is TokenKind.INTEGER:
            self._reader.advance()
            return self._leaf(Integer(-int(number.value)))
        operand = self._expression(_SIGNED)
        if sign == "+":
            return operand
        match operand:
            case Integer(whole) if whole >= 0:
                return self._leaf(Integer(-whole))
            case Float(floating) if not str(floating).startswith("-"):
                return self._leaf(Float(-floating))
            case _:
                return self._one_level_deeper(Negative(operand))

    def _operand(self) -> Expression:
        """Parse a name, a function call or a literal."""
        token = self._reader.token
        if token.kind is TokenKind.NAME:
            named = read_name(self._reader)
            if isinstance(named, Reference) and not self._is_stored:
                self._check_height(len(named.steps) - 1)
            return self._leaf(named)
        if token.kind is TokenKind.KEYWORD and token.text == "NULL":
            raise self._reader.fault("a value (a missing one is found by IS NULL)")
        return self._leaf(self._literal("a value"))

    def _literal(self, expected: str) -> Literal:
        """Parse a literal. Raises ``InvalidSelector``, with ``expected`` in its text."""
        token = self._reader.token
        match token.kind:
            case TokenKind.TEXT:
                literal: Literal = Text(str(token.value))
            case TokenKind.INTEGER:
                literal = Integer(self._within_64_bits(token))
            case TokenKind.FLOAT:
                literal = Float(float(token.value))
            case TokenKind.KEYWORD if token.text in ("TRUE", "FALSE"):
                literal = Truth(token.text == "TRUE")
            case _:
                raise self._reader.fault(f"{expected} {self._reader.place}")
        self._reader.advance()
        return literal

    def _within_64_bits(self, token: Token) -> int:
        """Return the value of an integer token. Raises ``InvalidSelector`` for 2 ** 63, which is
        valid only after a minus sign."""
        value = int(token.value)
        if value == _INTEGER_END:
            raise self._reader.fault("a whole number of 64 bits (or one with '.0')", token)
        return value

    def _infix(self, left: Expression, power: int, start: Token) -> Expression:
        """Parse the operator after ``left`` and its right operand."""
        if power in (_OR, _AND):
            return self._chain(left, power, start)
        height = self._height
        if power == _PREDICATE:
            expression = self._predicate(left, start)
        else:
            operator = ArithmeticOperator(self._reader.advance().text)
            expression = Arithmetic(operator, left, self._expression(power + 1))
        self._height = max(height, self._height)
        return self._one_level_deeper(expression)

    def _chain(self, left: Expression, power: int, start: Token) -> Expression:
        """Parse all operands of a chain of AND or OR into one node."""
        word, kind = ("OR", Or) if power == _OR else ("AND", And)
        self._check_condition(left, start)
        # `(a AND b) AND c` also becomes one chain.
        operands = list(left.operands if isinstance(left, kind) else (left,))
        height = self._height
        while self._reader.accept(word):
            right = self._condition(power + 1)
            operands += right.operands if isinstance(right, kind) else (right,)
            height = max(height, self._height)
        self._height = height
        return self._one_level_deeper(kind(tuple(operands)))

    def _predicate(self, left: Expression, start: Token) -> Expression:
        """Parse the predicate whose left operand is ``left``."""
        token = self._reader.advance()
        negated = token.text == "NOT"
        if negated:
            token = self._reader.token
            if _is_matches(token):
                self._reader.advance()
            else:
                self._reader.expect("BETWEEN", "IN", "LIKE")
        height = self._height
        match token.text:
            case _ if _is_matches(token):
                predicate: Expression = Matches(left, self._filter(), negated)
            case "BETWEEN":
                low = self._expression(_SUM)
                height = max(height, self._height)
                self._reader.expect("AND")
                predicate = Between(left, low, self._expression(_SUM), negated=negated)
            case "IN":
                predicate = In(left, self._options(), negated)
            case "LIKE":
                predicate = Like(left, *self._pattern(), negated)
            case "IS":
                negated = self._reader.accept("NOT")
                self._reader.expect("NULL")
                predicate = IsNull(left, negated)
            case operator:
                predicate = Compare(Comparison(operator), left, self._expression(_SUM))
        self._height = max(height, self._height)
        self._check_each(predicate, start)
        return predicate

    def _options(self) -> tuple[Literal, ...]:
        """Parse the list of literals after ``IN``."""
        self._reader.expect("(")
        options = [self._option()]
        while self._reader.accept(","):
            options.append(self._option())
        self._reader.expect(")", ",")
        return tuple(options)

    def _option(self) -> Literal:
        """Parse one literal of the list after ``IN``; numbers may have a sign."""
        token = self._reader.token
        if token.kind is not TokenKind.SIGN or token.text not in ("+", "-"):
            return self._literal("a literal value")
        signed = self._signed()
        if not isinstance(signed, Integer | Float):
            raise self._reader.fault("a number after the sign", self._reader.previous)
        return signed

    def _pattern(self) -> tuple[str, str]:
        """Parse a LIKE pattern; return it with its escape character."""
        token = self._reader.token
        pattern = self._reader.text_literal("a pattern in single quotes")
        escape = ""
        if self._reader.accept("ESCAPE"):
            mark = self._reader.token
            escape = self._reader.text_literal("one character in single quotes")
            if len(escape) != 1:
                raise self._reader.fault("one character in single quotes", mark)
        if len(pattern) > PATTERN_MAX:
            raise self._reader.fault(f"a pattern of at most {PATTERN_MAX} characters", token)
        if not self._is_stored and (count := wildcards(pattern, escape)) > WILDCARDS_MAX:
            expected = f"a pattern with at most {WILDCARDS_MAX} wildcards"
            raise self._reader.fault(expected, token, f"{count} wildcards")
        if escape and _ends_in_escape(pattern, escape):
            raise self._reader.fault(f"a character after the last {escape!r} in it", token)
        return pattern, escape

    def _filter(self) -> str:
        """Parse and check the topic filter of MATCHES."""
        token = self._reader.token
        text = self._reader.text_literal("a topic filter in single quotes")
        if len(text) > PATTERN_MAX:
            raise self._reader.fault(f"a topic filter of at most {PATTERN_MAX} characters", token)
        if text.count("+") > WILDCARDS_MAX:
            raise self._reader.fault(f"a topic filter of at most {WILDCARDS_MAX} '+'", token)
        if wrong := filter_fault(text):
            raise self._reader.fault(f"a topic filter ({wrong})", token)
        return text

    def _check_condition(self, expression: Expression, start: Token) -> None:
        if not isinstance(expression, (*CONDITIONS, Truth, Reference)):
            raise self._reader.fault(
                "a condition (a comparison, or a boolean property)", start, "a plain value"
            )
        if isinstance(expression, Reference):
            self._check_each(expression, start)

    def _check_each(self, predicate: Expression, start: Token) -> None:
        if len(each_references(predicate)) > 1:
            raise self._reader.fault("at most one '[]' in one comparison", start, "several")

    def _leaf(self, expression: Expression) -> Expression:
        """Return an expression without operands, after setting the height of the parsed tree to
        1."""
        self._height = 1
        return expression

    def _one_level_deeper(self, expression: Expression) -> Expression:
        """Count one more level of nesting and return the expression. Raises ``InvalidSelector`` if
        it has too many levels."""
        self._height += 1
        self._check_height(self._height)
        return expression

    def _check_height(self, height: int) -> None:
        if height > DEPTH_MAX:
            raise self._reader.fault(
                f"at most {DEPTH_MAX} levels of nesting", self._reader.token, "a deeper one"
            )


def _is_matches(token: Token) -> bool:
    """Whether the word after a value is the operator MATCHES.

    The word is not a keyword, so that a property may have this name. After a value it can only be
    the operator, because no name is allowed there.
    """
    return token.kind is TokenKind.NAME and token.text.isascii() and token.text.upper() == "MATCHES"


def _ends_in_escape(pattern: str, escape: str) -> bool:
    """Whether the last escape character of a pattern has no character to escape."""
    # Two escape characters in a row stand for one plain character.
    trailing = len(pattern) - len(pattern.rstrip(escape))
    return trailing % 2 == 1
