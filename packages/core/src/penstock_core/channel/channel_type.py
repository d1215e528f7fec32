"""The protocol of channel types (SEM C1). Each type is one file in ``penstock_core.channel_types``;
the rules ask it and never test for a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.digest import Digest

Home = Literal["journal", "heap", "off_heap", "pages", "nowhere"]
"""The place that keeps a channel's events, and so the limit they count against (SEM C6)."""


class ChannelType(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def home(self) -> Home:
        """Where events live; of mixed channels: those that are not in memory only."""
        ...

    @property
    def survives_restart(self) -> bool:
        """Whether events (all, or those flagged persistent) are kept over a restart."""
        ...

    @property
    def ids_survive(self) -> bool:
        """Whether ids go on after a restart, or start again (SEM E4)."""
        ...

    @property
    def event_ttl_counts(self) -> bool:
        """Whether an event's own TTL replaces the channel's (SEM T2)."""
        ...

    @property
    def relays(self) -> bool:
        """Whether events only go to those who are there to take them (SEM C1e)."""
        ...

    @property
    def clusterable(self) -> bool:
        """Whether such a channel may be cluster-wide (SEM N5)."""
        ...

    @property
    def scheduled_on(self) -> str:
        """The type of the store where events wait for their time (SEM X4): what is lost in a
        restart here is lost there."""
        ...

    def volatile(self, digest: Digest) -> Spans:
        """Offsets of the events of a batch that live in memory only."""
        ...


class ClusterWide:
    """A channel type in a cluster, where every node may be the next to own a channel: all events
    lie in the journal and in files, whatever its type. Types that live in memory or in files of one
    machine promise more than on one node then (SEM N3)."""

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
        return ()


ChannelTypes = Mapping[str, ChannelType]
