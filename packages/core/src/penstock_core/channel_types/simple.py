"""Simple: events in memory, lost in a restart; ids start again (SEM C1d)."""

from __future__ import annotations

from penstock_core.channel.channel_type import ChannelType, Home
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.digest import Digest


class Simple:
    """The rules of simple channels."""

    name = "simple"
    home: Home = "heap"
    survives_restart = False
    ids_survive = False
    event_ttl_counts = False
    relays = False
    clusterable = False  # ids would begin again with each owner
    scheduled_on = "simple"

    def volatile(self, digest: Digest) -> Spans:
        return (Span(0, digest.count),)


TYPE: ChannelType = Simple()
