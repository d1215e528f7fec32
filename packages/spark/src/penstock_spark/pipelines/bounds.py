"""Parses the bounds of steps (ids, times and selectors), and formats times for display."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from penstock_core.columns.schema.moments import moment_of
from penstock_core.columns.selectors import Selector
from penstock_core.vocabulary.errors import InvalidArgument, InvalidSelector


def parse_bound(key: str, value: Any) -> int | datetime | dict[str, int] | None:
    """Return the parsed value of ``key``: an id, a time, an id for each channel, or None.

    Raises ``InvalidArgument`` for another value.
    """
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
    """Return the bound of one channel, from a value that may have a bound for each channel; None if
    the channel has no bound."""
    parsed = parse_bound("from", value)
    return parsed.get(channel) if isinstance(parsed, dict) else parsed


def check_selector(text: str) -> None:
    """Raise ``InvalidArgument`` if ``text`` is not a selector. An empty text is allowed."""
    try:
        if text:
            Selector(text)
    except InvalidSelector as error:
        # The text already begins with the key, as errors about definitions do.
        raise InvalidArgument(str(error)) from error


def format_time(us: int) -> str:
    """Return a time, given in microseconds since 1970, as a readable text in UTC."""
    return f"{moment_of(us):%Y-%m-%d %H:%M:%S}"
