"""Inspection of PostgreSQL from outside the cluster: its settings, its standbys, and the register
of a cluster. Every connection is read-only, so that nothing can be changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from penstock_cluster.storage.postgres import guard
from penstock_cluster.storage.postgres.engine import CORRUPT, health_of
from penstock_cluster.storage.postgres.journal import compare_with_head
from penstock_cluster.storage.postgres.registry import CONTENTS
from penstock_cluster.storage.postgres.servers import CONNECT_S, NO_ANSWER, REFUSED, SESSION, shown
from penstock_core.vocabulary.errors import Damaged, Unavailable
from penstock_core.vocabulary.ports import EngineCheck, EngineHealth, EngineServer, VersionedRecord

ANSWER_S: Final = 10.0
"""Seconds within which a server has to answer."""
READ_ONLY: Final = {**SESSION, "default_transaction_read_only": "on"}
_REGISTER_EXISTS: Final = "SELECT to_regclass('penstock_register') IS NOT NULL"
_CLUSTERS: Final = (
    "SELECT DISTINCT register FROM penstock_register WHERE key = 'shard/0' ORDER BY register"
)
_DESCRIBE: Final = """
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS is_standby
"""


class PostgresInspector:
    """The :class:`~penstock_core.vocabulary.ports.EngineInspector` of PostgreSQL. Each request has
    a separate connection."""

    def __init__(self, urls: Sequence[str], *, cluster: str = "penstock") -> None:
        """``urls`` are those of all servers, ``cluster`` is the name of the cluster."""
        self._urls = tuple(urls)
        self._cluster = cluster

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        """Return the records of the registry whose keys begin with ``prefix``
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.records`)."""
        async with self._primary() as (primary, _):
            if not await primary.fetchval(_REGISTER_EXISTS):
                return {}
            rows = await primary.fetch(CONTENTS, self._cluster, prefix)
        return {row["key"]: VersionedRecord(row["version"], row["value"]) for row in rows}

    async def health(self) -> EngineHealth:
        """Return the state of the engine
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.health`)."""
        async with self._primary() as (primary, server):
            return await health_of(primary, len(self._urls), server)

    async def servers(self) -> Sequence[EngineServer]:
        """Return all known servers of the engine
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.servers`)."""
        async with asyncio.TaskGroup() as tasks:
            tasks_by_url = [tasks.create_task(_describe_server(url)) for url in self._urls]
        return [task.result() for task in tasks_by_url]

    async def checks(self, shard: int) -> Sequence[EngineCheck]:
        """Check the engine's requirements for use by a node, and return the results
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.checks`)."""
        silent = [server for server in await self.servers() if server.failure]
        failures = "; ".join(f"{server.address}: {server.failure}" for server in silent)
        count = len(self._urls) - len(silent)
        servers = EngineCheck(
            name="servers", finding=failures or f"{count} of {count} answer", is_ok=not silent
        )
        try:
            async with self._primary() as (primary, server):
                checks = [
                    await _checked(name, check, expectation, connection=primary, server=server)
                    for name, check, expectation in _CHECKS
                ]
                checks.append(await self._check_history(primary, server, shard))
        except Unavailable as error:
            return [servers, EngineCheck(name="primary", finding=f"{error}", is_ok=False)]
        return [servers, *checks]

    async def _check_history(self, primary: Any, server: str, shard: int) -> EngineCheck:
        async def compare(connection: Any, leader: str) -> None:
            if await connection.fetchval(_REGISTER_EXISTS):
                await compare_with_head(connection, leader, f"{self._cluster}/{shard}")

        result = "every block that was acknowledged has its row"
        return await _checked("history", compare, result, connection=primary, server=server)

    async def clusters(self) -> Sequence[str]:
        """Return the names of all clusters on the engine
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.clusters`)."""
        async with self._primary() as (primary, _):
            if not await primary.fetchval(_REGISTER_EXISTS):
                return []
            rows = await primary.fetch(_CLUSTERS)
        return [row["register"] for row in rows]

    async def close(self) -> None:
        """Do nothing: every connection is closed after its request."""

    @asynccontextmanager
    async def _primary(self) -> AsyncIterator[tuple[Any, str]]:
        """Yield a read-only connection to the primary, and its address."""
        failures = []
        for url in self._urls:
            try:
                connection = await _connected(url)
            except (*NO_ANSWER, *REFUSED, asyncpg.TooManyConnectionsError) as error:
                failures.append(f"{shown(url)}: {f'{error}' or type(error).__name__}")
                continue
            try:
                if not await connection.fetchval("SELECT pg_is_in_recovery()"):
                    async with asyncio.timeout(ANSWER_S):
                        yield connection, shown(url)
                    return
            except NO_ANSWER as error:
                raise Unavailable(f"{shown(url)} did not answer: {error!r}") from error
            finally:
                connection.terminate()
            failures.append(f"{shown(url)} is a standby")
        raise Unavailable(f"no PostgreSQL server takes writes: {'; '.join(failures)}")


async def _connected(url: str) -> Any:
    """Return a new connection that only reads."""
    return await asyncpg.connect(
        url, timeout=CONNECT_S, command_timeout=ANSWER_S, server_settings=READ_ONLY
    )


async def _describe_server(url: str) -> EngineServer:
    try:
        connection = await _connected(url)
    except (*NO_ANSWER, *REFUSED, asyncpg.TooManyConnectionsError) as error:
        return EngineServer(name="", address=shown(url), failure=f"{error}" or type(error).__name__)
    try:
        row = await connection.fetchrow(_DESCRIBE)
    except NO_ANSWER as error:
        return EngineServer(name="", address=shown(url), failure=f"{error!r}")
    finally:
        connection.terminate()
    return EngineServer(
        name=shown(url),
        address=shown(url),
        version=row["version"].split()[0],
        leads=not row["is_standby"],
    )


async def _check_damage(connection: Any, server: str) -> None:
    damaged = [row["datname"] for row in await connection.fetch(CORRUPT)]
    if damaged:
        raise Unavailable(
            f"PostgreSQL at {server} has found wrong checksums in {', '.join(damaged)}; make a "
            f"standby without wrong checksums the primary, and re-create this server"
        )


Check = Callable[[Any, str], Awaitable[None]]
_CHECKS: Final[Sequence[tuple[str, Check, str]]] = (
    ("version", guard.check_version, "PostgreSQL 14 or newer"),
    ("sync", guard.check_writes, "fsync and full_page_writes are on"),
    ("commit", guard.check_commit, "synchronous_commit waits for a standby's disk"),
    ("checksums", guard.check_checksums, "data checksums are on"),
    ("replicas", guard.check_standby_names, "synchronous_standby_names has standbys"),
    ("standbys", guard.check_standbys, "enough synchronous standbys are connected"),
    ("copies", _check_damage, "no checksum was wrong"),
)


async def _checked(
    name: str, check: Check, success: str, connection: Any, server: str
) -> EngineCheck:
    """Run a check that raises ``Unavailable`` or ``Damaged`` if it fails. ``success`` is the
    finding otherwise."""
    try:
        await check(connection, server)
    except (Unavailable, Damaged) as error:
        return EngineCheck(name=name, finding=f"{error}", is_ok=False)
    return EngineCheck(name=name, finding=success, is_ok=True)
