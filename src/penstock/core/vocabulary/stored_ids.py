"""Sets of ids as stored facts and snapshots hold them: ranges while these are few, packed where
ids are scattered (SEM D4). A durable with a million gaps is about as long as a bit an event."""

from __future__ import annotations

from penstock.core.ids.ids import IdSet
from penstock.core.vocabulary.messages import (
    Acked,
    Buried,
    Ids,
    PackedIds,
    Postponed,
    Removed,
    RolledBack,
    Spans,
    StoredFact,
    TimedOut,
)

RANGES_MAX = 64
"""The most ranges of ids that are stored as they are; with more, a fact's ids are packed."""


def written(ids: IdSet) -> Ids:
    """The shorter form of a set."""
    return ids.packed() if ids.is_scattered else ids.spans


def id_set(ids: Ids) -> IdSet:
    """The set of either form. Raises ``ValueError`` for bytes that are none."""
    return IdSet.unpacked(ids) if isinstance(ids, bytes) else IdSet(ids)


def ranges(ids: Ids) -> Spans:
    """Ids as ranges, however they are stored."""
    return IdSet.unpacked(ids).spans if isinstance(ids, bytes) else ids


def packed(fact: StoredFact) -> StoredFact:
    """``fact`` as it is stored. Dead events, which move in small steps, stay ranges."""
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
    """Undo ``packed``."""
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
