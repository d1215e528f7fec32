"""Durations as users write them: a text such as ``"5s"``, or a ``timedelta``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Milliseconds of each unit of a text."""

Milliseconds: TypeAlias = int | str | timedelta
"""Whole milliseconds, a text such as ``"500ms"`` or ``"1h"``, or a ``timedelta``."""

EXAMPLES: Final = "a text such as '500ms', '5s', '2m', '1h' or '1d', or a timedelta"
"""The allowed forms of a duration, for error texts."""

_DURATION: Final = re.compile(r"(\d{1,16}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_MILLISECOND: Final = timedelta(milliseconds=1)


def duration_ms(value: object) -> float:
    """Return the milliseconds of a text or a ``timedelta``; NaN for any other value."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            return math.nan
        number, unit_ms = match[1], UNITS_MS[match[2]]
        # A float has only 53 bits, so whole numbers stay integers.
        return float(number) * unit_ms if "." in number else int(number) * unit_ms
    if isinstance(value, timedelta):
        return value / _MILLISECOND
    return math.nan


def round_ms(ms: float) -> int:
    """Return a duration of 0 or more in whole milliseconds. A positive duration is at least 1 ms,
    because 0 often means that there is no limit."""
    return max(round(ms), 1) if ms else 0


def whole_ms(value: object) -> object:
    """Return a duration in whole milliseconds; any other value unchanged, so that a check can name
    it."""
    ms = duration_ms(value)
    return round_ms(ms) if ms >= 0 else value  # also false for NaN
