"""Removing events from a channel, and storing events that so far only passed through memory."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, Fact
from penstock_core.vocabulary.causes import Cause


class PurgeEvents(Command, frozen=True):
    """Remove the stored events in ``spans`` (SEM T9)."""

    spans: Spans


class Sweep(Command, frozen=True):
    """Do the work that is due: expired events leave, and delays, deadlines and waiting times end
    (SEM T1, D18, D19, J5, N6). In the same step consumed and unwanted events leave, and those above
    a lowered capacity (SEM D6, J2, T3)."""

    may_write: bool = True
    """Whether the disk has room for events that must be kept from now on (SEM J7)."""
    moved_max: int = 1 << 62
    """Maximum number of dead events that move in this step (SEM T7)."""


class Quarantine(Command, frozen=True):
    """Set aside events that the store cannot read any more (SEM S1)."""

    spans: Spans


class RemoveRedriven(Command, frozen=True):
    """Remove dead events that have been published again (SEM T10)."""

    spans: Spans


class EndRelay(Command, frozen=True):
    """Relayed and evicted events have been offered to all attached clients (SEM E8, T3). Events
    that are never stored leave once all these clients have received them (SEM J4)."""

    spares: bool = True
    """Whether events that wait for a slow selector may stay, because there is enough memory."""


class Removed(Fact, frozen=True):
    """Events have left a channel."""

    spans: Spans
    cause: Cause
    dead: Spans = ()
    """The part of ``spans`` that moves to the dead event store in the same step (SEM T7)."""


class Replaced(Fact, frozen=True):
    """Events were removed because newer events have the same publish keys (SEM K1). ``ids`` is a
    list of ``penstock_core.ids.id_lists``."""

    ids: bytes


class PersistedLate(Fact, frozen=True, tag="Secured"):
    """Passing events are kept from now on, because their durable has lost its client (SEM J7)."""

    spans: Spans
    at_us: int
    """Time at which the events were published, in microseconds since 1970."""
    ttls: tuple[tuple[int, Spans], ...] = ()
    """Ends of event TTLs, as microseconds since 1970, each with its events."""
