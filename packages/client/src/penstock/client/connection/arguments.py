"""Checks and conversions of the timeouts, counts and durations that users pass."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeAlias, TypeGuard

from penstock_core.bounds import NUMBER_MAX
from penstock_core.columns.events.durations import EXAMPLES, duration_ms, round_ms
from penstock_core.vocabulary.errors import InvalidArgument

COUNT_MAX = NUMBER_MAX
"""Largest count that a request can contain."""

Duration: TypeAlias = str | float | timedelta
"""Seconds, a text such as ``"5s"`` or ``"1.5h"``, or a ``timedelta``."""


def timeout_s(value: object) -> float | None:
    """Return a timeout in seconds; None means that the call waits without a limit.

    Raises ``InvalidArgument`` unless ``value`` is a finite duration of 0 or more.
    """
    if value is None:
        return None
    seconds = _seconds(value)
    if not 0 <= seconds < math.inf:
        raise InvalidArgument(
            f"timeout is {value!r}; give seconds, 0 or more, {EXAMPLES}, or None to wait without a "
            "limit"
        )
    return seconds


def wait_s(value: object, name: str) -> float:
    """Return a waiting time in seconds, which may be infinite.

    Raises ``InvalidArgument``, which calls the value ``name``, unless it is 0 or more.
    """
    seconds = _seconds(value)
    if not seconds >= 0:
        raise InvalidArgument(f"{name} is {value!r}; give seconds, 0 or more, {EXAMPLES}")
    return seconds


def wait_ms(value: object, name: str) -> float:
    """Return a waiting time in milliseconds, which may be infinite. A number without a unit is in
    milliseconds, too.

    Raises ``InvalidArgument``, which calls the value ``name``, unless it is 0 or more.
    """
    ms = _number(value) if _is_number(value) else duration_ms(value)
    if not ms >= 0:
        raise InvalidArgument(f"{name} is {value!r}; give milliseconds, 0 or more, {EXAMPLES}")
    return ms


def check_count(value: object, name: str, unit: str = "events") -> None:
    """Raise ``InvalidArgument`` unless ``value`` is a whole number of 1 or more. The error calls
    the value ``name`` and asks for ``unit``."""
    if type(value) is not int or not 1 <= value <= COUNT_MAX:
        raise InvalidArgument(f"{name} is {value!r}; give a whole number of {unit}, 1 or more")


def milliseconds(value: object, name: str) -> int:
    """Return a duration in whole milliseconds; a number is in seconds.

    Raises ``InvalidArgument``, which calls the value ``name``, unless it is 0 or more and fits into
    a request.
    """
    ms = _number(value) * 1_000 if _is_number(value) else duration_ms(value)
    if not 0 <= ms <= NUMBER_MAX:
        raise InvalidArgument(f"{name} is {value!r}; give seconds, 0 or more, {EXAMPLES}")
    return round_ms(ms)


def _seconds(value: object) -> float:
    return _number(value) if _is_number(value) else duration_ms(value) / 1_000


def _number(value: float) -> float:
    """Return a number as a float; infinite if it is an integer that is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_number(value: object) -> TypeGuard[float]:
    # Python counts True and False as numbers.
    return isinstance(value, int | float) and not isinstance(value, bool)
