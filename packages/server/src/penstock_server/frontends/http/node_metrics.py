"""Metrics of a node of a cluster: what the process that was asked for them does and takes.

The owner of the realm answers for every node, since it knows who may see them. A node that stands
by tells its figures with each renewal of its lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:  # a realm on its own loads nothing of a cluster
    from penstock_core.api.realm import ClusterNodeInfo
    from penstock_core.vocabulary.node_figures import NodeFigures

_PROCESS: Final = {
    "process_cpu_seconds_total": "Total user and system CPU time spent in seconds.",
    "process_resident_memory_bytes": "Resident memory size in bytes.",
    "process_virtual_memory_bytes": "Virtual memory size in bytes.",
    "process_start_time_seconds": "Start time of the process since unix epoch in seconds.",
    "process_open_fds": "Number of open file descriptors.",
    "process_max_fds": "Maximum number of open file descriptors.",
}
"""What is told of a process, in the words of Prometheus' client, which tells it of the owner."""


class RelayedNode(Collector):
    """All metrics of a node that stands by and relays a request for them."""

    def __init__(self, node: ClusterNodeInfo, figures: NodeFigures | None) -> None:
        self._node = node
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        yield from node_metrics(self._node, self._figures)
        if self._figures is None:
            return
        yield incidents_metric(self._figures.incidents)
        for name, value in self._figures.process.items():
            if (text := _PROCESS.get(name)) is None:
                continue  # of a newer version
            made = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield made(name.removesuffix("_total"), text, value=value)


def relayed_registry(node: ClusterNodeInfo, figures: NodeFigures | None) -> CollectorRegistry:
    """A registry with the metrics of this node only."""
    made = CollectorRegistry(auto_describe=False)
    made.register(RelayedNode(node, figures))
    return made


def node_metrics(node: ClusterNodeInfo, figures: NodeFigures | None) -> Iterator[Metric]:
    """What is told of the owner, and of a node that stands by, alike."""
    info = {"name": node.node, "version": node.version}
    yield InfoMetricFamily("penstock_node", "The node of the cluster.", info)
    yield _gauge("node_serves", "1 while the node owns the realm.", node.state == "owner")
    yield _gauge("node_unfit", "1 while the node could not take the realm over.", bool(node.unfit))
    if figures is None:
        return
    yield _gauge("node_epoch", "The newest epoch of the realm that it knows.", figures.epoch)
    yield _gauge("relays", "Connections that the node relays to the owner.", figures.relays)
    yield _counter("relays_opened", "Connections that it has relayed.", figures.relays_opened)
    takeovers = CounterMetricFamily(
        "penstock_takeovers",
        "Takeovers of the realm by this process, by why it could be claimed.",
        labels=["why"],
    )
    for why, count in figures.takeovers.items():
        takeovers.add_metric([why], count)
    yield takeovers
    told = "How long the newest of them took, from its claim until all was recovered."
    yield _gauge("takeover_seconds", told, figures.takeover_us / 1_000_000)
    told = "How often the realm was taken from this process."
    yield _counter("deposed", told, figures.deposed)


def incidents_metric(*counts: Mapping[str, int]) -> Metric:
    """Open incidents of background tasks, from counts by task."""
    incidents = GaugeMetricFamily(
        "penstock_incidents",
        "What background tasks could not do and have put aside, by task.",
        labels=["task"],
    )
    summed: Counter[str] = Counter()
    for each in counts:
        summed.update(each)
    for task, count in summed.items():
        incidents.add_metric([task], count)
    return incidents


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_{name}", text, value=float(value))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_{name}", text, value=float(value))
