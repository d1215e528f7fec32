"""NATS JetStream with three servers: streams of three replicas, nats-py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peers.nats import Nats, NatsBroker
from bench.peers.penstock_cluster import parts_of
from bench.shape import Broker, Server
from bench.together import servers_together
from penstock_testing.nats_servers import SERVERS, NatsServers

STARTED_S: Final = 60.0
LOOK_S: Final = 0.1


class NatsCluster(Nats):
    name = "nats-cluster"

    @contextmanager
    def serve(self, directory: Path, durability: str) -> Iterator[Server]:
        """Serve three servers. D2: each server syncs a write before it confirms it; D1: every two
        minutes."""
        sync = "always" if durability == "D2" else '"2m"'
        servers = NatsServers(directory, sync=dict.fromkeys(range(SERVERS), sync))
        with servers_together(parts_of(servers), ",".join(servers.urls), directory) as server:
            asyncio.run(_led(server.url))
            yield server

    async def connect(self, url: str) -> Broker:
        import nats

        servers = url.split(",")
        return NatsBroker(await nats.connect(servers), servers[0], replicas=SERVERS)


async def _led(url: str) -> None:
    """Wait until the servers have elected the leader that creates streams."""
    import nats
    from nats.errors import Error

    connection = await nats.connect(url.split(","))
    try:
        async with asyncio.timeout(STARTED_S):
            while True:
                try:
                    await connection.jetstream().streams_info()
                except Error:
                    await asyncio.sleep(LOOK_S)
                else:
                    return
    finally:
        await connection.close()


PEER = NatsCluster()
