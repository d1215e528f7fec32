"""Paged: events in separate memory-mapped files, recovered after a restart (SEM C1g)."""

from __future__ import annotations

from penstock_core.channel.channel_type import ChannelType, Home
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.digest import Digest


class Paged:
    """The rules of paged channels."""

    name = "paged"
    home: Home = "pages"
    survives_restart = True
    ids_survive = True
    event_ttl_counts = False
    relays = False
    clusterable = True
    scheduled_on = "persistent"

    def volatile(self, digest: Digest) -> Spans:
        return ()


TYPE: ChannelType = Paged()
