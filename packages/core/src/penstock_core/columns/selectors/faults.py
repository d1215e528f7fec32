"""Syntax errors of selectors: what is wrong, where, and what was expected."""

from __future__ import annotations

from typing import Final

from penstock_core.vocabulary.errors import InvalidSelector

_SHOWN_MAX: Final = 72
"""Most characters of the wrong line that an error message quotes."""
_FOUND_MAX: Final = 40


class MalformedSelector(InvalidSelector):
    """Raised for text that is not a selector (SEM F4). The message marks the place by a caret."""

    def __init__(self, message: str, line: int = 1, column: int = 1, expected: str = "") -> None:
        super().__init__(message)
        self.line = line
        """Line number, from 1."""
        self.column = column
        """Column in characters, from 1; one past the last character if the text ends too early."""
        self.expected = expected
        """What was expected, in words."""


def fault(text: str, position: int, expected: str, found: str) -> MalformedSelector:
    """The error for a mistake in ``text`` at index ``position``."""
    before = text[:position]
    line = before.count("\n") + 1
    start = before.rfind("\n") + 1
    column = position - start + 1
    if len(found) > _FOUND_MAX:
        found = f"{found[: _FOUND_MAX - 3]}..."
    excerpt = _excerpt(text[start:].split("\n", 1)[0], column - 1)
    message = f"selector line {line}, column {column}: expected {expected}, found {found}"
    return MalformedSelector(f"{message}\n{excerpt}", line, column, expected=expected)


def _excerpt(line: str, index: int) -> str:
    """The line, or its part around ``index``, and a caret under that character."""
    first = max(0, min(index - _SHOWN_MAX // 2, len(line) - _SHOWN_MAX))
    shown = line[first : first + _SHOWN_MAX]
    shown = "".join(c if c.isprintable() else " " for c in shown)
    return f"  {shown}\n  {' ' * (index - first)}^"
