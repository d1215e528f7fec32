"""Transient: a relay to the clients that can take an event now; no event is kept (SEM C1e)."""

from __future__ import annotations

from penstock_core.channel.channel_type import ChannelType, Home
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.digest import Digest


class Transient:
    name = "transient"
    home: Home = "nowhere"
    survives_restart = False
    ids_survive = False
    event_ttl_counts = False
    relays = True
    clusterable = False
    scheduled_on = "simple"

    def volatile(self, digest: Digest) -> Spans:
        return ()


TYPE: ChannelType = Transient()
