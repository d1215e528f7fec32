"""Controls: engines that would lose acknowledged events, on which no node may start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock_testing.nats_servers import SERVERS, NatsServers
from penstock_testing.ports import free_ports
from penstock_testing.process import ServerDidNotStart
from tests.faults.cluster.engine import SHARD, EngineServers
from tests.faults.cluster.nodes import Node

SYNC_INTERVAL: Final = '"2m"'


def _one_server(folder: Path) -> NatsServers:
    return NatsServers(folder, servers=1)


def _lazy_sync(folder: Path) -> NatsServers:
    """A majority of the servers is wrong, because any majority is enough to start."""
    return NatsServers(folder, sync={1: SYNC_INTERVAL, 2: SYNC_INTERVAL})


SETTINGS: Final[Mapping[str, Callable[[Path], NatsServers]]] = {
    "one-server": _one_server,
    "lazy-sync": _lazy_sync,
    "one-replica": NatsServers,
    "memory": NatsServers,
}
"""Wrong settings with the servers that have them. The last two are wrong in the shard's stream."""
STREAMS: Final[Mapping[str, Mapping[str, object]]] = {
    "one-replica": {"num_replicas": 1, "storage": "file"},
    "memory": {"num_replicas": SERVERS, "storage": "memory"},
}


def refusal(what: str, folder: Path, lease_s: float) -> str:
    """Return the reason why a node does not serve; "" if it serves."""
    for part in ("engine", "nodes"):
        (folder / part).mkdir(parents=True)
    with SETTINGS[what](folder / "engine") as servers:
        engine = EngineServers(servers)
        if what in STREAMS:
            engine.make(SHARD, STREAMS[what])
        node = Node(1, folder / "nodes", free_ports(2), engine=engine, lease_s=lease_s)
        try:
            node.start()
            return "" if node.serves() else _reason(node.running.log)
        except ServerDidNotStart as error:
            return _reason(f"{error}")
        finally:
            node.close()


def _reason(log: str) -> str:
    """Return the reason that the node logged. A crash is not a reason."""
    for line in log.splitlines():
        if '"realm.failed"' in line:
            return str(msgspec.json.decode(line)["reason"])
    raise AssertionError(f"a node that does not start says why: {log}")
