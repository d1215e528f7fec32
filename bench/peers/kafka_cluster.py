"""Apache Kafka with three nodes: topics have three replicas, and a write is confirmed when two
replicas have it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import jars
from bench.peers.kafka import CLUSTER, CONFIGURATION, Kafka, KafkaBroker
from bench.shape import Broker, Server
from bench.together import Part, servers_together
from penstock_testing.ports import free_ports

NODES: Final = 3
IN_STEP: Final = 2
"""Number of nodes that have a write before it is confirmed."""


class KafkaCluster(Kafka):
    name = "kafka-cluster"

    @contextmanager
    def serve(self, directory: Path, durability: str) -> Iterator[Server]:
        """Serve three nodes. D2: every replica flushes a write before it confirms it; D1: the
        system flushes it later."""
        ports, controllers = free_ports(NODES), free_ports(NODES)
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))
        java = [shutil.which("java") or "", "-Xmx512m", "-Xms512m", "-XX:+UseG1GC"]
        java += ["-cp", jars.class_path("kafka")]
        parts = []
        for number, (port, controller) in enumerate(zip(ports, controllers, strict=True), 1):
            configuration = directory.parent / f"kafka{number}.properties"
            configuration.write_text(
                CONFIGURATION.format(
                    number=number,
                    voters=voters,
                    replicas=NODES,
                    in_step=IN_STEP,
                    port=port,
                    controller=controller,
                    directory=directory / f"log{number}",
                    flushing="log.flush.interval.messages=1" if durability == "D2" else "",
                )
            )
            tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(configuration)]
            subprocess.run([*java, *tool], check=True, capture_output=True)
            parts.append(Part([*java, "kafka.Kafka", str(configuration)], port))
        url = ",".join(f"127.0.0.1:{port}" for port in ports)
        with servers_together(parts, url, directory) as server:
            yield server

    async def connect(self, url: str) -> Broker:
        return KafkaBroker(url, replicas=NODES)


PEER = KafkaCluster()
