"""Checks SQL expressions in definitions, without Spark as far as possible, and with it.

Spark decides whether an expression is valid; but it starts late, and a typing error in a definition
is better reported at once.
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
_ALONE: Final = {
    **{quote: f"the {quote} is not closed" for quote in "'\"`"},
    ";": "it is one expression, without ;",
}


def words_of(key: str, text: str) -> list[str]:
    """The words and signs of an expression: words in lower case, texts and quoted names as ``'``
    and `` ` ``.

    Raises ``InvalidArgument`` that begins with ``key`` for what no expression is.
    """
    found, opened = [], []
    for token in _TOKENS.finditer(text):
        sign = token["sign"]
        if sign is not None:
            if sign in _ALONE:
                raise InvalidArgument(f"{key} is {text!r}; {_ALONE[sign]}")
            if sign in "([":
                opened.append(sign)
            elif sign in _CLOSING and (not opened or opened.pop() != _CLOSING[sign]):
                raise InvalidArgument(
                    f"{key} is {text!r}; it has a {sign} without its opening bracket"
                )
        found.append(_shown(token))
    words = [word for word in found if word]
    if opened:
        raise InvalidArgument(f"{key} is {text!r}; a {opened[-1]} is not closed")
    if not words:
        raise InvalidArgument(f"{key} is {text!r}; it must be an SQL expression")
    if "select" in words:
        raise InvalidArgument(f"{key} is {text!r}; it must not contain a query")
    return words


def _shown(token: re.Match[str]) -> str:
    """A token as a word; empty for blanks and comments."""
    if token["text"] or token["quoted"]:
        return token[0][0]
    return token[0].lower() if token.lastgroup else ""


def calls(words: list[str]) -> list[str]:
    """The functions that are called, by their names."""
    return [
        word
        for word, following in itertools.pairwise(words)
        if following == "(" and word.isidentifier()
    ]


@contextlib.contextmanager
def judged_by_spark(key: str, text: str) -> Iterator[None]:
    """Turn Spark's complaint about an expression into ``InvalidArgument`` that begins with the
    key."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise InvalidArgument(f"{key} is {text!r}; Spark says: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return first.partition("; line ")[0].rstrip(" ;:")
