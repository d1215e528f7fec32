"""Times as numbers: microseconds since 1970, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The time from which microseconds count."""
YEAR_10000_US: Final = 253_402_300_800_000_000
"""The first time that is too large for ``datetime``."""


def moment_of(us: int) -> datetime:
    """Return the time that is ``us`` microseconds after the start of 1970, in UTC."""
    return EPOCH + timedelta(microseconds=us)


def us_of(moment: datetime) -> int:
    """Return a time with a zone as microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def parse_moment(text: str, zone: tzinfo | None = UTC) -> datetime:
    """Return the time written in ISO 8601; a time without a zone gets ``zone``. Raises
    ``ValueError``."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)


def zone_error(name: str, moment: object) -> str:
    """Return the text of the error for a time without a time zone, whose meaning would depend on
    the machine. ``name`` is the name of the argument."""
    return (
        f"{name} is {moment}, a time without a time zone; give one, as in "
        "datetime.now().astimezone(), datetime(2026, 5, 4, 12, tzinfo=UTC) or "
        "'2026-05-04T12:00:00Z'"
    )
