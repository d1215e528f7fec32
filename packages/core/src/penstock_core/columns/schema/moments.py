"""Times as numbers: microseconds since 1970, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_10000_US: Final = 253_402_300_800_000_000
"""The first time that a ``datetime`` cannot have."""


def moment_of(us: int) -> datetime:
    """The time of so many microseconds since 1970."""
    return EPOCH + timedelta(microseconds=us)
