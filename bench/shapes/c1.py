"""C1: S1 through a cluster; a confirmed event is on the disks of two machines of three."""

from __future__ import annotations

from collections.abc import Sequence

from bench.shape import CLUSTERS, Case
from bench.shapes.s1 import PublishAndConsume


class PublishAndConsumeClustered(PublishAndConsume):
    """S1 on three machines, compared with one Penstock node."""

    name = "C1"
    title = "publish and consume through a cluster, 1 producer, 1 consumer, 128 B"
    ours = "penstock-cluster"
    contenders: Sequence[str] = CLUSTERS

    def cases(self, *, quick: bool) -> Sequence[Case]:
        return [
            Case(label, "D2", {"size": 128, "api": api, "seconds": 0.05 if quick else 2.0})
            for api, label in (
                ("columns", "batches of columns"),
                ("rows", "batches of events"),
                ("pipelined", "one at a time, pipelined"),
            )[: 1 if quick else None]
        ]


SHAPE = PublishAndConsumeClustered()
