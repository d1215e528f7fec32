"""Facts that only snapshots have: everything before them, in one."""

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
    name: str
    forgotten: int
    at_us: int
    recent: tuple[tuple[int, Span], ...]


class Restored(Fact, frozen=True):
    """Everything before this fact, in one: the channel's part of a snapshot."""

    definition: Definition
    next_id: int
    reserved: int
    stored: Ids
    ages: tuple[tuple[int, int], ...]
    own_expiry: tuple[tuple[int, Ids], ...]
    durables: tuple[DurableState, ...]
    producers: tuple[ProducerState, ...]
    consumed: Ids
    counters: Counters
    departed: tuple[tuple[str, Ids], ...] = ()
    """The ids of events that have left, by cause."""
    departed_from: int = -1
    """The lowest id with a known cause of removal; -1: written before causes were kept."""
    died: tuple[tuple[str, str, int], ...] = ()
    topics_since: int = 0
    """These are as in ``ChannelState``."""


class RealmFacts(RealmFact, frozen=True):
    """Snapshots only: the realm's own counters."""

    next_number: int


class CommitsKept(RealmFact, frozen=True):
    """Snapshots only: the publishes of a producer to several stores that are remembered."""

    producer: str
    forgotten: int
    at_us: int
    recent: tuple[tuple[int, StoreSpans], ...]


class Kept(RealmFact, frozen=True):
    """Snapshots only: events that were in the journal and not in a segment yet."""

    first_id: int
    end_id: int
    at_us: int
    ids: tuple[tuple[int, int], ...] = ()
    """Spans the body's rows have; empty: all ids of the range."""


class KeptStates(RealmFact, frozen=True):
    """Snapshots only: merged events of a merge channel, with ids and times; the body is an Arrow
    stream (SEM K2)."""

    publishers: tuple[tuple[str, Spans], ...] = ()
    """Publishers, each with its events."""
