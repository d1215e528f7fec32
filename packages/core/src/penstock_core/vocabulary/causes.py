"""Why events leave a channel."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why an event left a channel. Every removal has exactly one (SEM T8)."""

    CONSUMED = "consumed"
    EXPIRED = "expired"
    EVICTED = "evicted"
    PURGED = "purged"
    REPLACED = "replaced"
    """Replaced by a newer event of the same publish key (SEM K1)."""
    RELAYED = "relayed"
    """Never stored: it went to those who were there (SEM E8, C1e)."""
    REDRIVEN = "redriven"
    """Moved from a dead event store to where it is wanted again (SEM T10)."""
    DROPPED = "dropped"
    """Dropped because nobody waits for it any more (SEM J2)."""
    UNDELIVERABLE = "redelivery_limit"
    """Rolled back too often (SEM T10); counted as dead."""
    REJECTED = "rejected"
    """A client has said that it can do nothing with it (SEM T11); counted as dead."""
    BURIED = "buried"
    """What REJECTED was called before; stored facts and origins have it still."""
    QUARANTINED = "quarantined"
