"""The orders of operators to a cluster."""

from __future__ import annotations

from packages.cluster.tests.machines import (
    LEASE_S,
)
from penstock_cluster.nodes.cluster_orders import ClusterOrders
from penstock_testing.engine import EngineServers, MemoryInspector
from tests.loops import the_loop


def orders(servers: EngineServers) -> ClusterOrders:
    return ClusterOrders(MemoryInspector(servers), servers.records, the_loop(), lease_s=LEASE_S)
