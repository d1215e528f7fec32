"""One bound on how deep values from outside may be nested, checked before any parser sees them.

Parsers recurse over what they read, some of them in native code without a bound of their own: a
few kilobytes of brackets then overflow the stack and end the process. Every place that decodes
bytes from outside calls `check_json_nesting` first, or counts levels itself and refuses more than
`NESTING_MAX`.
"""

from __future__ import annotations

import re
from typing import Final

from penstock_core.vocabulary.errors import InvalidArgument

NESTING_MAX: Final = 100
"""Most levels of lists, objects, message types or described values inside one another."""

_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NEITHER_BRACKET_NOR_QUOTE: Final = bytes(set(range(256)) - set(b'[]{}"'))
_RUNS: Final = re.compile(rb"\[+|\]+")
_PASSES: Final = 8
"""Innermost levels that are taken away by `bytes.replace` before runs are counted in Python: most
long texts are flat, and are done after two or three."""


def json_nesting(data: bytes | bytearray | memoryview | str) -> int:
    """Return how many levels of arrays and objects a JSON text has inside one another; a larger
    number than `NESTING_MAX` means only that there are more.

    Brackets inside strings do not count. A text that is not JSON may get too large a number, but
    never one that is smaller than the levels a parser enters before it finds the mistake.
    """
    text = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
    opened = text.count(b"[") + text.count(b"{")
    if opened <= NESTING_MAX:  # most texts: the number of brackets bounds the levels
        return opened
    return _levels(_outside_strings(text))


def check_json_nesting(
    data: bytes | bytearray | memoryview | str, what: str = "the JSON text"
) -> None:
    """Raise InvalidArgument if ``data`` is nested more than `NESTING_MAX` levels deep; ``what``
    begins the message."""
    if json_nesting(data) > NESTING_MAX:
        raise InvalidArgument(
            f"{what} is nested too deep; at most {NESTING_MAX} levels of arrays and objects "
            "are allowed"
        )


def _outside_strings(text: bytes) -> bytes:
    """The brackets of a JSON text that are not in strings, all of them square."""
    # Escapes first, from left to right: once a backslash pair and an escaped quote are gone, every
    # quote that is left begins or ends a string.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = unescaped.translate(_TO_SQUARE, _NEITHER_BRACKET_NOR_QUOTE).split(b'"')[::2]
    return b"".join(outside)


def _levels(brackets: bytes) -> int:
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
