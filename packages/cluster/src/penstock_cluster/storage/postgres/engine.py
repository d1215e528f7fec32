"""PostgreSQL with synchronous standbys as the storage engine of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from penstock_cluster.storage.postgres import guard
from penstock_cluster.storage.postgres.blobs import PostgresBlobs
from penstock_cluster.storage.postgres.journal import PostgresJournal, check_is_whole
from penstock_cluster.storage.postgres.registry import PostgresRegistry
from penstock_cluster.storage.postgres.servers import OutcomeUnknown, Servers
from penstock_core.vocabulary.errors import InvalidArgument, NoQuorum
from penstock_core.vocabulary.ports import EngineHealth

OPEN_TIMEOUT_S: Final = 15.0
"""Longest wait for servers that are starting."""
CORRUPT: Final = "SELECT datname FROM pg_stat_database WHERE checksum_failures > 0"
SETTINGS: Final = """
SELECT current_setting('server_version') AS version,
       current_setting('synchronous_commit') AS sync,
       current_setting('synchronous_standby_names') AS names
"""


class PostgresEngine:
    """The :class:`~penstock_core.vocabulary.ports.StorageEngine` on PostgreSQL.

    Each journal, registry and store of blobs has a separate connection, so that a large blob does
    not delay an append.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        cluster: str = "penstock",
        connect: Callable[[Sequence[str]], Servers] = Servers,
    ) -> None:
        """``urls`` are those of all servers, including standbys; ``cluster`` separates several
        clusters in one database; ``connect`` creates a connection, which tests replace."""
        if not urls:
            raise InvalidArgument("a cluster on PostgreSQL needs the URL of at least one server")
        self._urls = tuple(urls)
        self._cluster = cluster
        self._connect = connect
        self._opened: list[Servers] = []
        self._journals: list[PostgresJournal] = []

    async def check(self, shard: int) -> None:
        """Check that the engine keeps acknowledged appends and still has those of this shard
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.check`). The wait for a server is
        short."""
        async with self._temporary_servers() as servers:
            try:
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    await servers.ask(lambda c: guard.check_standbys(c, servers.leader))
                    await check_is_whole(servers, self._journal_name(shard))
            except TimeoutError:
                raise NoQuorum(servers.complaint()) from None

    async def registry(self) -> PostgresRegistry:
        return PostgresRegistry(self._servers(), self._cluster)

    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> PostgresJournal:
        """Open the journal of a shard for the owner with this epoch, which excludes older owners
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.journal`)."""
        if epoch < 1 or begins < 0:
            raise InvalidArgument(
                f"epoch is {epoch} and begins is {begins}; they must be at least 1 and at least 0"
            )
        name = self._journal_name(shard)
        journal = await PostgresJournal.open(self._servers(), name, epoch, begins=begins)
        self._journals.append(journal)
        return journal

    async def open_read_only(self, shard: int) -> PostgresJournal | None:
        """Open the journal of a shard for reading only; None if it was never begun
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.open_read_only`)."""
        journal = await PostgresJournal.open_without_fence(
            self._servers(), self._journal_name(shard)
        )
        if journal is not None:
            self._journals.append(journal)
        return journal

    def _journal_name(self, shard: int) -> str:
        return f"{self._cluster}/{shard}"

    async def blobs(self, shard: int) -> PostgresBlobs:
        return PostgresBlobs(self._servers(), f"{self._cluster}/{shard}")

    async def health(self) -> EngineHealth:
        """Return the present state of the primary and its standbys."""
        async with self._temporary_servers() as servers:
            try:
                return await servers.try_once(
                    lambda c: health_of(c, len(self._urls), servers.leader)
                )
            except OutcomeUnknown as error:
                return EngineHealth(
                    kind="postgresql",
                    version="",
                    has_quorum=False,
                    servers=len(self._urls),
                    present=0,
                    damage=(f"{error}",),
                )

    async def close(self) -> None:
        """Close every journal, then every connection."""
        for journal in self._journals:
            await journal.close()
        for servers in self._opened:
            await servers.close()
        self._opened.clear()

    @asynccontextmanager
    async def _temporary_servers(self) -> AsyncIterator[Servers]:
        """Open a connection for one request."""
        servers = self._servers()
        try:
            yield servers
        finally:
            await servers.close()
            self._opened.remove(servers)

    def _servers(self) -> Servers:
        servers = self._connect(self._urls)
        self._opened.append(servers)
        return servers


async def health_of(connection: Any, servers: int, leader: str) -> EngineHealth:
    """Return the state of the primary, whose address is ``leader``, and of its standbys."""
    settings = await connection.fetchrow(SETTINGS)
    standbys = await connection.fetchrow(guard.STANDBYS)
    damaged = await connection.fetch(CORRUPT)
    return EngineHealth(
        kind="postgresql",
        version=settings["version"].split()[0],
        has_quorum=standbys["present"] >= guard.standbys_required(settings["names"]),
        servers=servers,
        present=1 + standbys["present"],
        leader=leader,
        sync=f"synchronous_commit = {settings['sync']}, standbys {settings['names']}",
        lag=standbys["lag"],
        damage=tuple(f"database {row['datname']}: checksum failures" for row in damaged),
    )
