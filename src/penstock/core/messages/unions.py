"""All facts of a channel, of the realm, and of a journal's block."""

from __future__ import annotations

from penstock.core.messages.definitions import ChannelCreated, ChannelDeleted, Edited
from penstock.core.messages.durables import DurableCreated, DurableDeleted
from penstock.core.messages.joins import JoinCreated, JoinDeleted
from penstock.core.messages.kinds import Fact
from penstock.core.messages.pattern_durables import PatternDurableCreated, PatternDurableDeleted
from penstock.core.messages.publishing import Appended, IdsReserved, PublishingPauseSet
from penstock.core.messages.retention import PersistedLate, Removed, Replaced
from penstock.core.messages.seats import Left, Seated
from penstock.core.messages.seeking import Sought
from penstock.core.messages.segments import (
    BodiesApart,
    Extended,
    Rewritten,
    SchemaSeen,
    Sealed,
    SegmentDropped,
)
from penstock.core.messages.settlements import Acked, Buried, Postponed, RolledBack, TimedOut
from penstock.core.messages.snapshots import CommitsKept, Kept, KeptStates, RealmFacts, Restored
from penstock.core.messages.subscribers import Interested, InterestEnded
from penstock.core.messages.transactions import StagesCommitted, TransactionEnded


class PackedIds(Fact, frozen=True):
    """A fact about scattered ids, only as stored (``core.messages.packing``)."""

    fact: Acked | RolledBack | TimedOut | Postponed | Buried | Removed
    ids: bytes


AnyPlaceFact = Seated | Left | Interested | InterestEnded


StoredFact = (
    Appended
    | PersistedLate
    | IdsReserved
    | Removed
    | Replaced
    | DurableCreated
    | DurableDeleted
    | Acked
    | RolledBack
    | TimedOut
    | Postponed
    | Buried
    | PackedIds
    | Edited
    | Restored
    | Sought
    | AnyPlaceFact
)


AnyRealmFact = (
    ChannelCreated
    | ChannelDeleted
    | JoinCreated
    | JoinDeleted
    | PublishingPauseSet
    | PatternDurableCreated
    | PatternDurableDeleted
)


AnyFact = (
    StoredFact
    | AnyRealmFact
    | SchemaSeen
    | Sealed
    | Extended
    | Rewritten
    | SegmentDropped
    | Kept
    | KeptStates
    | RealmFacts
    | TransactionEnded
    | StagesCommitted
    | CommitsKept
)


LoggedFact = AnyFact | BodiesApart
"""What a block may hold."""
