"""Successive owners of one shard over one engine: none touches files of a later one, whatever it
was doing when it was frozen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.living import (
    EAGER,
    SINGLE,
    body,
    events,
    living,
    publish,
    sealed,
)
from penstock_core.ids.ids import Span
from penstock_core.messages.retention import PurgeEvents
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import Damaged, IllegalState
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import BlobInfo, Blobs, Buffer, Clock, Journal
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.file_names import FileNames, epoch_in, snapshot_age
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.memory import MemoryBlobs
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import SimLoop, pass_time, simulated

LATE = SealingLimits(interval_s=1e6)
"""Limits with which events are sealed only on request."""
PERSISTENT = Definition(type="persistent", storage=Storage(events_per_spindle=10))
ORDERS = ChannelId(1)


class Gate:
    """Blobs of an owner that is frozen when it lists those under a prefix."""

    grows = False

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.frozen_at: str | None = None
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        if prefix == self.frozen_at:
            self.reached.set()
            await self.opened.wait()
        return await self._blobs.list(prefix)


class Shard:
    """The only shard of an engine, and the epoch of its next owner."""

    def __init__(self) -> None:
        self.servers = EngineServers()
        self.epoch = 0

    async def claimed(self) -> tuple[int, Journal, Blobs]:
        self.epoch += 1
        epoch, engine = self.epoch, MemoryEngine(self.servers)
        return epoch, await engine.journal(0, epoch), await engine.blobs(0)

    @asynccontextmanager
    async def owner(
        self,
        *,
        sealing: SealingLimits = EAGER,
        orderly: bool = True,
        clock: Clock | None = None,
    ) -> AsyncIterator[RunningRealm]:
        epoch, journal, blobs = await self.claimed()
        async with living(
            journal, blobs, sealing=sealing, orderly=orderly, epoch=epoch, clock=clock
        ) as realm:
            yield realm

    async def names(self, prefix: str) -> list[str]:
        return [info.name for info in await self.servers.blobs(0).list(prefix)]


async def ten_at_a_time(realm: RunningRealm, times: int, *, begin: int = 0) -> dict[int, bytes]:
    """Publish, wait until all events are in files, and return them."""
    for number in range(begin, begin + times):
        await publish(realm, ORDERS, body([b"%d" % number] * 10))
        await sealed(realm, "orders")
    return {
        number * 10 + i: b"%d" % number for number in range(begin, begin + times) for i in range(10)
    }


@pytest.mark.parametrize("frozen_at", ["snapshots/", "segments/"])
@simulated
async def test_a_resumed_start_keeps_the_files_of_the_next_owner(frozen_at: str) -> None:
    shard = Shard()
    epoch, journal, blobs = await shard.claimed()
    gate = Gate(blobs)

    async def start() -> None:
        async with living(journal, gate, sealing=LATE, orderly=False, epoch=epoch):
            pass

    async with asyncio.TaskGroup() as group:
        gate.frozen_at = frozen_at  # before it reads anything, or before it removes strays
        group.create_task(start())
        await gate.reached.wait()
        async with shard.owner() as realm:
            await realm.create_channel("orders", PERSISTENT)
            written = await ten_at_a_time(realm, 5)
            await realm.snapshot()
            before = await shard.names("")

            gate.opened.set()
            await pass_time(1)

            assert await shard.names("") == before
    async with shard.owner() as realm:
        assert realm.recovered.damage == []
        assert await events(realm, ORDERS) == written


@simulated
async def test_an_owner_removes_strays_of_older_owners() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", PERSISTENT)
        await ten_at_a_time(realm, 1)
    segments = await shard.names("segments/")
    orphan = f"segments/orders.1/{10:020d}-{19:020d}"
    for name in (f"{orphan}.1.arrow", f"{orphan}.arrow", f"{orphan}.{'0' * 16}.1.arrow"):
        await shard.servers.blobs(0).put(name, [b"unfinished"])
    newer = f"{orphan}.7.arrow"
    await shard.servers.blobs(0).put(newer, [b"somebody else's"])

    async with shard.owner(orderly=False):
        assert await shard.names("segments/") == [*segments, newer]


@pytest.mark.spec("N3")
@simulated
async def test_an_owner_refuses_a_journal_trimmed_to_a_snapshot_that_it_cannot_read() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", PERSISTENT)
        written = await ten_at_a_time(realm, 1)
        await realm.snapshot()
        written |= await ten_at_a_time(realm, 1, begin=1)
        await realm.snapshot()
    epoch, journal, _ = await shard.claimed()

    with pytest.raises(Damaged, match=r"snapshot is of block 0.*Check that this node reaches"):
        async with living(journal, MemoryBlobs(grows=False), epoch=epoch):
            pass

    async with shard.owner() as realm:
        assert await events(realm, ORDERS) == written


@simulated
async def test_files_and_snapshots_are_named_by_epoch() -> None:
    shard = Shard()
    for number in range(2):
        async with shard.owner() as realm:
            if not number:
                await realm.create_channel("orders", PERSISTENT)
            await ten_at_a_time(realm, 1, begin=number)

    assert await shard.names("segments/") == [
        f"segments/orders.1/{0:020d}-{9:020d}.1.arrow",
        f"segments/orders.1/{10:020d}-{19:020d}.2.arrow",
    ]
    assert [name.rpartition(".")[0][-2:] for name in await shard.names("snapshots/")] == [
        ".1",
        ".2",
    ]


@simulated
async def test_a_realm_without_a_cluster_keeps_its_file_names() -> None:
    journal, blobs = await MemoryEngine().journal(0, 1), MemoryBlobs()
    async with living(journal, blobs) as realm:
        await realm.create_channel("orders", PERSISTENT)
        await ten_at_a_time(realm, 1)
        await realm.snapshot()
        tail = realm.journal_info.tail

    assert [info.name for info in await blobs.list()] == [
        f"segments/orders.1/{0:020d}-{9:020d}.arrow",
        f"snapshots/{tail:020d}.copy",
        f"snapshots/{tail:020d}.snap",
    ]


@simulated
async def test_a_realm_on_an_engine_requires_blobs_that_do_not_grow() -> None:
    journal = await MemoryEngine().journal(0, 1)

    with pytest.raises(IllegalState, match="blobs that do not grow"):
        async with living(journal, MemoryBlobs(), epoch=1):
            pass


@simulated
async def test_a_single_file_channel_has_files_that_are_never_rewritten() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", SINGLE)
        written = await ten_at_a_time(realm, 3)
        blobs = shard.servers.blobs(0)
        first = {name: bytes(await blobs.get(name)) for name in await shard.names("segments/")}
    async with shard.owner() as realm:
        written |= await ten_at_a_time(realm, 3, begin=3)

        assert len(await shard.names("segments/")) == 6
        assert {name: bytes(await blobs.get(name)) for name in first} == first
    async with shard.owner() as realm:
        assert await events(realm, ORDERS) == written


@simulated
async def test_maintenance_joins_sparse_files_into_new_ones() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", SINGLE)
        written = await ten_at_a_time(realm, 6)
        await realm.shard.act(
            lambda group: group.do(ORDERS, PurgeEvents((Span(5, 12), Span(30, 60))))
        )
        kept = {i: data for i, data in written.items() if not (5 <= i < 12 or i >= 30)}

        done = await realm.maintain("orders")

        assert (done.events, done.reason) == (len(kept), "")
        assert done.bytes_after < done.bytes_before
        assert await shard.names("segments/") == [f"segments/orders.1/{0:020d}-{29:020d}.1.arrow"]
        assert await events(realm, ORDERS) == kept
        assert (await realm.maintain("orders")).bytes_after == done.bytes_after
        kept |= await ten_at_a_time(realm, 1, begin=6)
    async with shard.owner() as realm:
        assert realm.recovered.damage == []
        assert await events(realm, ORDERS) == kept


@simulated
async def test_maintenance_of_a_file_without_events_leaves_none() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", SINGLE)
        await ten_at_a_time(realm, 2)
        await realm.shard.act(lambda group: group.do(ORDERS, PurgeEvents((Span(0, 20),))))

        await realm.maintain("orders")

        assert await shard.names("segments/") == []
        written = await ten_at_a_time(realm, 1, begin=2)
    async with shard.owner() as realm:
        assert await events(realm, ORDERS) == written


@simulated
async def test_two_snapshots_are_kept_and_the_journal_from_the_older_on() -> None:
    shard = Shard()
    tails = []
    async with shard.owner(sealing=LATE) as realm:
        await realm.create_channel("orders", PERSISTENT)
        for number in range(4):
            await publish(realm, ORDERS, body([b"%d" % number]))
            await realm.snapshot()
            tails.append(realm.journal_info.tail)

            kept = [int(name[10:30]) for name in await shard.names("snapshots/")]
            assert kept == tails[-2:]
            assert realm.journal_info.floor == (tails[-2] if number else 0)


@simulated
async def test_a_damaged_snapshot_loses_no_events_if_the_older_one_is_intact() -> None:
    shard = Shard()
    written = {}
    async with shard.owner(sealing=LATE, orderly=False) as realm:
        await realm.create_channel("orders", PERSISTENT)
        for number in range(3):
            written[number] = b"%d" % number
            await publish(realm, ORDERS, body([written[number]]))
            await realm.snapshot()
    (_, newest), blobs = await shard.names("snapshots/"), shard.servers.blobs(0)
    image = bytes(await blobs.get(newest))
    await blobs.delete(newest)
    await blobs.put(newest, [image[:-1] + bytes([image[-1] ^ 1])])

    async with shard.owner(sealing=LATE) as realm:
        assert [newest in reason for reason in realm.recovered.damage] == [True]
        assert await events(realm, ORDERS) == written


@simulated
async def test_the_realm_reports_for_how_long_blocks_are_in_no_snapshot() -> None:
    shard = Shard()
    async with shard.owner(sealing=LATE) as realm:
        await realm.create_channel("orders", PERSISTENT)
        await pass_time(40)
        assert realm.unsealed_s() == pytest.approx(40, abs=2)
        await realm.snapshot()
        await pass_time(10)
        assert realm.unsealed_s() == 0, "nothing has happened since"

        await publish(realm, ORDERS, body([b"a"]))
        await pass_time(20)

        assert realm.unsealed_s() == pytest.approx(30, abs=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "often", [replace(LATE, interval_s=0.01, snapshot_blocks_max=5),
              replace(LATE, interval_s=0.01, snapshot_interval_s=5.0)],
)  # fmt: skip
@simulated
async def test_snapshots_are_due_after_many_small_blocks_or_some_time(often: SealingLimits) -> None:
    shard = Shard()
    async with shard.owner(sealing=often, orderly=False) as realm:
        await realm.create_channel("orders", PERSISTENT)
        for number in range(12):
            await publish(realm, ORDERS, body([b"%d" % number]))
            await pass_time(1)

        snapshots = await shard.names("snapshots/")
        assert len(snapshots) == 2
        assert int(snapshots[-1][10:30]) >= realm.journal_info.tail - 6
        await pass_time(60)
        snapshots = await shard.names("snapshots/")
        assert int(snapshots[-1][10:30]) == realm.journal_info.tail
        await pass_time(600)
        assert await shard.names("snapshots/") == snapshots, "nothing has happened since"


@simulated
async def test_a_realm_without_a_cluster_takes_no_snapshot_of_a_few_small_blocks() -> None:
    often = replace(LATE, interval_s=0.01, snapshot_blocks_max=5, snapshot_interval_s=5.0)
    journal, blobs = await MemoryEngine().journal(0, 1), MemoryBlobs()
    async with living(journal, blobs, sealing=often, orderly=False) as realm:
        await realm.create_channel("orders", PERSISTENT)
        for number in range(12):
            await publish(realm, ORDERS, body([b"%d" % number]))
            await pass_time(1)

        assert list(await blobs.list("snapshots/")) == []


@simulated
async def test_a_handover_leaves_no_block_to_replay() -> None:
    shard = Shard()
    async with shard.owner(sealing=LATE) as realm:
        await realm.create_channel("orders", PERSISTENT)
        await publish(realm, ORDERS, body([b"one"]))

    async with shard.owner(sealing=LATE) as realm:
        assert (realm.recovered.blocks, realm.recovered.events) == (0, 1)


@pytest.mark.parametrize("more", [3, 60])
@simulated
async def test_a_prepared_end_takes_a_snapshot_only_of_many_blocks(more: int) -> None:
    shard = Shard()
    async with shard.owner(sealing=LATE) as realm:
        await realm.create_channel("orders", PERSISTENT)
        for number in range(100):
            await publish(realm, ORDERS, body([b"%d" % number]))
        publishing = asyncio.get_running_loop().create_task(
            publish(realm, ORDERS, body([b"meanwhile"]))
        )
        await realm.prepare_to_close()
        await publishing
        before = realm.journal_info
        for number in range(more):
            await publish(realm, ORDERS, body([b"%d" % number]))
        snapshots = await shard.names("snapshots/")

    assert before.tail - before.floor < 5, "the journal goes back to the snapshot before the newest"
    assert (await shard.names("snapshots/") == snapshots) == (more == 3)
    async with shard.owner(sealing=LATE) as realm:
        assert realm.recovered.blocks <= (more + 3 if more == 3 else 0)
        assert realm.recovered.events == 101 + more


@simulated
async def test_a_snapshot_of_a_deposed_owner_does_not_harm_its_successor() -> None:
    shard = Shard()
    epoch, journal, blobs = await shard.claimed()
    gate = Gate(blobs)
    async with living(journal, gate, sealing=LATE, orderly=False, epoch=epoch) as deposed:
        await deposed.create_channel("orders", PERSISTENT)
        written = {0: b"0"}
        await publish(deposed, ORDERS, body([b"0"]))
        await deposed.snapshot()
        written[1] = b"1"
        await publish(deposed, ORDERS, body([b"1"]))
        gate.frozen_at = "snapshots/"
        async with asyncio.TaskGroup() as group:
            group.create_task(deposed.snapshot())
            await gate.reached.wait()  # taken, the journal cut, older ones not removed yet
            async with shard.owner(sealing=LATE) as realm:
                for number in range(2, 5):
                    written[number] = b"%d" % number
                    await publish(realm, ORDERS, body([written[number]]))
                    await realm.snapshot()
                before = await shard.names("snapshots/")

                gate.opened.set()
                await pass_time(1)

                assert await shard.names("snapshots/") == before
    async with shard.owner(sealing=LATE) as realm:
        assert realm.recovered.damage == []
        assert await events(realm, ORDERS) == written


class Vanishing:
    """Blobs whose newest snapshot is replaced between being listed and being read."""

    grows = False

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.replaced = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        if name.startswith("snapshots/") and not self.replaced:
            self.replaced += 1
            image: Sequence[Buffer] = [await self._blobs.get(name)]
            block = int(name[10:30])
            await self._blobs.delete(name)
            await self._blobs.put(f"snapshots/{block:020d}.2.snap", image)
        return await self._blobs.get(name, offset, length)


@simulated
async def test_recovery_starts_again_if_its_snapshot_is_replaced() -> None:
    shard = Shard()
    async with shard.owner(sealing=LATE) as realm:
        await realm.create_channel("orders", PERSISTENT)
        await publish(realm, ORDERS, body([b"one"]))
    shard.epoch += 1

    epoch, journal, blobs = await shard.claimed()
    vanishing = Vanishing(blobs)
    async with living(journal, vanishing, sealing=LATE, epoch=epoch) as realm:
        assert vanishing.replaced == 1
        assert await events(realm, ORDERS) == {0: b"one"}


def test_the_epoch_in_a_name_is_recognized() -> None:
    spindle = f"segments/orders/{0:020d}-{9:020d}"

    assert epoch_in(f"{spindle}.12.arrow") == 12
    assert epoch_in(f"{spindle}.00000000000000ff.12.arrow") == 12
    assert epoch_in(f"snapshots/{7:020d}.12.snap") == 12
    for name in (
        f"{spindle}.arrow",
        f"{spindle}.1234567890123456.arrow",
        f"{spindle}.00000000000000ff.arrow",
        "segments/orders/events.00000012.arrow",
        "segments/orders/events.12345678.arrow",
        f"snapshots/{7:020d}.snap",
        f"snapshots/{7:020d}.copy",
    ):
        assert epoch_in(name) == 0, name


def test_the_newest_snapshot_has_the_newest_block_and_then_the_newest_epoch() -> None:
    names = [
        *FileNames(9).snapshots(8),
        *FileNames().snapshots(7),
        *FileNames(10).snapshots(8),
        *FileNames(11).snapshots(6),
    ]

    assert sorted(names, key=snapshot_age) == [
        f"snapshots/{6:020d}.11.snap",
        f"snapshots/{7:020d}.copy",
        f"snapshots/{7:020d}.snap",
        f"snapshots/{8:020d}.9.snap",
        f"snapshots/{8:020d}.10.snap",
    ]


class Ahead:
    """The clock of a machine that is set wrong."""

    def __init__(self, ahead_s: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        self._ahead_us = ahead_s * 1_000_000

    def now_us(self) -> int:
        return self._loop.now_us() + self._ahead_us

    def steady_us(self) -> int:
        return self._loop.steady_us()


@pytest.mark.parametrize("orderly", [True, False], ids=["snapshot", "journal"])
@simulated
async def test_time_does_not_go_back_if_the_next_owners_clock_is_behind(
    orderly: bool,
) -> None:
    shard = Shard()
    times_us = []
    for ahead_s in (3_600, 0, -3_600, 7_200):
        async with shard.owner(sealing=LATE, orderly=orderly, clock=Ahead(ahead_s)) as realm:
            if shard.epoch == 1:
                await realm.create_channel("orders", PERSISTENT)
            times_us.append(realm.clock.now_us())
            await publish(realm, ORDERS, body([b"x"]))
            await pass_time(10)
            await publish(realm, ORDERS, body([b"x"]))
            times_us.append(realm.clock.now_us())

    first, later, *stand, then, last = times_us
    assert later == first + 10_000_000
    assert stand == [later] * 4, "until the clock has caught up"
    assert then >= first + 3_600_000_000
    assert last == then + 10_000_000


@simulated
async def test_a_realm_without_a_cluster_uses_the_clock_unchanged() -> None:
    journal, blobs = await MemoryEngine().journal(0, 1), MemoryBlobs()
    async with living(journal, blobs, orderly=False, clock=Ahead(3_600)) as realm:
        await realm.create_channel("orders", PERSISTENT)
    async with living(journal, blobs, clock=(clock := Ahead(0))) as realm:
        assert realm.clock is clock
