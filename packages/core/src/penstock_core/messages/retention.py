"""Events leave a channel, or are kept where they were to pass."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, Fact
from penstock_core.vocabulary.causes import Cause


class PurgeEvents(Command, frozen=True):
    """Remove the stored events in ``spans`` (SEM T9)."""

    spans: Spans


class Sweep(Command, frozen=True):
    """Do what time makes happen: expired events leave, delays, deadlines and waits end (SEM T1,
    D18, D19, J5, N6). Consumed and unwanted events, and those above a lowered capacity, leave in
    the same step (SEM D6, J2, T3)."""

    may_write: bool = True
    """Whether there is room on disk for what has to be kept from now on (SEM J7)."""
    moved_max: int = 1 << 62
    """The most dead events that move in this step (SEM T7)."""


class Quarantine(Command, frozen=True):
    """The store cannot read these events any more (SEM S1)."""

    spans: Spans


class RemoveRedriven(Command, frozen=True):
    """Remove dead events that have been published elsewhere again (SEM T10)."""

    spans: Spans


class EndRelay(Command, frozen=True):
    """Events that are relayed, or were evicted, have been offered to all who are attached (SEM E8,
    T3); those that are never stored leave once they have reached them all (SEM J4)."""

    spares: bool = True
    """Whether there is memory for events that wait for a selector that takes long."""


class Removed(Fact, frozen=True):
    spans: Spans
    cause: Cause
    dead: Spans = ()
    """The part of ``spans`` that moves to the dead event store in the same step (SEM T7)."""


class Replaced(Fact, frozen=True):
    """Newer values of publish keys have come (SEM K1): a removal, of
    ``penstock_core.ids.id_lists``."""

    ids: bytes


class PersistedLate(Fact, frozen=True, tag="Secured"):
    """Passing events are kept from now on: their durable has lost its client (SEM J7)."""

    spans: Spans
    at_us: int
    """When they were published."""
    ttls: tuple[tuple[int, Spans], ...] = ()
    """Events with a TTL of their own, by the time it ends, in microseconds."""
