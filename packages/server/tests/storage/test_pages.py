"""The embedded pages on a disk that loses power, fills up and rots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from packages.server.tests.storage.paging import ONE, files, opened, put
from penstock_core.vocabulary.errors import Damaged, StorageFailed
from penstock_core.vocabulary.ports import PagesInfo, PageSlot
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded import FilePages, PageLimits
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import StillClock, open_store

T = TypeVar("T")


# Crashes


@pytest.mark.slow
@pytest.mark.spec("S1")
async def test_a_place_whose_flush_returned_outlives_every_power_cut() -> None:
    for seed in range(60):
        random, disk = Random(seed), FaultyDisk(seed)
        held: dict[int, dict[PageSlot, bytes]] = {1: {}, 2: {}}
        for _ in range(6):
            pages = await opened(disk, {channel: list(slots) for channel, slots in held.items()})
            for _ in range(random.randrange(5)):
                channel = random.choice((1, 2))
                bodies = [random.randbytes(random.choice((3, 500, 2_500))) for _ in range(3)]
                places = await put(pages, bodies, channel=channel)
                held[channel].update(zip(places, bodies, strict=True))
                released = [place for place in held[channel] if random.random() < 0.3]
                for place in released:
                    del held[channel][place]
                await pages.release(channel, released)
            await put(pages, [b"not synced" * 90] * 4, sync=False)
            disk.power_cut()

        pages = await opened(disk, {channel: list(slots) for channel, slots in held.items()})
        for channel, slots in held.items():
            assert await pages.check(channel, list(slots)) == []
            assert [bytes(pages.view(channel, place)) for place in slots] == list(slots.values())


async def test_lost_unsynced_bytes_are_detected() -> None:
    seen = set()
    for seed in range(40):
        disk = FaultyDisk(seed)
        pages = await opened(disk)
        safe = await put(pages, [b"safe"])
        lost = await put(pages, [b"x" * 1_500], sync=False)
        disk.power_cut()

        pages = open_store("/realm", disk).pages
        damaged = await pages.check(1, [*safe, *lost])
        assert {body.place for body in damaged} <= set(lost)
        seen.add(len(damaged))
    assert seen == {0, 1}


async def test_a_later_sync_covers_what_was_flushed_without_one() -> None:
    for seed in range(20):
        for closes in (False, True):
            disk = FaultyDisk(seed)
            pages = await opened(disk)
            places = await put(pages, [b"x" * 1_500], sync=False)
            places += await put(pages, [b"y" * 900], sync=False)
            await (pages.close() if closes else pages.flush())
            disk.power_cut()

            assert await open_store("/realm", disk).pages.check(1, places) == []


async def test_room_behind_the_newest_body_is_used_again_after_a_restart(
    disk: FaultyDisk,
) -> None:
    pages = await opened(disk)
    kept = await put(pages, [b"kept", b"too"])
    (unnamed,) = await put(pages, [b"no fact names it"])
    disk.kill()

    pages = await opened(disk, {1: kept[::-1]})
    (after,) = await put(pages, [b"written over it!"])

    assert (after.page, after.offset) == (unnamed.page, unnamed.offset)
    assert [bytes(pages.view(1, place)) for place in kept] == [b"kept", b"too"]
    assert [body.place for body in await pages.check(1, [unnamed, after])] == [unnamed]


@pytest.mark.spec("C1g")
async def test_a_slot_of_an_earlier_body_frees_no_later_one_at_its_offset(disk: FaultyDisk) -> None:
    first, second = await put(await opened(disk), [b"a" * 100, b"b" * 100])
    disk.kill()
    pages = await opened(disk, {1: [first]})
    (later,) = await put(pages, [b"c" * 200])
    assert (later.page, later.offset) == (second.page, second.offset)
    await pages.release(1, [second])
    assert pages.info(1).used == 300


async def test_a_restart_removes_files_nothing_refers_to(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    places = await put(pages, [b"x" * 1_000] * 3)
    await put(pages, [b"of a channel that is gone"], channel=2)
    assert files(disk) == {"0001.page": 1_024, "0002.page": 1_024, "0003.page": 2_048}
    disk.kill()

    pages = await opened(disk, {1: places[1:2]})

    assert set(files(disk, "/realm/pages")) == {"1"}
    assert files(disk) == {"0002.page": 1_024}
    assert pages.info(1) == PagesInfo(1, 1_024, 1_000)
    assert (await put(pages, [b"y" * 1_000]))[0].page == 4, "no number is used twice"


@pytest.mark.spec("S1")
async def test_beside_a_damaged_journal_nothing_is_removed_or_written_over(
    disk: FaultyDisk,
) -> None:
    pages = await opened(disk)
    places = await put(pages, [b"x" * 1_000] * 3)
    await put(pages, [b"named by a lost fact"])
    await put(pages, [b"of another channel"], channel=2)
    before = disk.content(f"{ONE}/0001.page"), disk.content(f"{ONE}/0003.page")
    disk.kill()

    pages = await opened(disk, {1: places[2:]}, keep_rest=True)
    after = await put(pages, [b"new"])

    assert {"0001.kept", "0002.kept", "0003.page"} < set(files(disk))
    assert files(disk, "/realm/pages/2").keys() == {"0001.kept"}
    assert (disk.content(f"{ONE}/0001.kept"), disk.content(f"{ONE}/0003.page")) == before
    await put(pages, [b"y" * 4_000])
    await pages.release(1, [*places, *after])
    assert {"0001.kept", "0002.kept", "0003.kept"} < set(files(disk)), "it may have held more"
    disk.kill()

    pages = await opened(disk)
    assert set(files(disk)) == {"0001.kept", "0002.kept", "0003.kept"}
    assert (await put(pages, [b"more"]))[0].page > 3
    await pages.drop(1)
    assert set(files(disk)) == {"0001.kept", "0002.kept", "0003.kept"}


async def test_a_crash_during_a_recovery_does_no_harm() -> None:
    for seed in range(40):
        disk = FaultyDisk(seed)
        pages = await opened(disk)
        places = await put(pages, [b"x" * 900] * 4)
        disk.power_cut()
        pages = await opened(disk, {1: places[2:3]})
        disk.power_cut()
        pages = await opened(disk, {1: places[2:3]})
        disk.power_cut()

        pages = await opened(disk, {1: places[2:3]})
        more = await put(pages, [b"y" * 900] * 4)
        assert await pages.check(1, [places[2], *more]) == []


# Damage


@pytest.mark.spec("S1")
@pytest.mark.parametrize("bit", [0, 3, 7])
async def test_a_flipped_bit_is_detected_and_the_body_quarantined(
    disk: FaultyDisk, bit: int
) -> None:
    pages = await opened(disk)
    places = await put(pages, [b"one" * 9, b"two" * 9, b"six" * 9])
    disk.flip(f"{ONE}/0001.page", places[1].offset + 5, bit=bit)
    disk.kill()

    pages = open_store("/realm", disk).pages
    (damaged,) = await pages.check(1, places)
    assert await pages.check(1, places) == [damaged], "and copied once"

    assert damaged.place == places[1]
    assert damaged.where == f"{ONE}/0001.page bytes 32-59"
    copy = "/realm/quarantine/pages-1-1-32.body"
    assert damaged.reason == f"the body fails its checksum; a start keeps a copy in {copy}"
    assert [entry.name for entry in disk.list("/realm/quarantine")] == ["pages-1-1-32.body"]
    assert disk.content(copy)[:5] == b"twotw"


@pytest.mark.spec("S1")
async def test_an_unreadable_sector_damages_only_its_bodies(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    await pages.reserve(1, [12_000])
    places = [pages.allocate(1, bytes([number]) * 4_000) for number in range(3)]
    await pages.flush()
    disk.make_unreadable(f"{ONE}/0001.page", 8_192)

    damaged = await pages.check(1, places)

    assert [body.place for body in damaged] == [places[2]]
    assert "cannot read it" in damaged[0].reason


async def test_a_shortened_or_missing_page_is_damage(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    places = await put(pages, [b"a" * 500, b"b" * 500, b"c" * 500])
    disk.shorten(f"{ONE}/0001.page", 700)
    disk.unlink(f"{ONE}/0002.page")
    disk.kill()

    pages = await opened(disk, {1: places})
    damaged = await pages.check(1, places)

    assert [body.place for body in damaged] == places[1:]
    assert "ends 304 bytes before the body does" in damaged[0].reason
    assert "cannot be opened" in damaged[1].reason
    assert bytes(pages.view(1, places[0])) == b"a" * 500
    with pytest.raises(Damaged, match="ends at byte 700, before the end of a body at byte 1004"):
        pages.view(1, places[1])
    with pytest.raises(Damaged, match=r"0002\.page does not exist"):
        pages.view(1, places[2])
    more = await put(pages, [b"d" * 500])
    assert await pages.check(1, [places[0], *more]) == []


async def test_a_page_deleted_while_in_use_is_damage(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    (place,) = await put(pages, [b"one"])
    disk.unlink(f"{ONE}/0001.page")

    with pytest.raises(Damaged, match=r"0001\.page cannot be mapped: .*No such file"):
        pages.view(1, place)


async def test_a_full_quarantine_does_not_hide_the_damage(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    places = await put(pages, [b"one"])
    disk.flip(f"{ONE}/0001.page", 0)
    disk.free_bytes = 0

    (damaged,) = await pages.check(1, places)

    assert "fails its checksum; it could not be copied to quarantine: " in damaged.reason


# A disk that refuses


async def test_a_full_disk_is_noticed_when_space_is_reserved(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    places = await put(pages, [b"x" * 1_000])
    info, disk.free_bytes = pages.info(1), 2_500

    for _ in range(3):
        with pytest.raises(StorageFailed, match=r"pages/1: no room for 3072 bytes: .*No space"):
            await pages.reserve(1, [1_000, 1_500])
        assert (pages.info(1), files(disk)) == (info, {"0001.page": 1_024})
        assert disk.free_bytes == 2_500
    with pytest.raises(StorageFailed, match="no room for 4096"):
        await pages.reserve(2, [4_090])
    assert pages.info(2) == PagesInfo(0, 0, 0)

    await pages.reserve(1, [20, 1_000])
    disk.free_bytes = 0
    places += [pages.allocate(1, b"y" * size) for size in (20, 1_000)]
    await pages.flush()
    assert await pages.check(1, places) == [], "promised room is there on a full disk"


async def test_a_directory_that_cannot_be_synced_promises_nothing(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    await put(pages, [b"x"])
    disk.fail_syncs()

    with pytest.raises(StorageFailed, match="Input/output error"):
        await pages.reserve(1, [2_000])

    assert set(files(disk)) == {"0001.page"}
    assert await pages.check(1, await put(pages, [b"y" * 2_000])) == []


async def test_a_failed_write_uses_no_space_and_the_next_one_succeeds(tmp_path: Path) -> None:
    class Refusing(RealDisk):
        refuses = False

        def pwrite(self, file: int, chunks: object, offset: int) -> None:
            if self.refuses:
                raise OSError(5, "Input/output error")
            super().pwrite(file, chunks, offset)  # type: ignore[arg-type]  # as it came

    disk = Refusing()
    pages = await opened(disk, root=f"{tmp_path}")
    places = await put(pages, [b"one"])
    disk.refuses = True
    with pytest.raises(StorageFailed, match=r"0001\.page could not be written"):
        await put(pages, [b"two"])
    disk.refuses = False

    assert pages.info(1).used == 3
    places += await put(pages, [b"three"])
    assert [bytes(pages.view(1, place)) for place in places] == [b"one", b"three"]
    await pages.close()


async def test_after_a_failed_sync_only_reads_are_possible(disk: FaultyDisk) -> None:
    pages = await opened(disk)
    (place,) = await put(pages, [b"one"])
    await pages.reserve(1, [3, 3])
    pages.allocate(1, b"two")
    disk.fail_syncs()
    with pytest.raises(StorageFailed, match=r"0001\.page could not be synced"):
        await pages.flush()

    refusals: list[Callable[[], object]] = [
        lambda: asyncio.run(pages.reserve(1, [1])),
        lambda: asyncio.run(pages.flush()),
        lambda: asyncio.run(pages.drop(1)),
        lambda: pages.allocate(1, b"x"),
    ]
    for refused in refusals:
        with pytest.raises(
            StorageFailed, match=r"accept no more bodies after a failure: .*could not be synced"
        ):
            await asyncio.to_thread(refused)
    assert bytes(pages.view(1, place)) == b"one"
    assert pages.info(1).used == 3
    await pages.close()


async def test_a_page_that_cannot_be_removed_is_tried_again(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = await opened(disk)
    places = await put(pages, [b"x" * 1_000] * 3)

    def refuse(path: str) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "unlink", refuse)
        with pytest.raises(StorageFailed, match=r"0001\.page could not be removed: .*Read-only"):
            await pages.release(1, places[:2])
    await pages.release(1, [])

    assert files(disk) == {"0003.page": 2_048}
    assert await pages.check(1, places[2:]) == []


async def test_a_flush_cancelled_midway_leaves_the_pages_to_a_restart(tmp_path: Path) -> None:
    waiting = asyncio.Event()

    async def never(call: Callable[[], T]) -> T:
        if not waiting.is_set() and pages.info(1).used:
            waiting.set()
            await asyncio.Event().wait()
        return call()

    limits = PageLimits(inline_bytes_max=0)
    pages = FilePages(
        f"{tmp_path}", disk=RealDisk(), offload=never, clock=StillClock(), limits=limits
    )
    await pages.restore({})
    await pages.reserve(1, [3])
    pages.allocate(1, b"one")
    async with asyncio.TaskGroup() as group:
        flushing = group.create_task(pages.flush())
        await waiting.wait()
        flushing.cancel()

    with pytest.raises(StorageFailed, match="cancelled midway"):
        await pages.reserve(1, [3])
    await pages.close()
