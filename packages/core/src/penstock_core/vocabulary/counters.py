"""Counters of the events that came to a channel and left it."""

from __future__ import annotations

from msgspec import Struct


class Counters(Struct, array_like=True, gc=False):
    """Conservation (SEM T8): published = live + all of the others but the redelivered."""

    published: int = 0
    consumed: int = 0
    expired: int = 0
    """Without a dead event store, or consumed by all who wanted them; so for ``evicted``."""
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
    """Transient: given to those who were there, never stored."""
    redriven: int = 0
    """Moved from this dead event store to where they are wanted again."""
    dropped: int = 0
    """Dropped by the JMS engine, because nobody waited for them."""

    @property
    def departed_count(self) -> int:
        """All events that have left."""
        counted: int = sum(getattr(self, name) for name in self.__struct_fields__)
        return counted - self.published - self.redelivered
