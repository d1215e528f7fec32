"""Bounds of steps: ids, times and selectors, and how times are written."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from penstock_core.columns.schema.moments import moment_of
from penstock_core.columns.selectors import Selector
from penstock_core.vocabulary.errors import InvalidArgument, InvalidSelector


def moment_or_ids(key: str, given: Any) -> int | datetime | dict[str, int] | None:
    """Parse a bound. Raises ``InvalidArgument`` if it is not one."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        return given
    if isinstance(given, datetime) and given.tzinfo is not None:
        return given
    if isinstance(given, str):
        try:
            moment = datetime.fromisoformat(given)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment
    if isinstance(given, dict) and given and all(type(value) is int for value in given.values()):
        return given
    raise InvalidArgument(
        f"{key} is {str(given)!r}; it is an event id, a time with a time zone such as "
        "2013-01-31T09:30:00Z, or a table of channel = id"
    )


def bound(given: Any, channel: str) -> int | datetime | None:
    """The bound that applies to a channel."""
    found = moment_or_ids("from", given)
    return found.get(channel) if isinstance(found, dict) else found


def check_selector(text: str) -> None:
    """Raises ``InvalidArgument`` for what is no selector; an empty one selects everything."""
    try:
        if text:
            Selector(text)
    except InvalidSelector as error:
        raise InvalidArgument(str(error)) from error  # it begins with the key


def said_time(us: int) -> str:
    """A time for people, in UTC."""
    return f"{moment_of(us):%Y-%m-%d %H:%M:%S}"
