"""Checks timeouts, counts and durations that users pass."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

from penstock.core.bounds import NUMBER_MAX
from penstock.core.vocabulary.errors import InvalidArgument

COUNT_MAX = NUMBER_MAX

Duration: TypeAlias = str | float | timedelta
"""Seconds, a text such as ``"5s"`` or ``"1.5h"``, or a ``timedelta``."""

_DURATION: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def check_timeout(given: object) -> None:
    """Seconds from 0 on; None is for ever. Raises ``InvalidArgument``."""
    if given is not None and not (_is_time(given) and given != math.inf):
        raise InvalidArgument(
            f"timeout is {given!r}; give seconds, 0 or more, or None to wait without a limit"
        )


def check_wait(given: object, name: str, unit: str) -> None:
    """A time from 0 on. Raises ``InvalidArgument``."""
    if not _is_time(given):
        raise InvalidArgument(f"{name} is {given!r}; give {unit}, 0 or more")


def check_count(given: object, name: str, of: str = "events") -> None:
    """A whole number from 1 on. Raises ``InvalidArgument``."""
    if type(given) is not int or not 1 <= given <= COUNT_MAX:
        raise InvalidArgument(f"{name} is {given!r}; give a whole number of {of}, 1 or more")


def milliseconds(given: object, name: str) -> int:
    """A duration of 0 or more in whole milliseconds. Raises ``InvalidArgument``."""
    ms = math.nan
    if isinstance(given, str):
        found = _DURATION.fullmatch(given)
        ms = float(found[1]) * _UNIT_MS[found[2]] if found else math.nan
    elif isinstance(given, timedelta):
        ms = given.total_seconds() * 1_000
    elif isinstance(given, int | float) and not isinstance(given, bool):
        ms = given * 1_000.0
    if not 0 <= ms <= NUMBER_MAX:
        raise InvalidArgument(
            f"{name} is {given!r}; give seconds, 0 or more, a text such as '500ms', '5s', '2m', "
            "'1h' or '1d', or a timedelta"
        )
    return round(ms)


def _is_time(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and given >= 0
