"""Syntax errors of selectors: the mistake, its position, and what was expected."""

from __future__ import annotations

from typing import Final

from penstock_core.vocabulary.errors import InvalidSelector

_SHOWN_MAX: Final = 72
"""Maximum number of characters of the wrong line that an error message quotes."""
_ACTUAL_MAX: Final = 40
"""Maximum number of characters of the wrong text that an error message quotes."""


class MalformedSelector(InvalidSelector):
    """Raised for text that is not a selector (SEM F4). A caret in the message marks the
    position."""

    def __init__(self, message: str, line: int = 1, column: int = 1, expected: str = "") -> None:
        super().__init__(message)
        self.line = line
        """Line number, from 1."""
        self.column = column
        """Column in characters, from 1; one past the last character if the text ends too early."""
        self.expected = expected
        """Description of the expected text."""


def fault(text: str, position: int, expected: str, actual: str) -> MalformedSelector:
    """Return the error for a mistake in ``text`` at index ``position``.

    ``actual`` is the wrong text, as the message shows it.
    """
    before = text[:position]
    line = before.count("\n") + 1
    start = before.rfind("\n") + 1
    column = position - start + 1
    if len(actual) > _ACTUAL_MAX:
        actual = f"{actual[: _ACTUAL_MAX - 3]}..."
    excerpt = _excerpt(text[start:].split("\n", 1)[0], column - 1)
    message = f"selector line {line}, column {column}: expected {expected}, found {actual}"
    return MalformedSelector(f"{message}\n{excerpt}", line, column, expected=expected)


def _excerpt(line: str, index: int) -> str:
    """Return the line, or its part around ``index``, and a caret under that character."""
    first = max(0, min(index - _SHOWN_MAX // 2, len(line) - _SHOWN_MAX))
    shown = line[first : first + _SHOWN_MAX]
    shown = "".join(c if c.isprintable() else " " for c in shown)
    return f"  {shown}\n  {' ' * (index - first)}^"
