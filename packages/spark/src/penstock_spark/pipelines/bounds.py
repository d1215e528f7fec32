"""Parses bounds of steps (ids, times and selectors), and formats times."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from penstock_core.columns.schema.moments import moment_of
from penstock_core.columns.selectors import Selector
from penstock_core.vocabulary.errors import InvalidArgument, InvalidSelector


def parse_bound(key: str, value: Any) -> int | datetime | dict[str, int] | None:
    """Parse a bound. Raises ``InvalidArgument`` if it is not one."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment
    if isinstance(value, dict) and value and all(type(item) is int for item in value.values()):
        return value
    raise InvalidArgument(
        f"{key} is {str(value)!r}; it must be an event id, a time with a time zone such as "
        "2013-01-31T09:30:00Z, or a table of channel = id"
    )


def bound(value: Any, channel: str) -> int | datetime | None:
    """Return the bound that applies to a channel."""
    parsed = parse_bound("from", value)
    return parsed.get(channel) if isinstance(parsed, dict) else parsed


def check_selector(text: str) -> None:
    """Raise ``InvalidArgument`` for an invalid selector; an empty selector matches all events."""
    try:
        if text:
            Selector(text)
    except InvalidSelector as error:
        raise InvalidArgument(str(error)) from error  # it begins with the key


def format_time(us: int) -> str:
    """Return a readable time in UTC."""
    return f"{moment_of(us):%Y-%m-%d %H:%M:%S}"
