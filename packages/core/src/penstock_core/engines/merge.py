"""Merge: as default, and of each value of the one publish key there is one event: its state, into
which deltas are merged (SEM K2-K4)."""

from __future__ import annotations

from penstock_core.channel.engine import Engine
from penstock_core.engines.default import Default


class Merge(Default):
    name = "merge"
    merges = True


ENGINE: Engine = Merge()
