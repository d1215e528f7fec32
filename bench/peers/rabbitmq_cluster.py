"""RabbitMQ with three nodes: quorum queues of three replicas, aio-pika."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peers.rabbitmq import (
    CONFIGURATION,
    HOME,
    Rabbit,
    RabbitBroker,
    epmd_command,
    node_environment,
)
from bench.processes import server_process
from bench.shape import Broker, Server
from bench.together import Part, servers_together
from penstock_testing.ports import free_port, free_ports

NODES: Final = 3
MEETING: Final = """
cluster_formation.peer_discovery_backend = classic_config
"""
STARTED_S: Final = 120


class RabbitCluster(Rabbit):
    name = "rabbitmq-cluster"

    @contextmanager
    def serve(self, directory: Path, durability: str) -> Iterator[Server]:
        """Serve three nodes. D2: a majority has synced its log before a confirmation; D1: it has
        written it."""
        ports, node_ports, epmd_port = free_ports(NODES), free_ports(NODES), free_port()
        names = [f"bench{port}@localhost" for port in ports]
        meeting = MEETING + "".join(
            f"cluster_formation.classic_config.nodes.{number} = {name}\n"
            for number, name in enumerate(names, 1)
        )
        cookie, parts = secrets.token_hex(16), []
        for name, port, node_port in zip(names, ports, node_ports, strict=True):
            kept = directory.parent / name
            environment = node_environment(
                kept,
                directory,
                name,
                port=node_port,
                epmd_port=epmd_port,
                configuration=CONFIGURATION.format(port=port) + meeting,
                durability=durability,
            )
            _write_secret(kept / ".erlang.cookie", cookie)
            parts.append(Part([str(HOME / "rabbitmq-server")], port, environment))
        url = f"amqp://guest:guest@127.0.0.1:{ports[0]}/"
        with (
            server_process(epmd_command(epmd_port), epmd_port, "", directory=directory),
            servers_together(parts, url, directory) as server,
        ):
            _wait_until_all_met(parts[0].more)
            yield server

    async def connect(self, url: str) -> Broker:
        """Connect to the node that leads the queues declared through it, which is the shortest
        path."""
        return await RabbitBroker.connected(url, replicas=NODES)


def _write_secret(file: Path, text: str) -> None:
    """Write a file that others cannot read: otherwise Erlang refuses the cookie."""
    file.write_text(text)
    file.chmod(0o400)


def _wait_until_all_met(environment: Mapping[str, str]) -> None:
    """Wait until all nodes are connected: a queue has replicas only on nodes that were present when
    it was declared."""
    command = [str(HOME / "rabbitmqctl"), "await_online_nodes", str(NODES)]
    command += ["--timeout", str(STARTED_S)]
    done = subprocess.run(
        command, env=os.environ | dict(environment), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the nodes have not met: {done.stdout}{done.stderr}")


PEER = RabbitCluster()
