"""Checks timeouts and counts that users pass."""

from __future__ import annotations

import math

from penstock.core.bounds import NUMBER_MAX
from penstock.core.vocabulary.errors import InvalidArgument

COUNT_MAX = NUMBER_MAX


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


def _is_time(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and given >= 0
