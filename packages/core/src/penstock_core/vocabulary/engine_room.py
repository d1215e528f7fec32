"""Free space of a storage engine with several servers."""

from __future__ import annotations

from collections.abc import Iterable


def room_of_majority(rooms: Iterable[int], servers: int) -> int | None:
    """Return the bytes that a majority of ``servers`` can still store; None if too few of them
    tell their room. ``rooms`` are the bytes of those that do.

    A stream goes on as long as a majority keeps it, so a server with a full disk is as good as one
    that is down, and no reason to refuse an append.
    """
    descending = sorted(rooms, reverse=True)
    needed = servers // 2 + 1
    return descending[needed - 1] if len(descending) >= needed else None
