"""PostgreSQL with synchronous standbys keeps the contracts of the ports, whatever befalls it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Final, TypeVar

import asyncpg
import pytest

from penstock_cluster.storage.postgres.engine import PostgresEngine
from penstock_cluster.storage.postgres.journal import APPEND, PostgresJournal
from penstock_cluster.storage.postgres.servers import Call, OutcomeUnknown, Servers
from penstock_core.vocabulary.ports import Journal
from penstock_testing.contracts import (
    BlobsContract,
    JournalContract,
    RegistryContract,
    checks,
    run,
)
from penstock_testing.engine_contracts import EngineContract, Fates, ReopenedJournalContract
from tests.contract.engine_kits import BlobsKit, EngineKit, JournalKit, RegistryKit
from tests.contract.large_realm import check_large_blocks
from tests.contract.postgres_servers import PostgresServers, missing
from tests.loops import on_a_loop

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(missing()), reason=missing() or "PostgreSQL is there"),
]

T = TypeVar("T")
_numbers: Final = count(1)


class FatefulServers(Servers):
    """Loses calls, or their answers, as a check has decided it."""

    fates: Fates | None = None

    async def try_once(self, call: Call[T], *, size: int = 0) -> T:
        late: list[Call[Any]] = self.__dict__.setdefault("late", [])
        if self.fates is None:
            return await super().try_once(call, size=size)
        match self.fates.next():
            case "lost":
                pass
            case "late":
                late.append(call)
            case "answer lost":
                await super().try_once(call, size=size)
            case "done":
                outcome = await super().try_once(call, size=size)
                while late:
                    await super().try_once(late.pop(0))
                return outcome
        raise OutcomeUnknown("as a check has decided it")


class Nodes:
    """Nodes that share an engine: new and empty for the first of them."""

    def __init__(self, servers: PostgresServers, stack: AsyncExitStack) -> None:
        self._servers = servers
        self._stack = stack
        self.cluster = f"test{next(_numbers)}"

    async def engine(self, fates: Fates | None = None) -> PostgresEngine:
        def connect(urls: Sequence[str]) -> Servers:
            servers = FatefulServers(urls)
            servers.fates = fates
            return servers

        engine = PostgresEngine(self._servers.urls, cluster=self.cluster, connect=connect)
        self._stack.push_async_callback(engine.close)
        return engine

    async def connection(self) -> Any:
        """A connection of the test's own to the primary."""
        connection = await asyncpg.connect(self._servers.urls[0])
        self._stack.callback(connection.terminate)
        return connection


class ReopenedKit(ReopenedJournalContract):
    torn_bytes = 3 << 20

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def open(self, epoch: int) -> Journal:
        self._journal = await (await self._nodes.engine()).journal(0, epoch)
        return self._journal

    async def tear(self, data: bytes) -> None:
        """The connection ends in the middle of the append's transaction."""
        connection = await self._nodes.connection()
        await connection.execute("BEGIN")
        arguments = (
            f"{self._nodes.cluster}/0",
            self._journal.info().tail,
            writer_of(self._journal),
        )
        assert await connection.fetchval(APPEND, *arguments, 1, 1, data, "on") is not None
        connection.terminate()
        await self._journal.close()


def writer_of(journal: Journal) -> Any:
    assert isinstance(journal, PostgresJournal)
    return journal._writer


@pytest.fixture(scope="module")
def servers() -> Iterator[PostgresServers]:
    with PostgresServers() as running:
        yield running


def keeps(kit: Callable[[Nodes], ABC], servers: PostgresServers, check: str) -> None:
    on_nodes(servers, lambda nodes: run(kit(nodes), check))


@on_a_loop
async def on_nodes(servers: PostgresServers, what: Callable[[Nodes], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        await what(Nodes(servers, stack))


@pytest.mark.parametrize("check", checks(JournalContract))
def test_journal(servers: PostgresServers, check: str) -> None:
    keeps(JournalKit, servers, check)


@pytest.mark.parametrize("check", checks(ReopenedJournalContract))
def test_journal_opened_again(servers: PostgresServers, check: str) -> None:
    keeps(ReopenedKit, servers, check)


@pytest.mark.parametrize("check", checks(EngineContract))
def test_engine(servers: PostgresServers, check: str) -> None:
    keeps(EngineKit, servers, check)


@pytest.mark.parametrize("check", checks(BlobsContract))
def test_blobs(servers: PostgresServers, check: str) -> None:
    keeps(BlobsKit, servers, check)


@pytest.mark.parametrize("check", checks(RegistryContract))
def test_registry(servers: PostgresServers, check: str) -> None:
    keeps(RegistryKit, servers, check)


@pytest.mark.slow
def test_a_realm_has_blocks_as_large_as_they_may_be(servers: PostgresServers) -> None:
    on_nodes(servers, lambda nodes: check_large_blocks(nodes.engine))
