"""Splits selector text into tokens, each with its position."""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import Final

from msgspec import Struct

from penstock_core.columns.selectors.faults import fault

LENGTH_MAX: Final = 65_536
"""Maximum number of characters in one selector."""

KEYWORDS: Final = frozenset(
    ("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE")
)

_DIGITS_MAX: Final = 66
"""Maximum number of significant digits that can fit 64 bits in any base; longer numbers are not
converted."""
_OCTAL: Final = 8
"""The base of numbers that begin with 0."""
_OCTAL_DIGITS: Final = frozenset("01234567")
_INTEGER_MAX: Final = (1 << 63) - 1

# Text is matched possessively (``*+``): an unclosed quote must not backtrack over the whole
# selector.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<text>'(?:[^']|'')*+')
    |(?P<based>0[xX][0-9a-fA-F]+[lL]?|0[bB][01]+[lL]?)
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lLfFdD]?)
    |(?P<word>(?:[^\W\d]|\$)[\w$]*)
    |(?P<sign><>|<=|>=|[=<>+\-*/().,\[\]])""",
    re.VERBOSE,
)
_WORD_PART: Final = re.compile(r"[\w$]")


class TokenKind(Enum):
    """The kind of a token."""

    NAME = "name"
    KEYWORD = "keyword"
    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    SIGN = "sign"
    END = "end"


class Token(Struct, frozen=True, gc=False):
    """A piece of selector text."""

    kind: TokenKind
    text: str
    """The text as written; keywords in capitals."""
    position: int
    """Index of the token's first character in the selector."""
    value: int | float | str = ""
    """The value of a literal; empty for other tokens."""

    @property
    def shown(self) -> str:
        """The name of this token in error messages."""
        if self.kind is TokenKind.END:
            return "end of text"
        return self.text if self.kind is TokenKind.TEXT else f"'{self.text}'"


def tokenize(text: str) -> list[Token]:
    """Return the tokens of ``text``, the last one of kind ``END``. Raises ``InvalidSelector``."""
    _check_text(text)
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _stray(text, position)
        if match.lastgroup != "space":
            tokens.append(_token(match, text))
        position = match.end()
    tokens.append(Token(TokenKind.END, "", len(text)))
    return tokens


def _check_text(text: str) -> None:
    """Raise ``InvalidSelector`` for text that is too long or not Unicode."""
    if len(text) > LENGTH_MAX:
        raise fault(
            text,
            LENGTH_MAX,
            f"at most {LENGTH_MAX} characters",
            actual=f"{len(text)} of them",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise fault(text, error.start, "Unicode text", actual="half of a surrogate pair") from error


def _stray(text: str, position: int) -> Exception:
    """Return the error for a character that begins no token."""
    character = text[position]
    if character == "'":
        return fault(
            text, position, "a closing quote for the text that begins here", actual="end of text"
        )
    if text.startswith("!=", position):
        return fault(text, position, "'<>'", actual="'!='")
    if character == '"':
        return fault(
            text, position, "text in single quotes or a name without quotes", actual="'\"'"
        )
    return fault(text, position, "a name, a value or an operator", actual=repr(character))


def _token(match_: re.Match[str], text: str) -> Token:
    """Return the token of a match. Raises ``InvalidSelector``."""
    written, position = match_.group(), match_.start()
    match match_.lastgroup:
        case "text":
            return Token(TokenKind.TEXT, written, position, value=written[1:-1].replace("''", "'"))
        case "number" | "based":
            follower = text[match_.end() : match_.end() + 1]
            if _WORD_PART.match(follower):
                raise fault(text, position, "a number", actual=f"'{written}{follower}'")
            return _number(written, position, text)
        case "word":
            capitals = written.upper()
            # ASCII only: the upper case of a dotless i is "I", which could make a keyword.
            if written.isascii() and capitals in KEYWORDS:
                return Token(TokenKind.KEYWORD, capitals, position)
            return Token(TokenKind.NAME, written, position)
        case _:
            return Token(TokenKind.SIGN, written, position)


def _number(written: str, position: int, text: str) -> Token:
    """Return the token of a number. Raises ``InvalidSelector``."""
    if written[:2] in ("0x", "0X", "0b", "0B"):
        digits = written.rstrip("lL")
        return Token(
            TokenKind.INTEGER, written, position, value=_integer(digits, position, text, base=0)
        )
    suffix = written[-1] if written[-1] in "lLfFdD" else ""
    digits = written.removesuffix(suffix) if suffix else written
    if digits.isdigit() and suffix not in tuple("fFdD"):
        # A leading zero means base 8, as in Java.
        base = _OCTAL if digits[0] == "0" else 10
        return Token(
            TokenKind.INTEGER, written, position, value=_integer(digits, position, text, base=base)
        )
    if suffix in ("l", "L"):
        raise fault(text, position, "a whole number before 'L'", actual=f"'{written}'")
    value = float(digits)
    if math.isinf(value):
        raise fault(
            text, position, "a number that fits 64-bit floating point", actual=f"'{written}'"
        )
    return Token(TokenKind.FLOAT, written, position, value=value)


def _integer(digits: str, position: int, text: str, *, base: int) -> int:
    """Return the value of a whole number. Raises ``InvalidSelector`` if it does not fit 64 bits."""
    if base == _OCTAL and not _OCTAL_DIGITS.issuperset(digits):
        expected = "digits 0 to 7 (a zero in front means base 8)"
        raise fault(text, position, expected, actual=f"'{digits}'")
    # One more than the largest value is allowed: the parser accepts it after a minus sign.
    if len(digits.lstrip("0")) <= _DIGITS_MAX and (value := int(digits, base)) <= _INTEGER_MAX + 1:
        return value
    raise fault(
        text, position, "a whole number of 64 bits (or one with '.0')", actual=f"'{digits}'"
    )
