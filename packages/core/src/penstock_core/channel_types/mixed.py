"""Mixed, the default: each event chooses whether it is kept on disk; one id sequence (SEM C1b)."""

from __future__ import annotations

from penstock_core.channel.channel_type import ChannelType, Home
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.digest import Digest


class Mixed:
    """The rules of mixed channels."""

    name = "mixed"
    home: Home = "journal"
    survives_restart = True
    ids_survive = True
    event_ttl_counts = True
    relays = False
    clusterable = True
    scheduled_on = "mixed"

    def volatile(self, digest: Digest) -> Spans:
        return digest.volatile


TYPE: ChannelType = Mixed()
