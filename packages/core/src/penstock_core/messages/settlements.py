"""Settling delivered events: acknowledged, given back, rejected or too late."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, Fact
from penstock_core.vocabulary.causes import Cause


class Ack(Command, frozen=True):
    subscription: int
    spans: Spans


class AckPrevious(Command, frozen=True):
    """Acknowledge ``event_id`` and every earlier event this subscription holds."""

    subscription: int
    event_id: int


class RollBack(Command, frozen=True):
    subscription: int
    spans: Spans
    elsewhere: bool = False
    """This client does not get them again; others may."""
    delay_ms: int | None = None
    """How long they wait before they come again; None: as the durable's backoff says (SEM D18)."""


class Release(Command, frozen=True):
    """A client gives events back that it has not tried."""

    subscription: int
    spans: Spans
    elsewhere: bool = False
    """Whether the client does not get them again, while others may."""
    delay_ms: int | None = None
    """How long they wait before they come again (SEM D18); None: not at all."""


class BuryEvents(Command, frozen=True):
    """Bury events that the durable's client rejects: they are dead for it (SEM T11)."""

    subscription: int
    spans: Spans


class ExtendTime(Command, frozen=True):
    """A client needs so much time from now on for events that it has in hand."""

    subscription: int
    spans: Spans
    time_ms: int


class Acked(Fact, frozen=True):
    durable: str
    spans: Spans


class RolledBack(Fact, frozen=True):
    """Back among the undelivered: at once, counted; or with the next attach, uncounted."""

    durable: str
    spans: Spans


class TimedOut(Fact, frozen=True):
    """Back among the undelivered, counted, because clients had them for too long (SEM D19)."""

    durable: str
    spans: Spans


class Postponed(Fact, frozen=True):
    """Outstanding events that do not come again before ``until_us`` (SEM D18)."""

    durable: str
    spans: Spans
    until_us: int


class Buried(Fact, frozen=True):
    """Rolled back too often, or named by a client: dead for this durable alone (SEM T10)."""

    durable: str
    spans: Spans
    cause: Cause = Cause.UNDELIVERABLE
