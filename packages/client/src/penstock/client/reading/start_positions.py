"""Start and end positions as users write them."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Final, Literal, TypeAlias

from penstock_core.columns.schema.moments import parse_moment, us_of, zone_error
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.start_positions import (
    AnyStart,
    FromEarliest,
    FromId,
    FromLatest,
    FromTime,
)

StartLike: TypeAlias = Literal["earliest", "latest"] | int | datetime
"""``"earliest"``, ``"latest"``, an event id, or a time as for ``TimeLike``. The text of a time is
not in the type, so that type checkers find a misspelt ``"earliest"``."""

TimeLike: TypeAlias = datetime | str
"""A ``datetime`` with a time zone, or its text in ISO 8601, such as ``"2026-05-04T12:00:00Z"``."""

_ALLOWED: Final = (
    "'earliest', 'latest', an event id, or a time with its zone, as a datetime or as "
    "'2026-05-04T12:00:00Z'"
)


def start_of(start: StartLike, name: str = "start") -> AnyStart:
    """Return the start position for ``"earliest"``, ``"latest"``, an event id or a time. Raises
    ``InvalidArgument``, which calls the value ``name``."""
    if isinstance(start, int) and not isinstance(start, bool):
        if not 0 <= start < 1 << 63:
            raise InvalidArgument(f"{name} is {start}; event ids begin at 0 and have 63 bits")
        return FromId(start)
    if start == "earliest":
        return FromEarliest()
    if start == "latest":
        return FromLatest()
    moment = _moment(start, name)
    if moment is None:
        raise InvalidArgument(f"{name} is {start!r}; give {_ALLOWED}")
    return FromTime(us_of(moment))


def time_of(time: TimeLike, name: str) -> datetime:
    """Return the time that a ``datetime`` or a text represents. Raises ``InvalidArgument``, which
    calls the value ``name``, also for a time without a time zone."""
    moment = _moment(time, name)
    if moment is None:
        raise InvalidArgument(
            f"{name} is {time!r}; give a time with its zone, as a datetime or as "
            "'2026-05-04T12:00:00Z'"
        )
    return moment


def _moment(value: object, name: str) -> datetime | None:
    """Return the time that ``value`` represents; None if it is not a time. Raises
    ``InvalidArgument`` for a time without a time zone."""
    # A text of digits could be an event id, as on the command line.
    if isinstance(value, str) and not value.isdecimal():
        with contextlib.suppress(ValueError):
            value = parse_moment(value, zone=None)
    if not isinstance(value, datetime):
        return None
    if value.utcoffset() is None:
        raise InvalidArgument(zone_error(name, value))
    return value


def check_range(start: int | None, end: int | None) -> None:
    """Check the first and the last id of a range; None means no limit. Raises ``InvalidArgument``,
    also for an empty range."""
    for name, event_id in (("start", start), ("end", end)):
        if event_id is not None and (type(event_id) is not int or not 0 <= event_id < 1 << 63):
            raise InvalidArgument(f"{name} is {event_id!r}; give an event id, 0 or more, or None")
    if start is not None and end is not None and start > end:
        raise InvalidArgument(
            f"start is {start} and end is {end}, an empty range; end is the last id of the range "
            "and must be at least start"
        )
