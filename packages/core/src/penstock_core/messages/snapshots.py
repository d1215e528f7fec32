"""Facts that only snapshots have; they replace all earlier facts."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.kinds import Fact, RealmFact
from penstock_core.messages.transactions import StoreSpans
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableState
from penstock_core.vocabulary.stored_ids import Ids


class ProducerState(Struct, frozen=True, array_like=True):
    """The publishes of one producer that a channel remembers (SEM X3)."""

    name: str
    forgotten: int
    """The highest sequence that is not remembered any more."""
    at_us: int
    """Time of the newest publish, in microseconds since 1970."""
    recent: tuple[tuple[int, Span], ...]
    """Remembered sequences, each with the ids that its events got."""


class Restored(Fact, frozen=True):
    """The channel's part of a snapshot, which replaces all earlier facts of the channel."""

    definition: Definition
    next_id: int
    reserved: int
    """Id below which ids may have been assigned to events in memory (SEM E4)."""
    stored: Ids
    ages: tuple[tuple[int, int], ...]
    """Pairs of first id and publish time in microseconds since 1970, both ascending."""
    own_expiry: tuple[tuple[int, Ids], ...]
    """Ends of event TTLs, in microseconds since 1970, each with the ids of its events."""
    durables: tuple[DurableState, ...]
    producers: tuple[ProducerState, ...]
    consumed: Ids
    """Stored events that at least one durable has acknowledged (SEM D6)."""
    counters: Counters
    departed: tuple[tuple[str, Ids], ...] = ()
    """Causes of removal, each with the ids of the events that left by it."""
    departed_from: int = -1
    """The lowest id whose cause of removal is known; -1 in a snapshot that is older than the record
    of causes."""
    died: tuple[tuple[str, str, int], ...] = ()
    """Number of copies made in the dead event store, by durable and cause. The durable is empty for
    copies that are not made for a single durable."""
    topics_since: int = 0
    """The first event id that was published after the channel got topics (SEM M12)."""


class RealmFacts(RealmFact, frozen=True):
    """Snapshots only: counters of the realm."""

    next_number: int
    """Id of the channel that is created next."""


class CommitsKept(RealmFact, frozen=True):
    """Snapshots only: the remembered publishes of a producer to several stores."""

    producer: str
    forgotten: int
    at_us: int
    recent: tuple[tuple[int, StoreSpans], ...]


class Kept(RealmFact, frozen=True):
    """Snapshots only: events in the journal that were not sealed into a segment yet."""

    first_id: int
    end_id: int
    at_us: int
    ids: tuple[tuple[int, int], ...] = ()
    """Spans of the ids of the body's rows; empty if the body has all ids of the range."""


class KeptStates(RealmFact, frozen=True):
    """Snapshots only: merged events of a merge channel, with ids and times; the body is an Arrow
    stream (SEM K2)."""

    publishers: tuple[tuple[str, Spans], ...] = ()
    """Publishers, each with the ids of its events that are part of merged events."""
