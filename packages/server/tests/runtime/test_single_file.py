"""A channel in a single file, which grows and is a valid Arrow file at any time (SEM S)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.files import files, ids_in, on_disk
from packages.server.tests.runtime.living import (
    EAGER,
    SINGLE,
    body,
    events,
    living,
    publish,
    sealed,
)
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.embedded import Embedded
from penstock_testing.disk import FaultyDisk
from penstock_testing.loop import pass_time, simulate, simulated
from penstock_testing.stores import open_store


@simulated
async def test_one_file_grows_and_plain_arrow_reads_it_at_every_size(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SINGLE)
        for number in range(5):
            await publish(realm, ChannelId(1), body([b"%d" % number] * 10, price=1.0))
            await sealed(realm, "orders")

            (file,) = files(tmp_path)
            assert ids_in(file) == list(range(10 * (number + 1)))
        (file,) = files(tmp_path)
        stored = await events(realm, ChannelId(1))
        assert stored == {i: b"%d" % (i // 10) for i in range(50)}
        info = await realm.describe_channel("orders")
        assert (info.storage.sealed_files, info.storage.sealed_bytes) == (
            1,
            file.stat().st_size,
        )
    await realm.release()


@pytest.mark.parametrize("orderly", [True, False])
@simulated
async def test_the_same_file_grows_after_a_restart(tmp_path: Path, orderly: bool) -> None:
    taking_snapshots = SealingLimits(
        segment_bytes_max=1, interval_s=0.01, journal_bytes_max=2_000 if orderly else 1 << 20
    )
    for number in range(4):
        store = on_disk(tmp_path)
        async with living(
            store.journal, store.blobs, sealing=taking_snapshots, orderly=orderly
        ) as realm:
            if not number:
                await realm.create_channel("orders", SINGLE)
            assert len(await events(realm, ChannelId(1))) == 20 * number
            for _ in range(2):
                await publish(realm, ChannelId(1), body([b"x" * 100] * 10))
            await sealed(realm, "orders")
            await pass_time(0.1)  # snapshots are taken meanwhile
            assert realm.recovered.damage == []
        await realm.release()

        (file,) = files(tmp_path)
        assert ids_in(file) == list(range(20 * (number + 1)))
    assert bool(list((tmp_path / "snapshots").iterdir())) == orderly


@pytest.mark.spec("S1")
@pytest.mark.parametrize("tail", [b"", b"\0" * 100, b"torn" * 1_000])
@simulated
async def test_a_truncated_file_is_repaired_at_the_next_start(tmp_path: Path, tail: bytes) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SINGLE)
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")
    await realm.release()
    (file,) = files(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) - 200] + tail)
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        assert realm.recovered.damage == []
        assert file.read_bytes() == content
        assert len(await events(realm, ChannelId(1))) == 10
    await realm.release()


@simulated
async def test_a_small_file_is_remade_with_new_columns(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SINGLE)
        grown: list[dict[str, object]] = [{"a": 1}, {"b": "x"}, {"a": 2, "c": 0.5}]
        for properties in grown:
            await publish(realm, ChannelId(1), body([b"x"] * 10, **properties))
            await sealed(realm, "orders")

            (file,) = files(tmp_path)
            assert len(ids_in(file)) == len(await events(realm, ChannelId(1)))
    await realm.release()
    (file,) = files(tmp_path)
    table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    assert {field.name for field in table.schema.field("properties").type} == {"a", "b", "c"}
    assert ids_in(file) == list(range(30))


@simulated
async def test_a_large_file_stays_as_it_is_when_columns_come(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    limits = replace(EAGER, remade_bytes_max=0)  # any file is too large
    async with living(store.journal, store.blobs, sealing=limits) as realm:
        await realm.create_channel("orders", SINGLE)
        grown: list[dict[str, object]] = [{"a": 1}, {"b": "x"}, {"b": "y"}, {"a": 2}]
        for number, properties in enumerate(grown):
            await publish(realm, ChannelId(1), body([b"%d" % number] * 10, **properties))
            await sealed(realm, "orders")
        first, second = files(tmp_path)
        assert (ids_in(first), ids_in(second)) == (list(range(10)), list(range(10, 40)))
        assert len(await events(realm, ChannelId(1))) == 40

        done = await realm.maintain("orders")

        (file,) = files(tmp_path)
        assert ids_in(file) == list(range(40))
        assert (done.events, done.bytes_after) == (40, file.stat().st_size)
        assert await events(realm, ChannelId(1)) == {i: b"%d" % (i // 10) for i in range(40)}
    await realm.release()


@pytest.mark.slow
@pytest.mark.spec("S1")
def test_no_event_is_lost_by_a_power_cut_at_any_sync() -> None:
    async def life(seed: int, good_syncs: int) -> int:
        disk = FaultyDisk(seed)
        store = open_store("/realm", disk)
        promised = 0
        async with living(store.journal, store.blobs, orderly=False) as realm:
            await realm.create_channel("orders", SINGLE)
            disk.fail_syncs_after(good_syncs)
            try:
                for number in range(6):
                    await publish(realm, ChannelId(1), body([b"%d" % number] * 3))
                    promised += 3
                    await pass_time(0.03)
            except StorageFailed:
                pass
        disk.fail_syncs(0)
        disk.power_cut()
        store = open_store("/realm", disk)
        async with living(store.journal, store.blobs) as realm:
            assert realm.recovered.damage == []
            await publish(realm, ChannelId(1), body([b"last"]))
            await sealed(realm, "orders")
            stored = await events(realm, ChannelId(1))
            assert list(stored) == list(range(len(stored)))
            assert all(stored[i] == b"%d" % (i // 3) for i in range(promised))
            for info in await store.blobs.list("segments/"):
                data = await store.blobs.get(info.name)
                assert pa.ipc.open_file(pa.py_buffer(data)).read_all().num_rows == len(stored)
        return promised

    counts = {simulate(life(seed, good), Random(seed)) for good in range(40) for seed in range(3)}
    assert len(counts) == 7  # the power failed before, between and after all publishes


@pytest.mark.spec("C2")
@pytest.mark.parametrize("rows", [0, 4])
@simulated
async def test_files_stay_in_the_folder_of_an_earlier_version(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    definition = Definition(type="persistent", storage=Storage(events_per_spindle=rows))

    async def folders(store: Embedded) -> set[str]:
        blobs = await store.blobs.list("segments/")
        return {info.name.removeprefix("segments/").rpartition("/")[0] for info in blobs}

    disk = FaultyDisk(1)
    store = open_store("/realm", disk)
    with monkeypatch.context() as earlier:
        earlier.setattr(
            "penstock_server.runtime.store.channel_store.segment_folder",
            lambda name, number, newest: f"{name}.{number}",
        )
        async with living(store.journal, store.blobs) as realm:
            await realm.create_channel("eu/orders", definition)
            await publish(realm, ChannelId(1), body([b"before"] * 4))
            await sealed(realm, "eu/orders")
    assert await folders(store) == {"eu/orders.1"}
    disk.kill()
    store = open_store("/realm", disk)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("eu/new", definition)
        await publish(realm, ChannelId(1), body([b"now"] * 4))
        await publish(realm, ChannelId(2), body([b"now"] * 4))
        await sealed(realm, "eu/orders")
        await sealed(realm, "eu/new")
        assert await folders(store) == {"eu/orders.1", "eu~2Fnew.2"}
        assert len(await events(realm, ChannelId(1))) == 8


@pytest.mark.spec("S1")
@simulated
async def test_a_full_disk_leaves_the_file_unchanged_and_sealing_resumes() -> None:
    disk = FaultyDisk(1)
    store = open_store("/realm", disk, allocation_bytes=0)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SINGLE)
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")
        (info,) = await store.blobs.list("segments/")
        await publish(realm, ChannelId(1), body([b"y" * 2_000] * 10))
        disk.free_bytes = 100
        await pass_time(1.0)
        assert (await store.blobs.list("segments/"))[0].size == info.size
        data = await store.blobs.get(info.name)
        assert pa.ipc.open_file(pa.py_buffer(data)).read_all().num_rows == 10
        disk.free_bytes = None
        await sealed(realm, "orders")
        assert len(await events(realm, ChannelId(1))) == 20


@simulated
async def test_a_file_is_removed_with_its_channel(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs, sealing=EAGER) as realm:
        await realm.create_channel("orders", SINGLE)
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")
        await realm.delete_channel("orders")
    await realm.release()
    assert files(tmp_path) == []


@simulated
async def test_spindles_become_a_single_file_when_the_channel_is_edited(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", Definition(type="persistent"))
        for _ in range(3):
            await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")
        await realm.edit_channel("orders", SINGLE)
        for _ in range(3):
            await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")
        assert len(files(tmp_path)) == 4  # three spindles, and the file that grows
        await realm.maintain("orders")
        (file,) = files(tmp_path)
        assert ids_in(file) == list(range(60))
    await realm.release()
