"""Causes of the removal of events from a channel."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """The cause of an event's removal. Every removal has exactly one (SEM T8)."""

    CONSUMED = "consumed"
    EXPIRED = "expired"
    EVICTED = "evicted"
    PURGED = "purged"
    REPLACED = "replaced"
    """Replaced by a newer event of the same publish key (SEM K1)."""
    RELAYED = "relayed"
    """Never stored, only delivered to connected clients (SEM E8, C1e)."""
    REDRIVEN = "redriven"
    """Moved from a dead event store to another store (SEM T10)."""
    DROPPED = "dropped"
    """Dropped because no client waits for it any more (SEM J2)."""
    UNDELIVERABLE = "redelivery_limit"
    """Rolled back too often (SEM T10); counted as dead."""
    REJECTED = "rejected"
    """Rejected by a client (SEM T11); counted as dead."""
    BURIED = "buried"
    """The old name of REJECTED, which stored facts and origins still contain."""
    QUARANTINED = "quarantined"
