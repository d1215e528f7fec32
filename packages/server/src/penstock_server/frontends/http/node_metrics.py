"""Metrics of the cluster node that received the request for them.

The owner of the realm answers for every node, because only the owner can check access rights. A
standby node reports its figures with each renewal of its lease.
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
"""Metrics of a process with their help. The texts are those of the Prometheus client library, which
exports the same metrics for the owner."""


class RelayedNode(Collector):
    """All metrics of the standby node that received the request and relayed it to the owner, which
    collects them here."""

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
                continue  # the node has a newer version with further figures
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(name.removesuffix("_total"), text, value=value)


def relayed_registry(node: ClusterNodeInfo, figures: NodeFigures | None) -> CollectorRegistry:
    """Return a registry with the metrics of this node only."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RelayedNode(node, figures))
    return registry


def node_metrics(node: ClusterNodeInfo, figures: NodeFigures | None) -> Iterator[Metric]:
    """Yield the metrics that the owner and standby nodes have in common."""
    info = {"name": node.node, "version": node.version}
    yield InfoMetricFamily("penstock_node", "The node of the cluster.", info)
    yield _gauge("node_serves", "1 while the node owns the realm.", node.state == "owner")
    yield _gauge("node_unfit", "1 while the node cannot take over the realm.", bool(node.unfit))
    if figures is None:
        return
    yield _gauge("node_epoch", "Newest epoch of the realm that the node knows.", figures.epoch)
    yield _gauge("relays", "Connections that the node relays to the owner.", figures.relays)
    yield _counter("relays_opened", "Connections that the node has relayed.", figures.relays_opened)
    takeovers = CounterMetricFamily(
        "penstock_takeovers",
        "Takeovers of the realm by this process, by reason.",
        labels=["why"],
    )
    for why, count in figures.takeovers.items():
        takeovers.add_metric([why], count)
    yield takeovers
    text = "Duration of the latest takeover, from the claim to the end of the recovery."
    yield _gauge("takeover_seconds", text, figures.takeover_us / 1_000_000)
    text = "How often another node took over the realm from this process."
    yield _counter("deposed", text, figures.deposed)


def incidents_metric(*counts: Mapping[str, int]) -> Metric:
    """Return the metric of open incidents of background tasks, from counts by task."""
    incidents = GaugeMetricFamily(
        "penstock_incidents",
        "Open failures of background tasks, by task.",
        labels=["task"],
    )
    totals: Counter[str] = Counter()
    for count_by_task in counts:
        totals.update(count_by_task)
    for task, count in totals.items():
        incidents.add_metric([task], count)
    return incidents


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_{name}", text, value=float(value))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_{name}", text, value=float(value))
