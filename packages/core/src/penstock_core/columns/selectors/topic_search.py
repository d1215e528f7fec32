"""Topic filters on columns of texts. Arrow does the whole search; no text is handled in Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.selectors.patterns import Check
from penstock_core.columns.selectors.typed_columns import Column
from penstock_core.vocabulary.topics import has_wildcards

_LEVEL: Final = "[^/]*"
"""Regular expression of a wildcard for one level, except at the beginning."""
_FIRST_LEVEL: Final = r"(?:[^/$][^/]*)?"
"""Regular expression of a wildcard at the beginning: a level that does not begin with ``$``."""


def topic_search(text: str) -> Callable[[Column, Check], Column]:
    """Return a function that returns which texts a topic filter matches; null stays null."""
    if not has_wildcards(text):
        exact = pa.scalar(text)
        return lambda topics, _: pc.equal(topics, exact)
    pattern = _pattern(text)
    return lambda topics, _: pc.match_substring_regex(topics, pattern)


def topic_search_work(text: str) -> int:
    """Return the approximate cost of a search, relative to the cost of one comparison."""
    return 1 + 2 * text.count("+") + 2 * text.count("#")


def _pattern(text: str) -> str:
    """Return the filter as a regular expression of RE2, whose work is linear in the length of a
    text."""
    # A wildcard at the beginning does not match topics that begin with ``$``.
    if text == "#":
        return r"\A(?:[^$]|\z)"
    levels = text.removesuffix("/#").split("/")
    words = [_LEVEL if level == "+" else re.escape(level) for level in levels]
    if levels[0] == "+":
        words[0] = _FIRST_LEVEL
    end = r"(?:/|\z)" if text.endswith("/#") else r"\z"
    return rf"\A{'/'.join(words)}{end}"
