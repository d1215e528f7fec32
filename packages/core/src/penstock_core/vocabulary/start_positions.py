"""Start positions of subscriptions and durables (SEM E6)."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.bounds import EventId, TimeUs


class Start(Struct, frozen=True, tag=True):
    """A start position: earliest, latest, an id or a time."""


class FromId(Start, frozen=True):
    """The event with this id, or the next stored one."""

    event_id: EventId


class FromEarliest(Start, frozen=True):
    """The oldest stored event."""


class FromLatest(Start, frozen=True):
    """Only events published from now on."""


class FromTime(Start, frozen=True):
    """The first event published at this time or later, in microseconds since 1970."""

    at_us: TimeUs


AnyStart = FromId | FromEarliest | FromLatest | FromTime
