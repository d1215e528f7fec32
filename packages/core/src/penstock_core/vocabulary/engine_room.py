"""Free space of a storage engine with several servers."""

from __future__ import annotations

from collections.abc import Iterable


def room_of_majority(rooms: Iterable[int], servers: int) -> int | None:
    """Return the bytes that a majority of ``servers`` can still store; None if too few servers
    report their free bytes. ``rooms`` has the free bytes of each server that reports them.

    An append succeeds if a majority stores it, so a server with a full disk counts like one that is
    down, and must not limit the result.
    """
    descending = sorted(rooms, reverse=True)
    needed = servers // 2 + 1
    return descending[needed - 1] if len(descending) >= needed else None
