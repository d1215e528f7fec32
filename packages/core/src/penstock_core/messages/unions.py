"""All facts of a channel, of the realm, and of a journal's block."""

from __future__ import annotations

from penstock_core.messages.definitions import ChannelCreated, ChannelDeleted, Edited
from penstock_core.messages.durables import DurableCreated, DurableDeleted
from penstock_core.messages.joins import JoinCreated, JoinDeleted
from penstock_core.messages.kinds import Fact
from penstock_core.messages.pattern_durables import PatternDurableCreated, PatternDurableDeleted
from penstock_core.messages.publishing import Appended, IdsReserved, PublishingPauseSet
from penstock_core.messages.retention import PersistedLate, Removed, Replaced
from penstock_core.messages.seats import Left, Seated
from penstock_core.messages.seeking import Sought
from penstock_core.messages.segments import (
    BodiesApart,
    Extended,
    Rewritten,
    SchemaSeen,
    Sealed,
    SegmentDropped,
)
from penstock_core.messages.settlements import Acked, Buried, Postponed, RolledBack, TimedOut
from penstock_core.messages.snapshots import CommitsKept, Kept, KeptStates, RealmFacts, Restored
from penstock_core.messages.subscribers import Interested, InterestEnded
from penstock_core.messages.transactions import StagesCommitted, TransactionEnded


class PackedIds(Fact, frozen=True):
    """Stored form of a fact about scattered ids (``penstock_core.messages.packing``)."""

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
"""The facts that a block may contain."""
