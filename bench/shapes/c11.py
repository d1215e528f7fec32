"""C11: how long one publish to a cluster takes that waits for its confirmation."""

from __future__ import annotations

from collections.abc import Sequence

from bench.shape import CLUSTERS, Case
from bench.shapes.s11 import Latency


class ClusteredLatency(Latency):
    """As S11, one after the other. ``nats-cluster`` is what Penstock's own engine takes for an
    event that a program sends to it."""

    name = "C11"
    title = "latency of one event per publish to a cluster, 128 B"
    ours = "penstock-cluster"
    contenders: Sequence[str] = CLUSTERS

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 0.2 if quick else 5.0
        given = {"rate": 0, "seconds": seconds, "floods": False}
        return [Case("one after the other", "D2", given)]


SHAPE = ClusteredLatency()
