"""The embedded blobs on a disk that fails."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from penstock_core.vocabulary.errors import NameDoesNotExist, StorageFailed
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded import blobs as embedded_blobs
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import open_store
from tests.loops import on_a_loop

NAME = "segments/orders/eu/1.arrow"


async def test_a_blob_outlives_power_and_a_deleted_one_stays_away() -> None:
    for seed in range(30):
        disk = FaultyDisk(seed)
        blobs = open_store("/realm", disk).blobs
        await blobs.put(NAME, [b"kept"])
        await blobs.put("snapshots/1", [b"gone"])
        await blobs.delete("snapshots/1")
        disk.power_cut()

        blobs = open_store("/realm", disk).blobs
        assert [(blob.name, blob.size) for blob in await blobs.list()] == [(NAME, 4)]
        assert bytes(await blobs.get(NAME)) == b"kept"


async def test_a_full_disk_leaves_nothing(disk: FaultyDisk) -> None:
    blobs = open_store("/realm", disk).blobs
    disk.free_bytes = 100

    with pytest.raises(StorageFailed, match=r"1\.arrow could not be written.*No space"):
        await blobs.put(NAME, [b"x" * 1_000])

    assert disk.list("/realm/segments/orders/eu") == []
    with pytest.raises(NameDoesNotExist):
        await blobs.get(NAME)
    disk.free_bytes = None
    await blobs.put(NAME, [b"other"])
    assert bytes(await blobs.get(NAME)) == b"other"


@pytest.mark.parametrize("good_syncs", range(5))
async def test_a_blob_whose_put_fails_is_complete_or_absent(good_syncs: int) -> None:
    for seed in range(20):
        disk = FaultyDisk(seed)
        blobs = open_store("/realm", disk).blobs
        disk.fail_syncs_after(good_syncs)
        with suppress(StorageFailed):
            await blobs.put(NAME, [b"whole"])
        disk.fail_syncs(0)
        disk.power_cut()

        blobs = open_store("/realm", disk).blobs
        for blob in await blobs.list():
            assert bytes(await blobs.get(blob.name)) == b"whole"
        await blobs.put(NAME, [b"whole"])


async def test_what_a_crash_left_half_written_is_removed(disk: FaultyDisk) -> None:
    blobs = open_store("/realm", disk).blobs
    await blobs.put(NAME, [b"x"])
    disk.kill()
    disk.close(disk.open("/realm/segments/orders/eu/.put-9", create=True))

    blobs = open_store("/realm", disk).blobs

    assert [blob.name for blob in await blobs.list()] == [NAME]
    assert [entry.name for entry in disk.list("/realm/segments/orders/eu")] == ["1.arrow"]


async def test_a_blob_the_disk_cannot_read_is_named(disk: FaultyDisk) -> None:
    blobs = open_store("/store", disk).blobs
    await blobs.put("segments/a", [b"one"])
    disk.make_unreadable("/store/segments/a", 0)

    with pytest.raises(StorageFailed, match="segments/a could not be read"):
        await blobs.get("segments/a")


def test_local_paths_name_real_files(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}", RealDisk())
    asyncio.run(store.blobs.put(NAME, [b"x"]))

    path = store.blobs.local_path(NAME)

    assert path is not None
    assert Path(path).read_bytes() == b"x"
    asyncio.run(store.journal.close())


@pytest.mark.slow
def test_a_blob_is_unmapped_with_its_last_view(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}", RealDisk())
    maps = Path("/proc/self/maps")
    asyncio.run(store.blobs.put(NAME, [b"x"]))
    views = [asyncio.run(store.blobs.get(NAME)) for _ in range(3)]
    mapped = maps.read_text().count(NAME)
    views.clear()

    assert maps.read_text().count(NAME) == 0 < mapped
    asyncio.run(store.journal.close())


async def test_a_view_stays_as_it_was_while_its_file_grows(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}", RealDisk())
    await store.blobs.put(NAME, [b"kept", b"end"])
    view = await store.blobs.get(NAME)
    await store.blobs.extend(NAME, 4, [b" and more" * 1_000, b"end"])

    assert bytes(view[:4]) == b"kept"
    assert (await store.blobs.list())[0].size == 4 + 9_000 + 3
    await store.journal.close()


@pytest.mark.parametrize("good_syncs", range(3))
async def test_a_crash_while_a_blob_grows_spares_what_it_had(good_syncs: int) -> None:
    for seed in range(30):
        disk = FaultyDisk(seed)
        blobs = open_store("/realm", disk).blobs
        await blobs.put(NAME, [b"k" * 1_000, b"end"])
        disk.fail_syncs_after(good_syncs)
        with suppress(StorageFailed):
            await blobs.extend(NAME, 1_000, [b"n" * 2_000, b"end"])
            await blobs.extend(NAME, 3_000, [b"m" * 2_000, b"end"])
        disk.fail_syncs(0)
        disk.power_cut()

        blobs = open_store("/realm", disk).blobs
        stored = bytes(await blobs.get(NAME))
        assert stored[:1_000] == b"k" * 1_000
        assert good_syncs < 1 or stored[1_000:3_000] == b"n" * 2_000
        await blobs.extend(NAME, 1_000, [b"end"])
        assert bytes(await blobs.get(NAME)) == b"k" * 1_000 + b"end"


async def test_a_full_disk_puts_back_what_a_blob_ended_with(disk: FaultyDisk) -> None:
    blobs = open_store("/realm", disk).blobs
    await blobs.put(NAME, [b"kept", b"end"])
    disk.free_bytes = 100

    with pytest.raises(StorageFailed, match=r"1\.arrow could not be extended.*No space"):
        await blobs.extend(NAME, 4, [b"x" * 1_000, b"end"])

    assert bytes(await blobs.get(NAME)) == b"keptend"
    assert [blob.size for blob in await blobs.list()] == [7]


@on_a_loop
async def test_two_writers_of_one_name_get_one_blob(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}", RealDisk())
    threaded = embedded_blobs.FileBlobs(f"{tmp_path}", disk=RealDisk(), offload=asyncio.to_thread)
    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(threaded.put(NAME, [b"same"]))
    assert [blob.name for blob in await threaded.list()] == [NAME]
    await store.journal.close()


async def test_a_blob_that_cannot_be_opened_is_a_failure_of_the_storage(tmp_path: Path) -> None:
    class WithoutFiles(RealDisk):
        is_full = False

        def open(self, path: str, *, create: bool = False, private: bool = False) -> int:
            if self.is_full:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().open(path, create=create, private=private)

    disk = WithoutFiles()
    blobs = open_store(str(tmp_path), disk).blobs
    await blobs.put(NAME, [b"old"])
    disk.is_full = True

    with pytest.raises(StorageFailed, match=r"could not be extended.*Too many open files"):
        await blobs.extend(NAME, 3, [b"new"])
    with pytest.raises(StorageFailed, match=r"could not be read.*Too many open files"):
        await blobs.get(NAME)
    disk.is_full = False
    assert bytes(await blobs.get(NAME)) == b"old"
