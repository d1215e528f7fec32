"""What is wrong with a selector's text, where, and what would be right."""

from __future__ import annotations

from typing import Final

from penstock.core.vocabulary.errors import InvalidSelector

_SHOWN_MAX: Final = 72
"""Most characters of the faulty line an error message repeats."""
_FOUND_MAX: Final = 40


class MalformedSelector(InvalidSelector):
    """Text that is not a selector (SEM F4). The message repeats the line, a caret below it."""

    def __init__(self, message: str, line: int = 1, column: int = 1, expected: str = "") -> None:
        super().__init__(message)
        self.line = line
        """From 1."""
        self.column = column
        """In characters, from 1; one past the last when the text ends too early."""
        self.expected = expected
        """What would have been right, in words."""


def fault(text: str, position: int, expected: str, found: str) -> MalformedSelector:
    """The error for ``text`` being wrong at index ``position``."""
    before = text[:position]
    line = before.count("\n") + 1
    start = before.rfind("\n") + 1
    column = position - start + 1
    if len(found) > _FOUND_MAX:
        found = f"{found[: _FOUND_MAX - 3]}..."
    excerpt = _excerpt(text[start:].split("\n", 1)[0], column - 1)
    message = f"selector line {line}, column {column}: expected {expected}, found {found}"
    return MalformedSelector(f"{message}\n{excerpt}", line, column, expected)


def _excerpt(line: str, index: int) -> str:
    """The line, or its part around ``index``, and a caret under that character."""
    first = max(0, min(index - _SHOWN_MAX // 2, len(line) - _SHOWN_MAX))
    shown = line[first : first + _SHOWN_MAX]
    shown = "".join(c if c.isprintable() else " " for c in shown)
    return f"  {shown}\n  {' ' * (index - first)}^"
