"""NATS servers with JetStream for the contract tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Final

from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.connection import JetStreamRefusal, NatsConnection
from penstock_cluster.storage.jetstream.engine import JetStreamEngine
from penstock_server.runtime.writer.clock import SystemClock
from penstock_testing.engine_contracts import Fates
from penstock_testing.nats_servers import NatsServers

_numbers: Final = count(1)


class FatefulConnection(NatsConnection):
    """Loses requests that change something, or their answers, as decided by the fates of a
    check."""

    fates: Fates | None = None

    def begin(self, fates: Fates | None) -> None:
        self.fates = fates
        self.stored = asyncio.Event()
        """Set when something was stored."""
        self._late: list[tuple[str, bytes, Mapping[str, str] | None]] = []

    async def ask(
        self, subject: str, request: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        changes = not subject.startswith("$JS.API.") or ".PURGE." in subject
        if self.fates is None or not changes:
            return await super().ask(subject, request, headers)
        match self.fates.next():
            case "lost":
                pass
            case "late":
                self._late.append((subject, request, headers))
            case "answer lost":
                await self._do(subject, request, headers)
            case "done":
                try:
                    return await super().ask(subject, request, headers)
                finally:
                    self.stored.set()
                    late, self._late = self._late, []
                    for late_request in late:
                        await self._do(*late_request)
        raise Unanswered("as a check has decided it")

    async def _do(self, subject: str, request: bytes, headers: Mapping[str, str] | None) -> None:
        """Do a request whose answer is lost."""
        try:
            await super().ask(subject, request, headers)
        except JetStreamRefusal:
            return


async def ignore() -> None:
    """Do nothing after a reconnection."""


class Nodes:
    """Nodes that share an engine, which is new and empty for the first node."""

    def __init__(self, servers: NatsServers, stack: AsyncExitStack, frame_bytes: int) -> None:
        self._servers = servers
        self._stack = stack
        self._frame_bytes = frame_bytes
        self._name = f"test{next(_numbers)}"
        self.connection: FatefulConnection | None = None

    async def engine(self, fates: Fates | None = None) -> JetStreamEngine:
        async def connect(
            servers: Sequence[str], on_reconnect: Callable[[], Awaitable[None]]
        ) -> NatsConnection:
            connection = await FatefulConnection.open(servers, on_reconnect)
            assert isinstance(connection, FatefulConnection)
            connection.begin(fates)
            self.connection = connection
            return connection

        engine = JetStreamEngine(
            self._servers.urls,
            name=self._name,
            monitors=self._servers.monitors,
            clock=SystemClock(),
            offload=asyncio.to_thread,
            frame_bytes_max=self._frame_bytes,
            connect=connect,
        )
        await engine.open()
        self._stack.push_async_callback(engine.close)
        return engine
