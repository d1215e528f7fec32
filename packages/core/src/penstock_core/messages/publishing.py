"""Publishing to a channel, and what is stored of it."""

from __future__ import annotations

from msgspec import field

from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.kinds import Command, Fact, RealmFact
from penstock_core.vocabulary.digest import Digest


class Publish(Command, frozen=True):
    digest: Digest
    producer: str = ""
    """The name under which repeated publishes are found (SEM X3); empty: they are not."""
    sequence: int = 0
    overshoot: bool = False
    """A transaction begun below capacity may overshoot it as a whole (SEM T4)."""
    memory_left: int = 1 << 62
    """Bytes the realm still grants to events kept the way this channel keeps them (SEM C6)."""
    index_growth: int = 0
    """Bytes that new values of publish keys and new states of a merge channel take in memory."""
    index_left: int = 1 << 62
    """Bytes the realm still grants to these (SEM C6)."""
    forced: bool = False
    """The realm's own publish, of events that were accepted before: no lack of room refuses it."""
    evicts: bool = True
    """Whether it may evict where the channel does (SEM T3); else its capacity is honoured."""
    evicts_later: bool = False
    """Whether what it evicts leaves in later sweeps, for it cannot move yet."""


class Appended(Fact, frozen=True):
    span: Span
    at_us: int
    size: int
    """Bytes of the batch."""
    producer: str = ""
    sequence: int = 0
    volatile: Spans = ()
    """Ids kept in memory only."""
    absent: Spans = ()
    """Ids of ``span`` that were volatile and did not survive the restart."""
    ttls: tuple[tuple[int, Spans], ...] = ()
    matched: dict[str, Spans] = field(default_factory=dict)
    """What durables with a selector want, by their names; those not named want none of it."""
    relayed: Spans = ()
    """Ids of events that are never stored (SEM E8)."""
    passing: Spans = ()
    """Ids kept in memory only, whatever the type, until those who are there have them (SEM J4)."""
    dropped: Spans = ()
    """Ids of events that nobody waited for (SEM J2)."""


class IdsReserved(Fact, frozen=True):
    """Ids below ``through`` may have been given to events in memory (SEM E4, C1c)."""

    through: int


class PublishingPauseSet(RealmFact, frozen=True, tag="PublishingPaused"):
    paused: bool
