"""Stored form of facts about scattered ids: the ids are packed (SEM D4)."""

from __future__ import annotations

from penstock_core.ids.ids import IdSet
from penstock_core.messages.retention import Removed
from penstock_core.messages.settlements import Acked, Buried, Postponed, RolledBack, TimedOut
from penstock_core.messages.unions import PackedIds, StoredFact
from penstock_core.vocabulary.stored_ids import ranges

RANGES_MAX = 64
"""Maximum number of ranges of ids that are stored unchanged; with more, the ids of a fact are
packed."""


def packed(fact: StoredFact) -> StoredFact:
    """Return ``fact`` in its stored form."""
    # A removal with dead events is not packed: these move in small steps, so they have few ranges.
    match fact:
        case Acked(name, spans) if len(spans) > RANGES_MAX:
            return PackedIds(Acked(name, ()), IdSet(spans).packed())
        case RolledBack(name, spans) if len(spans) > RANGES_MAX:
            return PackedIds(RolledBack(name, ()), IdSet(spans).packed())
        case TimedOut(name, spans) if len(spans) > RANGES_MAX:
            return PackedIds(TimedOut(name, ()), IdSet(spans).packed())
        case Postponed(name, spans, until_us) if len(spans) > RANGES_MAX:
            return PackedIds(Postponed(name, (), until_us), IdSet(spans).packed())
        case Buried(name, spans, cause) if len(spans) > RANGES_MAX:
            return PackedIds(Buried(name, (), cause), IdSet(spans).packed())
        case Removed(spans, cause, ()) if len(spans) > RANGES_MAX:
            return PackedIds(Removed((), cause), IdSet(spans).packed())
        case _:
            return fact


def unpacked(fact: PackedIds) -> StoredFact:
    """Return the fact that :func:`packed` has packed."""
    spans = ranges(fact.ids)
    match fact.fact:
        case Acked(name):
            return Acked(name, spans)
        case RolledBack(name):
            return RolledBack(name, spans)
        case TimedOut(name):
            return TimedOut(name, spans)
        case Postponed(name, _, until_us):
            return Postponed(name, spans, until_us)
        case Buried(name, _, cause):
            return Buried(name, spans, cause)
        case Removed(_, cause):
            return Removed(spans, cause)
