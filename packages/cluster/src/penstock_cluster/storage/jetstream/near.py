"""Connections to the servers that lead the streams of journals.

A server that does not lead a stream sends what is published to it on to the one that does, and its
answer back: two more processes work for each block, and the block passes the network twice.
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
    """At most one to each server, opened when a stream is led by it; ``shared`` is the one that
    everything else is asked by."""

    def __init__(self, servers: Sequence[str], reach: Reach, shared: NatsConnection) -> None:
        self._servers = list(servers)
        self._reach: Final = reach
        self._shared = shared
        self._open: dict[str, NatsConnection] = {}
        self._nowhere: set[str] = set()
        """Leaders that are not among the servers that were named."""
        self._looking: asyncio.Task[None] | None = None

    def start_looking(self, streams: Sequence[NatsStream]) -> None:
        """Find out who leads these now, and go there. Nobody waits for it: it is a shorter way, and
        not the only one."""
        if self._looking is None or self._looking.done():
            self._looking = start_task(self._look(streams), name="engine-near")

    async def _look(self, streams: Sequence[NatsStream]) -> None:
        for stream in streams:
            try:
                await self.lead(stream)
            except Unavailable:
                continue  # the engine's own checks tell what is wrong with the stream

    async def lead(self, stream: NatsStream) -> None:
        """Have a journal's stream published to by the shortest way there is. Where nobody says who
        leads, it goes on as before; where that one cannot be reached, by the shared connection."""
        leader = await stream.led_by()
        if leader:
            stream.append_by(await self._to(leader))

    async def close(self) -> None:
        """Let go of all of them."""
        if self._looking is not None:
            self._looking.cancel()
        connections, self._open = list(self._open.values()), {}
        for connection in connections:
            await connection.close()

    async def _to(self, leader: str) -> NatsConnection | None:
        if leader in self._nowhere or self._shared.server == leader:
            return None
        known = self._open.pop(leader, None)
        if known is not None:
            if known.server == leader:
                self._open[leader] = known
                return known
            await known.close()  # it has reconnected to another one
        has_asked_all = True
        for server in self._servers:
            try:
                found = await self._reach(server)
            except Unavailable:
                has_asked_all = False
                continue
            if found.server == leader:
                self._open[leader] = found
                return found
            await found.close()
        if has_asked_all:
            self._nowhere.add(leader)
        return None
