"""Durations as users write them: a text such as ``"5s"``, or a ``timedelta``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

_DURATION: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

EXAMPLES: Final = "a text such as '500ms', '5s', '2m', '1h' or '1d', or a timedelta"
"""The allowed forms of a duration, for error texts."""


def duration_ms(value: object) -> float:
    """Return the milliseconds of a text or a ``timedelta``; NaN for any other value."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        return float(match[1]) * _UNIT_MS[match[2]] if match else math.nan
    if isinstance(value, timedelta):
        return value.total_seconds() * 1_000
    return math.nan


def whole_ms(value: object) -> object:
    """Return a duration in whole milliseconds; any other value unchanged, so that a check can name
    it."""
    ms = duration_ms(value)
    return round(ms) if ms >= 0 else value  # also false for NaN
