"""Merge: like default, with one event for each value of the publish key. This event is the state of
the key; deltas are merged into it (SEM K2-K4)."""

from __future__ import annotations

from penstock_core.channel.engine import Engine
from penstock_core.engines.default import Default


class Merge(Default):
    """The rules of the merge engine."""

    name = "merge"
    merges = True


ENGINE: Engine = Merge()
