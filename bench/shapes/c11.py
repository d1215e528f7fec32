"""C11: latency of one awaited publish to a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from bench.shape import CLUSTERS, Case
from bench.shapes.s11 import Latency


class ClusteredLatency(Latency):
    """S11, sequential, on three machines. ``nats-cluster`` is also the latency of Penstock's own
    storage engine for one event."""

    name = "C11"
    title = "publish latency in a cluster, one event per publish, 128 B"
    ours = "penstock-cluster"
    contenders: Sequence[str] = CLUSTERS

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 0.2 if quick else 5.0
        parameters = {"rate": 0, "seconds": seconds, "floods": False}
        return [Case("sequential", "D2", parameters)]


SHAPE = ClusteredLatency()
