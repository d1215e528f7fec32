"""Where to begin and when to publish, as users write it."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from penstock.core.errors import InvalidArgument
from penstock.core.messages import AnyStart, FromEarliest, FromId, FromLatest, FromTime

StartLike = str | int | datetime


def start_of(given: StartLike) -> AnyStart:
    """``"earliest"``, ``"latest"``, an event id or a time. Raises ``InvalidArgument``."""
    if isinstance(given, bool):
        raise InvalidArgument("start is a bool; give 'earliest', 'latest', an id or a datetime")
    if isinstance(given, int):
        if given < 0:
            raise InvalidArgument(f"start is {given}; event ids begin at 0")
        return FromId(given)
    if isinstance(given, datetime):
        moment = given if given.tzinfo else given.replace(tzinfo=UTC)
        return FromTime(int(moment.timestamp() * 1_000_000))
    if given == "earliest":
        return FromEarliest()
    if given == "latest":
        return FromLatest()
    raise InvalidArgument(f"start is {given!r}; give 'earliest', 'latest', an id or a datetime")


def check_range(start: int | None, end: int | None) -> None:
    """First and last id of a range, each of which may be missing. Raises ``InvalidArgument``."""
    for name, given in (("start", start), ("end", end)):
        if given is not None and (type(given) is not int or not 0 <= given < 1 << 63):
            raise InvalidArgument(f"{name} is {given!r}; give an event id, 0 or more, or None")


Moment = datetime | float
"""A time: a datetime with a time zone, or seconds since 1970."""


def moment_of(given: Moment | None) -> datetime | None:
    """When to publish; None: now. Raises ``InvalidArgument``."""
    if given is None or isinstance(given, datetime):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise InvalidArgument(
            f"deliver_at is {given!r}; give a datetime with a time zone, or seconds since 1970"
        )
    try:
        return datetime.fromtimestamp(given, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise InvalidArgument(f"deliver_at is {given!r} seconds since 1970: {error}") from error
