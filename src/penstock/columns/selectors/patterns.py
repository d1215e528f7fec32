"""LIKE patterns, turned into the cheapest search that means the same (SEM F1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns.selectors.lanes import Column

_ANY: Final = "%"
_ONE: Final = "_"

Part = str | None
"""A piece of fixed text, or a wildcard: ``""`` for any text, None for any one character."""


def search(pattern: str, escape: str = "") -> Callable[[Column], Column]:
    """What finds the texts that fit ``pattern``; null stays null."""
    match parts(pattern, escape):
        case []:
            return lambda texts: pc.equal(texts, pa.scalar(""))
        case [str(text)] if text:
            exact = pa.scalar(text)
            return lambda texts: pc.equal(texts, exact)
        case [""]:
            return lambda texts: pc.greater_equal(texts, pa.scalar(""))
        case [str(text), ""] if text:
            return lambda texts: pc.starts_with(texts, text)
        case ["", str(text)] if text:
            return lambda texts: pc.ends_with(texts, text)
        case ["", str(text), ""] if text:
            return lambda texts: pc.match_substring(texts, text)
        case found:
            expression = _regular_expression(found)
            return lambda texts: pc.match_substring_regex(texts, expression)


def parts(pattern: str, escape: str = "") -> list[Part]:
    """The fixed pieces and wildcards of ``pattern``, neighbours merged."""
    found: list[Any] = []
    escaped = False
    for character in pattern:
        if escape and character == escape and not escaped:
            escaped = True
            continue
        if character == _ONE and not escaped:
            found.append(None)
        elif character == _ANY and not escaped:
            if found[-1:] != [""]:
                found.append("")
        elif found and found[-1]:
            found[-1] += character
        else:
            found.append(character)
        escaped = False
    return found


def _regular_expression(found: list[Part]) -> str:
    pieces = [r"(?s)\A"]
    for part in found:
        if part is None:
            pieces.append(".")
        else:
            pieces.append("".join(map(_plain, part)) if part else ".*")
    return "".join([*pieces, r"\z"])


def _plain(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    return rf"\x{{{ord(character):x}}}"
