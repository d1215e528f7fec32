"""Start and end positions as users write them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.start_positions import (
    AnyStart,
    FromEarliest,
    FromId,
    FromLatest,
    FromTime,
)

StartLike: TypeAlias = Literal["earliest", "latest"] | int | datetime


def start_of(given: StartLike) -> AnyStart:
    """``"earliest"``, ``"latest"``, an event id or a time. Raises ``InvalidArgument``."""
    if isinstance(given, bool):
        raise InvalidArgument("start is a bool; give 'earliest', 'latest', an id or a datetime")
    if isinstance(given, int):
        if not 0 <= given < 1 << 63:
            raise InvalidArgument(f"start is {given}; event ids begin at 0 and have 63 bits")
        return FromId(given)
    if isinstance(given, datetime):
        check_zone(given, "start")
        return FromTime(int(given.timestamp() * 1_000_000))
    if given == "earliest":
        return FromEarliest()
    if given == "latest":
        return FromLatest()
    raise InvalidArgument(f"start is {given!r}; give 'earliest', 'latest', an id or a datetime")


def check_zone(moment: datetime, name: str) -> None:
    """Raises ``InvalidArgument`` for a time without a time zone: it would mean another moment on
    the next machine."""
    if moment.utcoffset() is None:
        raise InvalidArgument(
            f"{name} is {moment}, a time without a time zone; give one, as in "
            "datetime.now().astimezone() or datetime(2026, 5, 4, 12, tzinfo=UTC)"
        )


def check_range(start: int | None, end: int | None) -> None:
    """First and last id of a range, each of which may be missing. Raises ``InvalidArgument``, also
    for a range of no events."""
    for name, given in (("start", start), ("end", end)):
        if given is not None and (type(given) is not int or not 0 <= given < 1 << 63):
            raise InvalidArgument(f"{name} is {given!r}; give an event id, 0 or more, or None")
    if start is not None and end is not None and start > end:
        raise InvalidArgument(
            f"start is {start} and end is {end}: there are no events in between; end is the last "
            "id of the range, at least start"
        )
