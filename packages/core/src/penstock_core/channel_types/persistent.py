"""Persistent: every event on disk; events and ids continue after a restart (SEM C1a)."""

from __future__ import annotations

from penstock_core.channel.channel_type import ChannelType, Home
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.digest import Digest


class Persistent:
    """The rules of persistent channels."""

    name = "persistent"
    home: Home = "journal"
    survives_restart = True
    ids_survive = True
    event_ttl_counts = False
    relays = False
    clusterable = True
    scheduled_on = "persistent"

    def volatile(self, digest: Digest) -> Spans:
        return ()


TYPE: ChannelType = Persistent()
