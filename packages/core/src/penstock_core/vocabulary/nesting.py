"""A bound on the nesting of outside values, checked before a parser reads them.

Parsers recurse over their input, some of them in native code without a bound: a few kilobytes of
brackets overflow the stack and end the process. All code that decodes bytes from outside calls
`check_json_nesting` first, or counts levels itself and refuses more than `NESTING_MAX`.
"""

from __future__ import annotations

import re
from typing import Final

from penstock_core.vocabulary.errors import InvalidArgument

NESTING_MAX: Final = 100
"""Maximum number of levels of lists, objects, message types or described values inside one
another."""

_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NEITHER_BRACKET_NOR_QUOTE: Final = bytes(set(range(256)) - set(b'[]{}"'))
_RUNS: Final = re.compile(rb"\[+|\]+")
_PASSES: Final = 8
"""Innermost levels that `bytes.replace` removes before runs are counted in Python. Most long texts
are flat and need two or three passes."""


def json_nesting(data: bytes | bytearray | memoryview | str) -> int:
    """Return the nesting depth of arrays and objects in a JSON text; a result above `NESTING_MAX`
    only means that the depth exceeds it.

    Brackets inside strings do not count. For a text that is not JSON the result may be too large,
    but never smaller than the depth that a parser reaches before it finds the error.
    """
    text = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
    opened = text.count(b"[") + text.count(b"{")
    if opened <= NESTING_MAX:  # most texts: the number of brackets bounds the levels
        return opened
    return _levels(_outside_strings(text))


def check_json_nesting(
    data: bytes | bytearray | memoryview | str, subject: str = "the JSON text"
) -> None:
    """Raise InvalidArgument if ``data`` is nested more than `NESTING_MAX` levels deep; ``subject``
    begins the message."""
    if json_nesting(data) > NESTING_MAX:
        raise InvalidArgument(
            f"{subject} is nested too deep; at most {NESTING_MAX} levels of arrays and objects "
            "are allowed"
        )


def _outside_strings(text: bytes) -> bytes:
    """Return the brackets of a JSON text that are not in strings, all changed to square ones."""
    # Escapes first, from left to right: after pairs of backslashes and escaped quotes are removed,
    # every remaining quote begins or ends a string.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = unescaped.translate(_TO_SQUARE, _NEITHER_BRACKET_NOR_QUOTE).split(b'"')[::2]
    return b"".join(outside)


def _levels(brackets: bytes) -> int:
    """Return the nesting depth of a sequence of brackets, at most a few above `NESTING_MAX`."""
    # Each pass removes the innermost level in native code, which is faster than the loop below.
    for level in range(_PASSES):
        if not brackets:
            return level
        brackets = brackets.replace(b"[]", b"")
    depth = deepest = 0
    for run in _RUNS.findall(brackets):
        depth += len(run) if run.startswith(b"[") else -len(run)
        deepest = max(deepest, depth)
        if deepest > NESTING_MAX:
            break
    return deepest + _PASSES
