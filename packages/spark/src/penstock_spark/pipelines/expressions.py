"""Checks the SQL expressions in definitions.

Spark decides whether an expression is valid. Because Spark starts only when the pipeline runs, this
module also finds simple mistakes without Spark, so that they are reported immediately.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Final

from penstock_core.vocabulary.errors import InvalidArgument

_TOKENS: Final = re.compile(
    r"""\s+|--[^\n]*|/\*.*?\*/
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[A-Za-z]*)
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
_CLOSING: Final = {")": "(", "]": "["}
_REFUSED_SIGNS: Final = {
    **{quote: f"the {quote} is not closed" for quote in "'\"`"},
    ";": "it is one expression, without ;",
}


def tokens_of(key: str, text: str) -> list[str]:
    """Return the tokens of an expression, without blanks and comments.

    Words are in lower case. A text or quoted name is represented by its quote only. Raises
    ``InvalidArgument``, with a text that begins with ``key``, if a quote or bracket is not closed,
    or if the text is empty or a whole query.
    """
    tokens, open_brackets = [], []
    for token in _TOKENS.finditer(text):
        sign = token["sign"]
        if sign is not None:
            if sign in _REFUSED_SIGNS:
                raise InvalidArgument(f"{key} is {text!r}; {_REFUSED_SIGNS[sign]}")
            if sign in "([":
                open_brackets.append(sign)
            elif sign in _CLOSING and (not open_brackets or open_brackets.pop() != _CLOSING[sign]):
                raise InvalidArgument(
                    f"{key} is {text!r}; it has a {sign} without its opening bracket"
                )
        tokens.append(_token_word(token))
    words = [word for word in tokens if word]
    if open_brackets:
        raise InvalidArgument(f"{key} is {text!r}; a {open_brackets[-1]} is not closed")
    if not words:
        raise InvalidArgument(f"{key} is {text!r}; it must be an SQL expression")
    if "select" in words:
        raise InvalidArgument(f"{key} is {text!r}; it must not contain a query")
    return words


def _token_word(token: re.Match[str]) -> str:
    """Return the form of a token in the result of :func:`tokens_of`; empty for blanks and
    comments."""
    if token["text"] or token["quoted"]:
        return token[0][0]
    return token[0].lower() if token.lastgroup else ""


def called_functions(words: list[str]) -> list[str]:
    """Return the words that are followed by an opening bracket: the called functions."""
    return [
        word
        for word, following in itertools.pairwise(words)
        if following == "(" and word.isidentifier()
    ]


@contextlib.contextmanager
def explaining_sql(key: str, text: str) -> Iterator[None]:
    """Convert an error of Spark about the expression ``text`` to ``InvalidArgument``, with a text
    that begins with ``key``."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise InvalidArgument(f"{key} is {text!r}; Spark says: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Return the first line of a Spark error, without the position in the expression."""
    first = str(error).strip().partition("\n")[0]
    return first.partition("; line ")[0].rstrip(" ;:")
