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


def start_of(start: StartLike) -> AnyStart:
    """Return the start position for ``"earliest"``, ``"latest"``, an event id or a time. Raises
    ``InvalidArgument``."""
    if isinstance(start, bool):
        raise InvalidArgument("start is a bool; give 'earliest', 'latest', an id or a datetime")
    if isinstance(start, int):
        if not 0 <= start < 1 << 63:
            raise InvalidArgument(f"start is {start}; event ids begin at 0 and have 63 bits")
        return FromId(start)
    if isinstance(start, datetime):
        check_zone(start, "start")
        return FromTime(int(start.timestamp() * 1_000_000))
    if start == "earliest":
        return FromEarliest()
    if start == "latest":
        return FromLatest()
    raise InvalidArgument(f"start is {start!r}; give 'earliest', 'latest', an id or a datetime")


def check_zone(moment: datetime, name: str) -> None:
    """Raise ``InvalidArgument`` for a time without a time zone, as its meaning would depend on the
    machine."""
    if moment.utcoffset() is None:
        raise InvalidArgument(
            f"{name} is {moment}, a time without a time zone; give one, as in "
            "datetime.now().astimezone() or datetime(2026, 5, 4, 12, tzinfo=UTC)"
        )


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
