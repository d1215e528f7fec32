"""The engine on NATS JetStream keeps the contracts, over three servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from abc import ABC
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Final

import pytest

from penstock_core.vocabulary.errors import Unknown
from penstock_core.vocabulary.ports import Journal
from penstock_testing.contracts import (
    BlobsContract,
    JournalContract,
    RegistryContract,
    checks,
    raises,
    run,
)
from penstock_testing.engine_contracts import EngineContract, Fates, ReopenedJournalContract
from penstock_testing.nats_servers import NatsServers
from tests.contract.engine_kits import BlobsKit, EngineKit, JournalKit, RegistryKit
from tests.contract.jetstream import Nodes
from tests.contract.large_realm import check_large_blocks
from tests.loops import on_a_loop

pytestmark = pytest.mark.process

FRAMES: Final = {"frames of 4 KiB": 4 << 10, "frames of 1 MiB": 1 << 20}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("nats")) as running:
        yield running


class ReopenedKit(ReopenedJournalContract):
    torn_bytes = 3 << 20

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._journal: Journal | None = None
        self._fates = Fates()

    async def open(self, epoch: int) -> Journal:
        self._fates = Fates()
        self._journal = await (await self._nodes.engine(self._fates)).journal(0, epoch)
        return self._journal

    async def tear(self, data: bytes) -> None:
        journal, connection = self._journal, self._nodes.connection
        assert journal is not None, "somebody owns the journal"
        assert connection is not None, "and is connected"
        connection.stored.clear()
        self._fates.draw(["done"], then="lost")
        async with asyncio.TaskGroup() as group:
            group.create_task(raises(Unknown, journal.append(journal.info().tail, [data])))
            await connection.stored.wait()
            await journal.close()


def keeps(kit: Callable[[Nodes], ABC], servers: NatsServers, check: str, frame_bytes: int) -> None:
    on_nodes(servers, lambda nodes: run(kit(nodes), check), frame_bytes)


@on_a_loop
async def on_nodes(
    servers: NatsServers, what: Callable[[Nodes], Awaitable[None]], frame_bytes: int
) -> None:
    async with AsyncExitStack() as stack:
        await what(Nodes(servers, stack, frame_bytes))


@pytest.mark.parametrize("frame_bytes", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("check", checks(JournalContract))
def test_journal(servers: NatsServers, frame_bytes: int, check: str) -> None:
    keeps(JournalKit, servers, check, frame_bytes=frame_bytes)


@pytest.mark.parametrize("frame_bytes", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("check", checks(ReopenedJournalContract))
def test_journal_opened_again(servers: NatsServers, frame_bytes: int, check: str) -> None:
    keeps(ReopenedKit, servers, check, frame_bytes=frame_bytes)


@pytest.mark.parametrize("check", checks(EngineContract))
def test_engine(servers: NatsServers, check: str) -> None:
    """Its blocks are small, and so are the frames: most blocks have several."""
    keeps(EngineKit, servers, check, frame_bytes=160)


@pytest.mark.parametrize("check", checks(BlobsContract))
def test_blobs(servers: NatsServers, check: str) -> None:
    keeps(BlobsKit, servers, check, frame_bytes=FRAMES["frames of 1 MiB"])


@pytest.mark.parametrize("check", checks(RegistryContract))
def test_registry(servers: NatsServers, check: str) -> None:
    keeps(RegistryKit, servers, check, frame_bytes=FRAMES["frames of 1 MiB"])


@pytest.mark.slow
def test_a_realm_has_blocks_as_large_as_they_may_be(servers: NatsServers) -> None:
    on_nodes(servers, lambda nodes: check_large_blocks(nodes.engine), FRAMES["frames of 1 MiB"])


def test_a_realm_on_one_machine_loads_nothing_of_an_engine() -> None:
    code = (
        "import sys, penstock_server.serving, penstock_server.bootstrap, penstock_server.cli; "
        "print([name for name in sys.modules if name.split('.')[0] in ('nats', 'asyncpg') "
        "or name.startswith('penstock_cluster.storage.')])"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"
