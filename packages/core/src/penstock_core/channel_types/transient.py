"""Transient: a relay to the clients that can take an event now; no event is kept (SEM C1e)."""

from __future__ import annotations

from penstock_core.channel.channel_type import ChannelType, Home
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.digest import Digest


class Transient:
    """The rules of transient channels."""

    name = "transient"
    home: Home = "nowhere"
    survives_restart = False
    ids_survive = False
    event_ttl_counts = False
    relays = True
    clusterable = False  # ids would begin again with each owner
    scheduled_on = "simple"

    def volatile(self, digest: Digest) -> Spans:
        return ()  # events are not kept in memory either


TYPE: ChannelType = Transient()
