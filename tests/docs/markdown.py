"""Formats tables and texts for generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_RULE = re.compile(r"\s*\(SEM [^)]*\)")
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def cell(text: str) -> str:
    """Return a sentence of a docstring as a table cell."""
    return " ".join(prose(text).split()).replace("|", "\\|")


def prose(text: str) -> str:
    """Return a docstring as Markdown, without the numbers of rules."""
    text = _ROLE.sub(r"`\1`", _RULE.sub("", text))
    text = re.sub(r"(?<!`)``(?!`)", "`", text)
    in_code = re.split(r"(`[^`]*`)", text)  # outside of code
    return "".join(
        part if part.startswith("`") else re.sub(r"<(\w+)>", r"&lt;\1&gt;", part)
        for part in in_code
    )
