"""Stored form of sets of ids in facts and snapshots: a few ranges, or packed if the ids are
scattered (SEM D4). A durable with a million gaps takes about one bit per event."""

from __future__ import annotations

from penstock_core.ids.ids import IdSet, Spans

Ids = Spans | bytes
"""Ids in their stored form: ranges, or the packed bytes of a set."""


def stored_form(ids: IdSet) -> Ids:
    """Return the shorter stored form of a set."""
    return ids.packed() if ids.is_scattered else ids.spans


def id_set(ids: Ids) -> IdSet:
    """Return the set of either form. Raises ``ValueError`` for bytes that are not a packed set."""
    return IdSet.unpacked(ids) if isinstance(ids, bytes) else IdSet(ids)


def ranges(ids: Ids) -> Spans:
    """Return ids as ranges, from either stored form."""
    return IdSet.unpacked(ids).spans if isinstance(ids, bytes) else ids
