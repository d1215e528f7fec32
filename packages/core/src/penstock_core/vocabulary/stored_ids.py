"""Sets of ids as stored facts and snapshots hold them: ranges while these are few, packed where
ids are scattered (SEM D4). A durable with a million gaps is about as long as a bit an event."""

from __future__ import annotations

from penstock_core.ids.ids import IdSet, Spans

Ids = Spans | bytes
"""Ids as they are stored: ranges, or packed."""


def written(ids: IdSet) -> Ids:
    """The shorter form of a set."""
    return ids.packed() if ids.is_scattered else ids.spans


def id_set(ids: Ids) -> IdSet:
    """The set of either form. Raises ``ValueError`` for bytes that are none."""
    return IdSet.unpacked(ids) if isinstance(ids, bytes) else IdSet(ids)


def ranges(ids: Ids) -> Spans:
    """Ids as ranges, however they are stored."""
    return IdSet.unpacked(ids).spans if isinstance(ids, bytes) else ids
