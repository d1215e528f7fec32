"""The files of the embedded pages: how large, when they go, how they are read and written."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from packages.server.tests.storage.paging import files, opened, put
from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.ports import PagesInfo, inline
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded import FilePages
from penstock_server.storage.embedded.page_files import MAPPED_MAX
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import StillClock, open_store
from tests.loops import on_a_loop

T = TypeVar("T")


async def test_pages_grow_with_the_channel_up_to_a_limit(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    for _ in range(30):
        await put(pages, [b"x" * 500])
    sizes = list(files(disk).values())
    assert sizes == [1_024, 1_024, 2_048, 4_096, 4_096, 4_096]

    (large,) = await put(pages, [b"y" * 10_001])
    assert files(disk)["0007.page"] == 10_008, "a larger body gets a page of its size"
    assert pages.info(1) == PagesInfo(7, sum(sizes) + 10_008, 30 * 500 + 10_001)
    assert bytes(pages.view(1, large)) == b"y" * 10_001


async def test_an_empty_page_is_removed_unless_it_is_the_newest(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    places = await put(pages, [b"x" * 500] * 4)
    await pages.release(1, places[:1])
    assert set(files(disk)) == {"0001.page", "0002.page"}
    await pages.release(1, places[1:])
    assert set(files(disk)) == {"0002.page"}
    await put(pages, [b"y" * 100])
    assert set(files(disk)) == {"0002.page", "0003.page"}
    await pages.release(1, [])
    assert set(files(disk)) == {"0003.page"}


async def test_a_dropped_channel_leaves_nothing_even_if_power_is_cut() -> None:
    for seed in range(30):
        disk = FaultyDisk(seed)
        pages = await opened(disk)
        await put(pages, [b"x" * 1_000] * 3)
        kept = await put(pages, [b"kept"], channel=2)
        await put(pages, [b"y"], sync=False)
        await pages.drop(1)
        await pages.drop(1)
        assert set(files(disk, "/realm/pages")) == {"2"}
        disk.power_cut()

        pages = await opened(disk, {2: kept})
        assert set(files(disk, "/realm/pages")) == {"2"}


async def test_foreign_files_among_pages_are_not_changed(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    places = await put(pages, [b"x"])
    for path in ("/realm/pages/1/notes.txt", "/realm/pages/1/x.page", "/realm/pages/README"):
        disk.close(disk.open(path, create=True))
    disk.make_directory("/realm/pages/old")
    disk.kill()

    pages = await opened(disk)
    await pages.drop(1)

    assert files(disk).keys() == {"notes.txt", "x.page"}
    assert files(disk, "/realm/pages").keys() == {"1", "README", "old"}
    assert [body.place for body in await pages.check(1, places)] == places


async def test_space_has_to_be_reserved_after_the_used_slots_are_restored(disk: FaultyDisk) -> None:
    pages = open_store("/realm", disk).pages
    with pytest.raises(AssertionError, match="marks the used slots"):
        await pages.reserve(1, [1])
    await pages.restore({})
    with pytest.raises(AssertionError, match="is called once"):
        await pages.restore({})
    with pytest.raises(AssertionError, match="no room was reserved for a body of 3 bytes"):
        pages.allocate(1, b"one")
    await pages.reserve(1, [3])
    with pytest.raises(AssertionError, match="no room was reserved for a body of 4096 bytes"):
        pages.allocate(1, bytes(4_096))


@pytest.mark.slow
async def test_any_subset_of_the_reserved_bodies_fits() -> None:
    for seed in range(200):
        random, disk = Random(seed), FaultyDisk(seed)
        pages = await opened(disk)
        for _ in range(4):
            sizes = [random.choice((0, 1, 8, 100, 900, 3_000, 9_000)) for _ in range(8)]
            await pages.reserve(1, sizes)
            disk.free_bytes = 0
            for size in sizes:
                if random.random() < 0.6:
                    pages.allocate(1, bytes(random.randint(0, size)))
            await pages.flush()
            disk.free_bytes = None


# The real disk


async def test_views_are_mapped_and_outlive_their_files(
    tmp_path: Path,
) -> None:
    pages = await opened(RealDisk(), root=f"{tmp_path}")
    bodies = [bytes([number % 256]) * 4_000 for number in range(MAPPED_MAX + 4)]
    places = await put(pages, bodies)
    views = [pages.view(1, place) for place in places]
    assert all(isinstance(view.obj, mmap.mmap) for view in views)
    again = pages.view(1, places[-1])
    await pages.release(1, places)
    (late,) = await put(pages, [b"late"])
    view = pages.view(1, late)
    await pages.drop(1)
    await pages.close()

    assert [bytes(view) for view in views] == bodies
    assert (bytes(again), bytes(view)) == (bodies[-1], b"late")
    assert list((tmp_path / "pages").iterdir()) == []


@pytest.mark.parametrize("drops", [False, True])
@on_a_loop
async def test_a_deleted_file_stays_mapped_only_for_its_views(tmp_path: Path, drops: bool) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(f"{tmp_path}/pages/")

    pages = await opened(RealDisk(), root=f"{tmp_path}")
    places = await put(pages, [b"x" * 1_000] * 3)
    view = pages.view(1, places[0])
    pages.view(1, places[1])
    assert mapped() == 2
    await (pages.drop(1) if drops else pages.release(1, places))
    assert mapped() == 1
    assert bytes(view) == b"x" * 1_000
    del view
    assert mapped() == 0
    await pages.close()


async def test_large_bodies_are_written_in_a_thread_and_small_ones_on_the_loop(
    tmp_path: Path,
) -> None:
    offloaded = []

    async def counted(call: Callable[[], T]) -> T:
        offloaded.append(call)
        return await asyncio.to_thread(call)

    pages = FilePages(f"{tmp_path}", disk=RealDisk(), offload=counted, clock=StillClock())
    await pages.restore({})
    await pages.reserve(1, [100, 1 << 20])
    before = len(offloaded)
    places = [pages.allocate(1, b"small")]
    await pages.flush()
    assert len(offloaded) == before

    places.append(pages.allocate(1, b"L" * (1 << 20)))
    await pages.flush()
    assert len(offloaded) == before + 1
    assert await pages.check(1, places) == []
    await pages.close()
    assert {path.stat().st_size for path in (tmp_path / "pages/1").iterdir()} == {1 << 20}


async def test_slow_syncs_are_done_in_a_thread(disk: FaultyDisk) -> None:
    clock, offloaded = StillClock(), []

    async def counted(call: Callable[[], T]) -> T:
        offloaded.append(call)
        return await inline(call)

    disk = FaultyDisk(on_sync=lambda: clock.advance(50_000))
    disk.make_directory("/realm")
    pages = FilePages("/realm", disk=disk, offload=counted, clock=clock)
    await pages.restore({})
    await pages.reserve(1, [3, 3])
    before = len(offloaded)
    pages.allocate(1, b"one")
    await pages.flush()
    pages.allocate(1, b"two")
    await pages.flush()

    assert len(offloaded) == before + 1, "the first showed how slow it is"


async def test_pages_have_their_full_size_on_a_system_without_reservation(tmp_path: Path) -> None:
    class Promising(RealDisk):
        def allocate(self, file: int, offset: int, size: int) -> None:
            """Some systems have no call for it."""

    pages = await opened(Promising(), root=f"{tmp_path}")
    (place,) = await put(pages, [b"one"])

    assert bytes(pages.view(1, place)) == b"one"
    assert (tmp_path / "pages/1/0001.page").stat().st_size == 1_024
    await pages.close()


async def test_a_start_cut_short_by_the_disk_is_tried_again(disk: FaultyDisk) -> None:
    for good in range(4):
        disk.fail_syncs_after(good)
        with suppress(StorageFailed):
            pages = await opened(disk)
            await put(pages, [b"x"])
        disk.fail_syncs(0)
        disk.power_cut()
    pages = await opened(disk)

    assert await pages.check(1, await put(pages, [b"one"])) == []
