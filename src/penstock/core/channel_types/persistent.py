"""Persistent: every event on disk; events and ids continue after a restart (SEM C1a)."""

from __future__ import annotations

from penstock.core.channel_type import ChannelType
from penstock.core.messages import Digest, Spans


class Persistent:
    name = "persistent"
    survives_restart = True
    event_ttl_counts = False
    deprecated = False

    def volatile(self, digest: Digest) -> Spans:
        return ()


TYPE: ChannelType = Persistent()
