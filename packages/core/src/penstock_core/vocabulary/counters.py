"""Counters of events that were published on a channel and have left it."""

from __future__ import annotations

from msgspec import Struct


class Counters(Struct, array_like=True, gc=False):
    """Counters of a channel. Conservation (SEM T8): published = live + all others except
    redelivered."""

    published: int = 0
    consumed: int = 0
    expired: int = 0
    """Expired without moving to a dead event store, because the channel has none or the event was
    consumed; likewise for ``evicted``."""
    evicted: int = 0
    purged: int = 0
    quarantined: int = 0
    redelivered: int = 0
    """Deliveries after the first; not part of the sum."""
    dead: int = 0
    """Moved to the dead event store."""
    replaced: int = 0
    """Replaced by a newer event of the same publish key."""
    relayed: int = 0
    """Transient: delivered to connected clients, never stored."""
    redriven: int = 0
    """Moved from this dead event store to another store."""
    dropped: int = 0
    """Dropped by the JMS engine, because no client waited for them."""

    @property
    def departed_count(self) -> int:
        """Number of events that have left."""
        counted: int = sum(getattr(self, name) for name in self.__struct_fields__)
        return counted - self.published - self.redelivered
