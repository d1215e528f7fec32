"""Off-heap: events in Arrow memory outside the Python heap, with a separate limit (SEM C1f)."""

from __future__ import annotations

from penstock_core.channel.channel_type import ChannelType, Home
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.digest import Digest


class OffHeap:
    """The rules of off-heap channels."""

    name = "off_heap"
    home: Home = "off_heap"
    survives_restart = False
    ids_survive = True
    event_ttl_counts = False
    relays = False
    clusterable = True
    scheduled_on = "reliable"

    def volatile(self, digest: Digest) -> Spans:
        return (Span(0, digest.count),)


TYPE: ChannelType = OffHeap()
