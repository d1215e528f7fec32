"""Settling delivered events: acknowledging, rolling back, rejecting, and timeouts."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, Fact
from penstock_core.vocabulary.causes import Cause


class Ack(Command, frozen=True):
    """A client acknowledges events."""

    subscription: int
    spans: Spans


class AckPrevious(Command, frozen=True):
    """Acknowledge ``event_id`` and every earlier event this subscription holds."""

    subscription: int
    event_id: int


class RollBack(Command, frozen=True):
    """A client rolls back events, which counts as a redelivery."""

    subscription: int
    spans: Spans
    elsewhere: bool = False
    """Whether other clients may get the events again and this client may not."""
    delay_ms: int | None = None
    """Delay before redelivery; None means that the durable's backoff decides (SEM D18)."""


class Release(Command, frozen=True):
    """A client returns events that it has not processed."""

    subscription: int
    spans: Spans
    elsewhere: bool = False
    """Whether other clients may get the events again and this client may not."""
    delay_ms: int | None = None
    """Delay before the events are delivered again (SEM D18); None means no delay."""


class BuryEvents(Command, frozen=True):
    """Move events that the durable's client rejects to the dead event store: they are dead for the
    durable (SEM T11)."""

    subscription: int
    spans: Spans


class ExtendTime(Command, frozen=True):
    """Extend the acknowledgement deadlines of events that a client holds to ``time_ms`` from
    now."""

    subscription: int
    spans: Spans
    time_ms: int


class Acked(Fact, frozen=True):
    """Events are acknowledged, or were purged for this durable alone."""

    durable: str
    spans: Spans


class RolledBack(Fact, frozen=True):
    """Events returned to the durable. Depending on its type they are redelivered immediately, and
    the redelivery is counted; or with the next attach, and no redelivery is counted."""

    durable: str
    spans: Spans


class TimedOut(Fact, frozen=True):
    """Events returned to the durable, because clients held them for too long (SEM D19). Their
    redelivery is counted."""

    durable: str
    spans: Spans


class Postponed(Fact, frozen=True):
    """Outstanding events that are not redelivered before ``until_us`` (SEM D18)."""

    durable: str
    spans: Spans
    until_us: int


class Buried(Fact, frozen=True):
    """Events that are dead for this durable alone, because they were rolled back too often or a
    client rejected them (SEM T10)."""

    durable: str
    spans: Spans
    cause: Cause = Cause.UNDELIVERABLE
