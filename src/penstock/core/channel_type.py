"""What tells one channel type from another (SEM C1). Each type is one file in
``core.channel_types``; the mechanism asks, the type answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.core.messages import Digest, Spans


class ChannelType(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def survives_restart(self) -> bool:
        """Whether events (all, or those flagged persistent) are kept over a restart."""
        ...

    @property
    def event_ttl_counts(self) -> bool:
        """Whether an event's own TTL replaces the channel's (SEM T2)."""
        ...

    @property
    def deprecated(self) -> bool: ...

    def volatile(self, digest: Digest) -> Spans:
        """Offsets of the events of a batch that live in memory only."""
        ...


ChannelTypes = Mapping[str, ChannelType]
