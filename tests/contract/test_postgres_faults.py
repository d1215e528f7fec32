"""Faults of PostgreSQL's servers: no acknowledged block is lost, and damage is reported."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack

import asyncpg
import pytest

from penstock_cluster.storage.postgres.engine import PostgresEngine
from penstock_cluster.storage.postgres.servers import Servers
from penstock_core.vocabulary.errors import Damaged, Unavailable, Unknown
from penstock_core.vocabulary.ports import Block, Change, DamagedBlock, Journal
from penstock_testing.contracts import blocks_of, raises
from tests.contract.postgres_servers import QUORUM, PostgresServers, missing
from tests.loops import on_a_loop

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(missing()), reason=missing() or "PostgreSQL is there"),
]


KILLS = 3


@pytest.fixture
def servers() -> Iterator[PostgresServers]:
    with PostgresServers() as running:
        yield running


async def opened(stack: AsyncExitStack, servers: PostgresServers) -> PostgresEngine:
    def connect(urls: Sequence[str]) -> Servers:
        return Servers(urls, answer_s=2)

    engine = PostgresEngine(servers.urls, connect=connect)
    stack.push_async_callback(engine.close)
    return engine


@on_a_loop
async def test_a_standby_takes_over_and_nothing_is_lost(servers: PostgresServers) -> None:
    async with AsyncExitStack() as stack:
        engine = await opened(stack, servers)
        journal, registry = await engine.journal(0, 1), await engine.registry()
        blobs = await engine.blobs(0)
        await registry.cas("shard/0", 0, b"n1")
        await blobs.put("segments/1.arrow", [b"x" * 10_000_000])
        for number in range(50):
            await journal.append(number, [b"%d" % number])
        servers.signal(0, signal.SIGSTOP)
        async with asyncio.TaskGroup() as group:
            under_way = group.create_task(journal.append(50, [b"50"]))
            await asyncio.to_thread(servers.promote, 1)

        assert under_way.result() == 51
        assert [data for _, data in await blocks_of(journal, 1)] == [
            b"%d" % number for number in range(51)
        ]
        health = await engine.health()
        while not health.has_quorum:  # the other standby finds the new primary
            health = await engine.health()
        assert (health.has_quorum, health.leader) == (True, servers.address(1))
        record = await registry.get("shard/0")
        assert record is not None
        assert record.value == b"n1"
        assert await blobs.get("segments/1.arrow", 9_000_000, 3) == memoryview(b"xxx")


@on_a_loop
async def test_a_primary_whose_first_process_is_killed_is_waited_for(
    servers: PostgresServers,
) -> None:
    """Its other processes go on for a moment, and leave the driver in the middle of a call."""
    async with AsyncExitStack() as stack:
        engine = await opened(stack, servers)
        journal, registry = await engine.journal(0, 1), await engine.registry()
        changes = registry.watch("shard/")
        for kill in range(KILLS):
            async with asyncio.TaskGroup() as group:
                appends = group.create_task(append_all(journal, 20 * kill, 20 * kill + 20))
                change = group.create_task(key_changed(changes))
                await asyncio.to_thread(servers.kill_first_process, 0)
                await asyncio.to_thread(servers.start, 0, synchronous_standby_names=QUORUM)
                await registry.cas("shard/0", kill, b"n1")

            assert appends.done()
            assert change.result() == "shard/0"
        assert [data for _, data in await blocks_of(journal, 1)] == [
            b"%d" % number for number in range(20 * KILLS)
        ]


async def key_changed(changes: AsyncIterator[Change]) -> str:
    key, _ = await anext(changes)
    return key


async def append_all(journal: Journal, first: int, end: int) -> None:
    for number in range(first, end):
        assert await journal.append(number, [b"%d" % number]) == number + 1


@on_a_loop
async def test_without_a_standby_nothing_is_acknowledged(servers: PostgresServers) -> None:
    async with AsyncExitStack() as stack:
        engine = await opened(stack, servers)
        journal = await engine.journal(0, 1)
        await journal.append(0, [b"one"])
        for number in (1, 2):
            await asyncio.to_thread(servers.kill, number)
        async with asyncio.TaskGroup() as group:
            unknown = raises(Unknown, journal.append(1, [b"two"]))
            under_way = group.create_task(unknown)
            while journal.info().waiting_us < 1_000_000:
                await asyncio.wait([under_way], timeout=0.1)
            assert not under_way.done()
            with pytest.raises(Unavailable, match="0 synchronous standbys"):
                await (await opened(stack, servers)).journal(0, 2)
            await journal.close()
        assert (journal.info().ambiguous or {})["unknown"] == 1
        await asyncio.to_thread(servers.start, 1, synchronous_standby_names="")
        await asyncio.to_thread(servers.wait_for_standbys, 1)

        again = await (await opened(stack, servers)).journal(0, 2)
        stored = await blocks_of(again, 1)
        assert stored in ([(1, b"one")], [(1, b"one"), (2, b"two")])
        assert await again.append(len(stored), [b"more"]) == len(stored) + 1


@on_a_loop
async def test_damage_is_told_in_its_place(servers: PostgresServers) -> None:
    async with AsyncExitStack() as stack:
        engine = await opened(stack, servers)
        journal, blobs = await engine.journal(0, 1), await engine.blobs(0)
        for number in range(4):
            await journal.append(number, [b"%d" % number])
        await blobs.put("segments/1.arrow", [b"bytes"])
        connection = await asyncpg.connect(servers.urls[0])
        stack.callback(connection.terminate)
        await connection.execute("UPDATE penstock_block SET body = 'other' WHERE seq = 2")
        await connection.execute("DELETE FROM penstock_block WHERE seq = 3")
        await connection.execute("UPDATE penstock_blob_part SET body = 'bites'")

        first, second, third, fourth = await journal.read(1, 9)
        assert isinstance(first, Block)
        assert isinstance(second, DamagedBlock)
        assert "checksum" in second.reason
        assert isinstance(third, DamagedBlock)
        assert "missing" in third.reason
        assert isinstance(fourth, Block)
        with pytest.raises(Damaged, match="checksum"):
            await blobs.get("segments/1.arrow")


@on_a_loop
async def test_a_journal_that_is_gone_or_has_lost_blocks_is_refused(
    servers: PostgresServers,
) -> None:
    async with AsyncExitStack() as stack:
        engine = await opened(stack, servers)
        await engine.check(0)
        journal = await engine.journal(0, 1, begins=7)
        for number in range(7, 11):
            await journal.append(number, [b"%d" % number])
        await journal.trim(8)
        await engine.check(0)
        await journal.close()
        connection = await asyncpg.connect(servers.urls[0])
        stack.callback(connection.terminate)

        await connection.execute("DELETE FROM penstock_block WHERE seq IN (9, 10)")
        for opening in (engine.check(0), engine.journal(0, 2)):
            with pytest.raises(Damaged, match=r"penstock/0 has lost 2 blocks: .*from a backup"):
                await opening

        await connection.execute("DELETE FROM penstock_head")
        for opening in (engine.check(0), engine.journal(0, 2)):
            with pytest.raises(Unavailable, match=r"penstock/0 is missing .*from a backup"):
                await opening
