"""Selector text cut into tokens, each with its place in the text."""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import Final

from msgspec import Struct

from penstock.columns.selectors.faults import fault

LENGTH_MAX: Final = 65_536
"""Most characters in one selector."""

KEYWORDS: Final = frozenset(
    ("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE")
)

_INTEGER_DIGITS_MAX: Final = 19
_INTEGER_MAX: Final = (1 << 63) - 1

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<text>'(?:[^']|'')*+')
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lLfFdD]?)
    |(?P<word>(?:[^\W\d]|\$)[\w$]*)
    |(?P<sign><>|<=|>=|[=<>+\-*/().,\[\]])""",
    re.VERBOSE,
)
_WORD_PART: Final = re.compile(r"[\w$]")


class Kind(Enum):
    """What a token is."""

    NAME = "name"
    KEYWORD = "keyword"
    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    SIGN = "sign"
    END = "end"


class Token(Struct, frozen=True):
    """A piece of selector text."""

    kind: Kind
    text: str
    """As written; a keyword in capitals."""
    position: int
    """Index of its first character in the selector."""
    value: int | float | str = ""
    """Of a literal: what it stands for."""

    @property
    def shown(self) -> str:
        """How an error message names this token."""
        if self.kind is Kind.END:
            return "end of text"
        return self.text if self.kind is Kind.TEXT else f"'{self.text}'"


def tokenize(text: str) -> list[Token]:
    """The tokens of ``text``, the last one of kind ``END``. Raises ``InvalidSelector``."""
    _check_text(text)
    tokens = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _stray(text, position)
        if found.lastgroup != "space":
            tokens.append(_token(found, text))
        position = found.end()
    tokens.append(Token(Kind.END, "", len(text)))
    return tokens


def _check_text(text: str) -> None:
    if len(text) > LENGTH_MAX:
        raise fault(
            text,
            LENGTH_MAX,
            f"at most {LENGTH_MAX} characters",
            f"{len(text)} of them",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise fault(text, error.start, "Unicode text", "half of a surrogate pair") from error


def _stray(text: str, position: int) -> Exception:
    found = text[position]
    if found == "'":
        return fault(text, position, "a closing quote for the text that begins here", "end of text")
    if text.startswith("!=", position):
        return fault(text, position, "'<>'", "'!='")
    if found == '"':
        return fault(text, position, "text in single quotes or a name without quotes", "'\"'")
    return fault(text, position, "a name, a value or an operator", repr(found))


def _token(found: re.Match[str], text: str) -> Token:
    written, position = found.group(), found.start()
    match found.lastgroup:
        case "text":
            return Token(Kind.TEXT, written, position, written[1:-1].replace("''", "'"))
        case "number":
            follower = text[found.end() : found.end() + 1]
            if _WORD_PART.match(follower):
                raise fault(text, position, "a decimal number", f"'{written}{follower}'")
            return _number(written, position, text)
        case "word":
            capitals = written.upper()
            # Only ASCII: the upper case of a dotless i would make keywords out of names.
            if written.isascii() and capitals in KEYWORDS:
                return Token(Kind.KEYWORD, capitals, position)
            return Token(Kind.NAME, written, position)
        case _:
            return Token(Kind.SIGN, written, position)


def _number(written: str, position: int, text: str) -> Token:
    suffix = written[-1] if written[-1] in "lLfFdD" else ""
    digits = written.removesuffix(suffix) if suffix else written
    if digits.isdigit() and suffix not in tuple("fFdD"):
        return Token(Kind.INTEGER, written, position, _integer(digits, position, text))
    if suffix in ("l", "L"):
        raise fault(text, position, "a whole number before 'L'", f"'{written}'")
    value = float(digits)
    if math.isinf(value):
        raise fault(text, position, "a number that fits 64-bit floating point", f"'{written}'")
    return Token(Kind.FLOAT, written, position, value)


def _integer(digits: str, position: int, text: str) -> int:
    significant = digits.lstrip("0") or "0"
    # One more than the largest is let through: the parser accepts it behind a minus sign.
    if len(significant) <= _INTEGER_DIGITS_MAX and int(significant) <= _INTEGER_MAX + 1:
        return int(significant)
    raise fault(text, position, "a whole number of 64 bits (or one with '.0')", f"'{digits}'")
