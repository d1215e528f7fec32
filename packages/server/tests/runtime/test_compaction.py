"""Maintenance: a single file is rewritten without dead events, live traffic going on (SEM S)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.files import files, ids_in, on_disk
from packages.server.tests.runtime.living import (
    EAGER,
    SINGLE,
    SlowJournal,
    body,
    events,
    living,
    publish,
    sealed,
)
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import Damaged, IllegalState, StorageFailed
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Buffer
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.subscriptions.locations import locate
from penstock_server.runtime.upkeep.compaction import MaintenanceLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.disk import FaultyDisk
from penstock_testing.loop import SlowOffload, pass_time, simulate, simulated
from penstock_testing.stores import open_store

BY_ITSELF = replace(SINGLE, storage=Storage(events_per_spindle=0))


@simulated
async def test_maintenance_shrinks_the_file_and_keeps_ids(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SINGLE)
        for number in range(10):
            await publish(realm, ChannelId(1), body([b"%d" % number * 100] * 10))
        await sealed(realm, "orders")
        (old,) = files(tmp_path)
        before = old.stat().st_size
        await realm.subscriptions.purge(ChannelId(1), 5, 84, selector="")

        done = await realm.maintain("orders")

        (new,) = files(tmp_path)
        remaining = [*range(5), *range(85, 100)]
        assert ids_in(new) == remaining
        assert (done.bytes_before, done.bytes_after) == (before, new.stat().st_size)
        assert (done.events, done.reason) == (20, "")
        assert done.bytes_after < before / 3
        assert list(await events(realm, ChannelId(1))) == remaining
        info = await locate(
            realm.shard,
            realm.dispatch,
            ChannelId(1),
            span=realm.directory.channels[1].state.stored.spans[0],
        )
        assert info.sealed[0].path == str(new)
        await publish(realm, ChannelId(1), body([b"more"]))
        await sealed(realm, "orders")
        assert ids_in(new) == [*remaining, 100]
    await realm.release()
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        assert realm.recovered.damage == []
        assert list(await events(realm, ChannelId(1))) == [*remaining, 100]
    await realm.release()


@simulated
async def test_a_file_without_live_events_is_removed(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SINGLE)
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")
        await realm.subscriptions.purge(ChannelId(1), None, None, selector="")
        done = await realm.maintain("orders")
        assert (done.events, done.bytes_after, files(tmp_path)) == (0, 0, [])
        await publish(realm, ChannelId(1), body([b"y"]))
        await sealed(realm, "orders")
        assert await events(realm, ChannelId(1)) == {10: b"y"}
    await realm.release()


@simulated
async def test_maintenance_without_work_returns_the_reason() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await realm.create_channel("spindles", Definition(type="persistent"))
        await realm.create_channel("empty", SINGLE)
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "spindles")
        spindles, empty = await realm.maintain("spindles"), await realm.maintain("empty")
        assert "files of 50000 events" in spindles.reason
        assert spindles.bytes_before == spindles.bytes_after > 0
        assert "no event of empty is in a file yet" in empty.reason


@pytest.mark.parametrize(
    "definition",
    [
        *(
            Definition(type=channel_type)
            for channel_type in ("paged", "reliable", "simple", "off_heap")
        ),
        Definition(engine="merge", keys={"k": 1}),
    ],
)
@simulated
async def test_maintenance_without_segment_files_returns_the_reason(definition: Definition) -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await realm.create_channel("a", definition)
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        done = await realm.maintain("a")
        assert done.reason == "a has no segment files"
        assert (done.bytes_after, done.events) == (done.bytes_before, 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@simulated
async def test_maintenance_starts_by_itself_during_traffic(seed: int) -> None:
    """Publishers publish and purgers purge while files are rewritten again and again."""
    random = Random(seed)
    blobs = MemoryBlobs()
    limits = replace(
        EAGER,
        segment_bytes_max=4_000,
        maintenance=MaintenanceLimits(dead_bytes=3_000, interval_s=0.02),
    )
    slow = SlowOffload(random, longest_s=0.05)
    async with living(MemoryJournal(), blobs, sealing=limits, offload=slow) as realm:
        await realm.create_channel("orders", BY_ITSELF)
        expected: dict[int, bytes] = {}
        largest, names = 0, set()
        for number in range(150):
            datas = [b"%d/%d" % (number, i) * 30 for i in range(random.randint(1, 9))]
            span = await publish(realm, ChannelId(1), body(datas))
            expected |= dict(zip(range(*span), datas, strict=True))
            if random.random() < 0.6:
                first = random.choice(list(expected))
                await realm.subscriptions.purge(ChannelId(1), first, first + 30, selector="")
                for event_id in range(first, first + 31):
                    expected.pop(event_id, None)
            if random.random() < 0.1:
                assert await events(realm, ChannelId(1)) == expected
            await pass_time(random.random() * 0.1)
            infos = await blobs.list("segments/")
            names |= {info.name for info in infos}
            largest = max(largest, sum(info.size for info in infos))
        await pass_time(2)
        assert await events(realm, ChannelId(1)) == expected
        assert len(names) > 3, "it was rewritten several times"
        info = await realm.describe_channel("orders")
        assert info.storage.sealed_bytes < 3 * sum(map(len, expected.values())) + 6_000


AT_ONCE = replace(EAGER, maintenance=MaintenanceLimits(dead_bytes=1, interval_s=0.01))
"""Files are rewritten soon after anything in them is dead, where a channel asks for it."""


async def fill_with_dead_events(realm: RunningRealm) -> None:
    """A channel that is not rewritten by itself, in a file with nine of its ten events dead."""
    await realm.create_channel("orders", SINGLE)
    await publish(realm, ChannelId(1), body([b"x" * 1_000] * 10))
    await sealed(realm, "orders")
    await realm.subscriptions.purge(ChannelId(1), 0, 8, selector="")


@simulated
async def test_maintenance_can_be_turned_off() -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=AT_ONCE) as realm:
        await fill_with_dead_events(realm)
        await pass_time(5)
        assert (await realm.describe_channel("orders")).storage.sealed_bytes > 10_000


@simulated
async def test_maintenance_starts_on_an_idle_channel_when_it_is_turned_on() -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=AT_ONCE) as realm:
        await fill_with_dead_events(realm)
        await pass_time(5)

        await realm.edit_channel("orders", BY_ITSELF)
        await pass_time(5)

        assert (await realm.describe_channel("orders")).storage.sealed_bytes < 5_000


@simulated
async def test_maintenance_starts_on_an_idle_channel_after_a_restart() -> None:
    journal, blobs = MemoryJournal(), MemoryBlobs()
    rarely = replace(EAGER, maintenance=MaintenanceLimits(dead_bytes=1, interval_s=1_000_000))
    async with living(journal, blobs, sealing=rarely) as realm:
        await realm.create_channel("orders", BY_ITSELF)
        await publish(realm, ChannelId(1), body([b"x" * 1_000] * 10))
        await sealed(realm, "orders")
        await realm.subscriptions.purge(ChannelId(1), 0, 8, selector="")

    limits = replace(EAGER, maintenance=MaintenanceLimits(dead_bytes=1, interval_s=0.01))
    async with living(journal, blobs, sealing=limits) as realm:
        assert (await realm.describe_channel("orders")).storage.sealed_bytes > 10_000
        await pass_time(5)

        assert (await realm.describe_channel("orders")).storage.sealed_bytes < 5_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@simulated
async def test_events_published_and_purged_during_maintenance_are_correct_afterwards(
    seed: int,
) -> None:
    random = Random(seed)
    blobs = MemoryBlobs()
    slow = SlowOffload(random, longest_s=1.0)
    async with living(MemoryJournal(), blobs, offload=slow) as realm:
        await realm.create_channel("orders", SINGLE)
        for number in range(4):
            await publish(realm, ChannelId(1), body([b"%d" % number] * 10))
        await sealed(realm, "orders")
        await realm.subscriptions.purge(ChannelId(1), 0, 9, selector="")
        async with asyncio.TaskGroup() as group:
            maintaining = group.create_task(realm.maintain("orders"))
            await pass_time(0.01)
            with pytest.raises(IllegalState, match="being maintained"):
                await realm.maintain("orders")
            await realm.subscriptions.purge(ChannelId(1), 10, 14, selector="")
            await publish(realm, ChannelId(1), body([b"4"] * 10))
        assert maintaining.result().events >= 25
        await sealed(realm, "orders")
        wanted = {i: b"%d" % (i // 10) for i in range(15, 50)}
        assert await events(realm, ChannelId(1)) == wanted
        await realm.maintain("orders")
        (info,) = await blobs.list("segments/")
        table = pa.ipc.open_file(pa.py_buffer(await blobs.get(info.name))).read_all()
        assert table.column("event_id").to_pylist() == list(wanted)


class SlowCopies(MemoryBlobs):
    """A disk on which a new file takes half a second, from the moment it is told so."""

    is_slow = False

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        if self.is_slow:
            await pass_time(0.5)
        await super().put(name, chunks)


@pytest.mark.spec("S1")
@simulated
async def test_a_cancelled_maintenance_keeps_the_channels_file() -> None:
    journal, blobs = SlowJournal(), SlowCopies()
    async with living(journal, blobs) as realm:
        await realm.create_channel("orders", SINGLE)
        await realm.create_channel("others", Definition(type="persistent"))
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")
        await realm.subscriptions.purge(ChannelId(1), 0, 4, selector="")
        journal.is_slow = blobs.is_slow = True
        async with asyncio.TaskGroup() as group:
            given_up = group.create_task(realm.maintain("orders"))
            await pass_time(0.1)
            group.create_task(publish(realm, ChannelId(2), body([b"y"])))
            await pass_time(0.8)
            assert len(await blobs.list("segments/")) == 2, "the new one waits for the journal"
            given_up.cancel()
        journal.is_slow = blobs.is_slow = False

        assert list(await events(realm, ChannelId(1))) == [*range(5, 10)]
        assert (await realm.maintain("orders")).events == 5
    async with living(journal, blobs) as realm:
        assert list(await events(realm, ChannelId(1))) == [*range(5, 10)]


@pytest.mark.spec("S1")
@simulated
async def test_a_damaged_file_is_not_rewritten(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SINGLE)
        for _ in range(3):
            await publish(realm, ChannelId(1), body([b"x" * 1_000] * 10))
        await sealed(realm, "orders")
        await realm.subscriptions.purge(ChannelId(1), 0, 9, selector="")
        (file,) = files(tmp_path)
        hurt = bytearray(file.read_bytes())
        hurt[hurt.index(b"x" * 100)] ^= 1  # among the events that are dead
        file.write_bytes(hurt)
        with pytest.raises(Damaged, match="fail their checksum"):
            await realm.maintain("orders")
        assert files(tmp_path) == [file]
        assert file.read_bytes() == hurt
        assert len(await events(realm, ChannelId(1))) == 20
        await publish(realm, ChannelId(1), body([b"y"]))
        await sealed(realm, "orders")
        assert len(await events(realm, ChannelId(1))) == 21
    await realm.release()


@pytest.mark.slow
@pytest.mark.spec("S1")
def test_a_crash_at_any_sync_of_a_maintenance_loses_nothing() -> None:
    async def life(seed: int, good_syncs: int) -> bool:
        disk = FaultyDisk(seed)
        store = open_store("/realm", disk)
        async with living(store.journal, store.blobs, orderly=False) as realm:
            await realm.create_channel("orders", SINGLE)
            for number in range(4):
                await publish(realm, ChannelId(1), body([b"%d" % number] * 5))
            await sealed(realm, "orders")
            await realm.subscriptions.purge(ChannelId(1), 3, 12, selector="")
            disk.fail_syncs_after(good_syncs)
            try:
                await realm.maintain("orders")
            except StorageFailed:
                done = False
            else:
                done = True
        disk.fail_syncs(0)
        disk.power_cut()
        store = open_store("/realm", disk)
        async with living(store.journal, store.blobs) as realm:
            assert realm.recovered.damage == []
            remaining = [0, 1, 2, *range(13, 20)]
            assert await events(realm, ChannelId(1)) == {i: b"%d" % (i // 5) for i in remaining}
            (info,) = await store.blobs.list("segments/")
            data = await store.blobs.get(info.name)
            rows = pa.ipc.open_file(pa.py_buffer(data)).read_all().num_rows
            assert rows in (10, 20)
        return done

    ends = [simulate(life(seed, good), Random(seed)) for good in range(9) for seed in range(5)]
    assert set(ends) == {True, False}
