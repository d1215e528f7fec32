"""Large blocks: their bodies are stored in a blob."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.living import EAGER, body, events, living, publish, sealed
from penstock_core.messages.segments import BodiesApart
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Block
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.runtime.store.records import decode_block
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.memory import MemoryBlobs
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import pass_time, simulated

ORDERS, OTHERS = ChannelId(1), ChannelId(2)
PERSISTENT = Definition(type="persistent", storage=Storage(events_per_spindle=10))
LATE = SealingLimits(interval_s=1e6)
"""Limits with which events are sealed only on request."""
SMALL = Limits(block_bytes_max=10_000)


class Shard:
    """One shard on an engine, and the owners it has had."""

    def __init__(self) -> None:
        self.servers = EngineServers()
        self.epoch = 0

    @asynccontextmanager
    async def owner(
        self, *, sealing: SealingLimits = LATE, limits: Limits = SMALL
    ) -> AsyncIterator[RunningRealm]:
        """An owner that is killed at the end."""
        self.epoch += 1
        engine = MemoryEngine(self.servers)
        journal, blobs = await engine.journal(0, self.epoch), await engine.blobs(0)
        async with living(
            journal, blobs, sealing=sealing, orderly=False, epoch=self.epoch, limits=limits
        ) as realm:
            if self.epoch == 1:
                await realm.create_channel("orders", PERSISTENT)
                await realm.create_channel("others", PERSISTENT)
            yield realm

    async def apart(self) -> list[str]:
        return [info.name for info in await self.servers.blobs(0).list("blocks/")]

    async def newest_block(self) -> Block:
        journal = await MemoryEngine(self.servers).journal(0, self.epoch)
        (block,) = await journal.read(journal.info().tail, 1)
        assert isinstance(block, Block)
        return block


def large(seed: int) -> list[bytes]:
    """Ten events, 20,000 bytes."""
    random = Random(seed)
    return [random.randbytes(2_000) for _ in range(10)]


@simulated
async def test_the_bodies_of_a_large_block_are_read_from_their_blob_by_the_next_owner() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await publish(realm, ORDERS, body([b"small"]))
        assert await shard.apart() == []
        many = body(large(1)[:5]), body(large(1)[5:])  # two bodies of one block
        await publish(realm, ORDERS, *many)
        tail = realm.journal_info.tail
        block = await shard.newest_block()

        (name,) = await shard.apart()
        assert name == f"blocks/{tail:020d}.1.bodies"
        assert len(block.data) < 1_000, "the log has the facts"
        assert isinstance(decode_block(block.data)[0].records[0].fact, BodiesApart)
        expected = dict(enumerate([b"small", *large(1)]))
        assert await events(realm, ORDERS) == expected
    async with shard.owner() as realm:
        assert realm.recovered.damage == []
        assert await events(realm, ORDERS) == expected


@simulated
async def test_a_block_of_several_channels_has_all_its_bodies_in_one_blob() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        async with asyncio.TaskGroup() as group:  # one group of the writer
            group.create_task(publish(realm, ORDERS, body(large(1))))
            group.create_task(publish(realm, OTHERS, body([b"odd"])))
        assert len(await shard.apart()) == 1
    async with shard.owner() as realm:
        assert await events(realm, ORDERS) == dict(enumerate(large(1)))
        assert await events(realm, OTHERS) == {0: b"odd"}


@simulated
async def test_a_commit_of_stages_that_is_larger_than_a_block_goes_into_a_blob() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        for n in range(5):
            realm.stages.put(f"query/0/{n}", ORDERS, [body(large(n))])
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        stages = [f"query/0/{n}" for n in range(5)]
        realm.commit(
            ORDERS, stages, "query", sequence=0, reply=lambda span, _: done.set_result(span)
        )
        await done

        assert len(await shard.apart()) == 1
    async with shard.owner() as realm:
        expected = dict(enumerate(data for n in range(5) for data in large(n)))
        assert await events(realm, ORDERS) == expected


@simulated
async def test_bodies_are_removed_once_the_journal_is_cut_behind_their_block() -> None:
    shard = Shard()
    sealing = replace(EAGER, segment_bytes_max=1_000)
    async with shard.owner(sealing=sealing) as realm:
        await publish(realm, ORDERS, body(large(1)))
        await sealed(realm, "orders")
        (first,) = await shard.apart()
        await realm.snapshot()
        assert await shard.apart() == [first], "the snapshot before may be needed still"
        await publish(realm, ORDERS, body(large(2)))
        await sealed(realm, "orders")
        await realm.snapshot()
        (second,) = await shard.apart()
        assert second != first

        assert await events(realm, ORDERS) == dict(enumerate(large(1) + large(2)))
    async with shard.owner(sealing=sealing) as realm:
        assert realm.recovered.damage == []
        assert await events(realm, ORDERS) == dict(enumerate(large(1) + large(2)))


@simulated
async def test_bodies_without_a_block_are_removed_and_those_of_later_owners_stay() -> None:
    shard = Shard()
    blobs = shard.servers.blobs(0)
    async with shard.owner():
        pass
    mine, newer = f"blocks/{7:020d}.1.bodies", f"blocks/{7:020d}.9.bodies"
    for name in (mine, newer):
        await blobs.put(name, [b"never appended"])

    async with shard.owner() as realm:
        for n in range(8):
            await publish(realm, ORDERS, body([b"%d" % n]))
        for _ in range(2):
            await publish(realm, ORDERS, body([b"more"]))
            await realm.snapshot()

        assert await shard.apart() == [newer]


@simulated
async def test_damaged_bodies_are_reported_and_the_rest_is_served() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await publish(realm, ORDERS, body([b"before"]))
        await publish(realm, ORDERS, body(large(1)))
        await publish(realm, OTHERS, body([b"other"]))
    (name,) = await shard.apart()
    blobs = shard.servers.blobs(0)
    data = bytearray(await blobs.get(name))
    data[5_000] ^= 1
    await blobs.delete(name)
    await blobs.put(name, [bytes(data)])

    async with shard.owner() as realm:
        assert [name in reason for reason in realm.recovered.damage] == [True]
        assert await events(realm, ORDERS) == {0: b"before"}
        assert await events(realm, OTHERS) == {0: b"other"}


@simulated
async def test_a_realm_with_missing_bodies_does_not_start() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await publish(realm, ORDERS, body(large(1)))
    (name,) = await shard.apart()
    await shard.servers.blobs(0).delete(name)

    with pytest.raises(NameDoesNotExist, match=name):
        async with shard.owner():
            pass


@simulated
async def test_a_realm_that_is_alone_keeps_large_blocks_in_its_journal() -> None:
    journal, blobs = await MemoryEngine().journal(0, 1), MemoryBlobs()
    async with living(journal, blobs, sealing=LATE, limits=SMALL) as realm:
        await realm.create_channel("orders", PERSISTENT)
        await publish(realm, ORDERS, body(large(1)))
        await pass_time(1)

        assert [info.name for info in await blobs.list()] == []
        assert realm.journal_info.size > 20_000
