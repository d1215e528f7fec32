"""Connections to the servers that lead the streams of journals.

A server that does not lead a stream forwards published messages to the leader, and its answers
back: two more processes work for each block, and the block crosses the network twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock_cluster.storage.jetstream.connection import NatsConnection
from penstock_cluster.storage.jetstream.stream import NatsStream
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import Unavailable

Reach = Callable[[str], Awaitable[NatsConnection]]
"""Connects to one server. Raises ``Unavailable``."""


class NearConnections:
    """Holds at most one connection to each server, opened once it leads a stream. All other
    requests use the ``shared`` connection."""

    def __init__(self, servers: Sequence[str], reach: Reach, shared: NatsConnection) -> None:
        self._servers = list(servers)
        self._reach: Final = reach
        self._shared = shared
        self._open: dict[str, NatsConnection] = {}
        self._unknown_leaders: set[str] = set()
        """Leaders that are not among the configured servers."""
        self._connecting: asyncio.Task[None] | None = None

    def start_connecting(self, streams: Sequence[NatsStream]) -> None:
        """Find the leaders of these streams in the background, and connect to them. Appends use the
        shared connection meanwhile."""
        if self._connecting is None or self._connecting.done():
            self._connecting = start_task(self._connect_leaders(streams), name="engine-near")

    async def _connect_leaders(self, streams: Sequence[NatsStream]) -> None:
        for stream in streams:
            try:
                await self.lead(stream)
            except Unavailable:
                continue  # the engine's checks report problems of the stream

    async def lead(self, stream: NatsStream) -> None:
        """Publish to a journal's stream over a connection to its leader. Without a known leader
        nothing changes; if the leader cannot be reached, the shared connection is used."""
        leader = await stream.led_by()
        if leader:
            stream.append_by(await self._connection_to(leader))

    async def close(self) -> None:
        """Close all connections."""
        if self._connecting is not None:
            self._connecting.cancel()
        connections, self._open = list(self._open.values()), {}
        for connection in connections:
            await connection.close()

    async def _connection_to(self, leader: str) -> NatsConnection | None:
        """Return a connection to a server, by its name. None if the shared connection leads there,
        or if the server is not among the configured ones or cannot be reached."""
        if leader in self._unknown_leaders or self._shared.server == leader:
            return None
        connection = self._open.pop(leader, None)
        if connection is not None:
            if connection.server == leader:
                self._open[leader] = connection
                return connection
            await connection.close()  # it has reconnected to another one
        # Only a connected server reports its name, so the configured servers are tried in turn.
        has_reached_all = True
        for server in self._servers:
            try:
                connection = await self._reach(server)
            except Unavailable:
                has_reached_all = False
                continue
            if connection.server == leader:
                self._open[leader] = connection
                return connection
            await connection.close()
        if has_reached_all:
            self._unknown_leaders.add(leader)
        return None
