"""Reliable: events in memory, lost in a restart; ids continue (SEM C1c)."""

from __future__ import annotations

from penstock_core.channel.channel_type import ChannelType, Home
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.digest import Digest


class Reliable:
    """The rules of reliable channels."""

    name = "reliable"
    home: Home = "heap"
    survives_restart = False
    ids_survive = True
    event_ttl_counts = False
    relays = False
    clusterable = True
    scheduled_on = "reliable"

    def volatile(self, digest: Digest) -> Spans:
        return (Span(0, digest.count),)


TYPE: ChannelType = Reliable()
