"""The protocol of channel types (SEM C1). Each type is one file in ``penstock_core.channel_types``;
the rules read its properties and never compare its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.digest import Digest

Home = Literal["journal", "heap", "off_heap", "pages", "nowhere"]
"""The place that keeps a channel's events; it decides which limit they count against (SEM C6)."""


class ChannelType(Protocol):
    """The rules of one channel type. Implementations have no state."""

    @property
    def name(self) -> str: ...

    @property
    def home(self) -> Home:
        """The place that keeps events; on mixed channels those that are not in memory only."""
        ...

    @property
    def survives_restart(self) -> bool:
        """Whether events (all, or those flagged persistent) are kept over a restart."""
        ...

    @property
    def ids_survive(self) -> bool:
        """Whether ids continue after a restart instead of starting again (SEM E4)."""
        ...

    @property
    def event_ttl_counts(self) -> bool:
        """Whether an event's own TTL replaces the channel's (SEM T2)."""
        ...

    @property
    def relays(self) -> bool:
        """Whether events are only passed to connected clients and never stored (SEM C1e)."""
        ...

    @property
    def clusterable(self) -> bool:
        """Whether such a channel may be cluster-wide (SEM N5)."""
        ...

    @property
    def scheduled_on(self) -> str:
        """The type of the store for scheduled events (SEM X4): its events survive a restart exactly
        if those of this type do."""
        ...

    def volatile(self, digest: Digest) -> Spans:
        """Return the offsets of the events in a batch that are kept in memory only."""
        ...


class ClusterWide:
    """A channel type in a cluster, where any node may become the owner of a channel.

    All events are therefore kept in the journal and in files, whatever the type. Types that use
    memory or files of one machine keep events more safely than they promise (SEM N3).
    """

    home: Home = "journal"
    survives_restart = True
    clusterable = True

    def __init__(self, type: ChannelType) -> None:
        self.name = type.name
        self.ids_survive = type.ids_survive
        self.event_ttl_counts = type.event_ttl_counts
        self.relays = type.relays
        self.scheduled_on = type.scheduled_on

    def volatile(self, digest: Digest) -> Spans:
        return ()  # a node that takes over the channel cannot read this node's memory


ChannelTypes = Mapping[str, ChannelType]
