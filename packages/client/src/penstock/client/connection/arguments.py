"""Checks timeouts, counts and durations that users pass."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeAlias, TypeGuard

from penstock_core.bounds import NUMBER_MAX
from penstock_core.columns.events.durations import EXAMPLES, duration_ms
from penstock_core.vocabulary.errors import InvalidArgument

COUNT_MAX = NUMBER_MAX

Duration: TypeAlias = str | float | timedelta
"""Seconds, a text such as ``"5s"`` or ``"1.5h"``, or a ``timedelta``."""


def timeout_s(given: object) -> float | None:
    """Seconds of a timeout from 0 on; None is for ever. Raises ``InvalidArgument``."""
    if given is None:
        return None
    seconds = _seconds(given)
    if not 0 <= seconds < math.inf:
        raise InvalidArgument(
            f"timeout is {given!r}; give seconds, 0 or more, {EXAMPLES}, or None to wait without a "
            "limit"
        )
    return seconds


def wait_s(given: object, name: str) -> float:
    """Seconds from 0 on, without a limit. Raises ``InvalidArgument``."""
    seconds = _seconds(given)
    if not seconds >= 0:
        raise InvalidArgument(f"{name} is {given!r}; give seconds, 0 or more, {EXAMPLES}")
    return seconds


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
    ms = given * 1_000.0 if _is_number(given) else duration_ms(given)
    if not 0 <= ms <= NUMBER_MAX:
        raise InvalidArgument(f"{name} is {given!r}; give seconds, 0 or more, {EXAMPLES}")
    return round(ms)


def _seconds(given: object) -> float:
    return given if _is_number(given) else duration_ms(given) / 1_000


def _is_number(given: object) -> TypeGuard[float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _is_time(given: object) -> bool:
    return _is_number(given) and given >= 0
