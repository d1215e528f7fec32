"""The embedded journal at work: files, floors, full and failing disks."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from penstock_core.vocabulary.errors import Deposed, StorageFailed, Trimmed
from penstock_core.vocabulary.ports import Block
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded import FileJournal, JournalLimits, open_embedded
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import StillClock, open_store

T = TypeVar("T")


def open_journal(disk: FaultyDisk, *, file_bytes_max: int = 1 << 20) -> FileJournal:
    return open_store("/realm", disk, file_bytes_max=file_bytes_max).journal


async def append_all(journal: FileJournal, *blocks: bytes) -> None:
    for block in blocks:
        await journal.append(journal.info().tail, [block])


async def contents(journal: FileJournal) -> list[bytes]:
    blocks = await journal.read(journal.info().floor + 1, 10**9)
    assert all(isinstance(block, Block) for block in blocks), blocks
    return [bytes(block.data) for block in blocks if isinstance(block, Block)]


async def test_blocks_outlive_power(disk: FaultyDisk) -> None:
    journal = open_journal(disk)
    await append_all(journal, b"one", b"two")
    disk.power_cut()

    assert await contents(open_journal(disk)) == [b"one", b"two"]


async def test_sync_makes_unsynced_blocks_outlive_power(disk: FaultyDisk) -> None:
    journal = open_journal(disk)
    await journal.append(0, [b"one"], sync=False)
    await journal.append(1, [b"two"], sync=False)
    before = disk.syncs
    await journal.sync()
    await journal.sync()
    disk.power_cut()

    assert disk.syncs == before + 1, "one sync for both, none for nothing"
    assert await contents(open_journal(disk)) == [b"one", b"two"]


async def test_an_unsynced_append_is_no_sync(disk: FaultyDisk) -> None:
    journal = open_journal(disk)
    before = disk.syncs
    await journal.append(0, [b"one"], sync=False)

    assert disk.syncs == before


async def test_repeating_an_unsynced_append_with_sync_syncs_it(disk: FaultyDisk) -> None:
    journal = open_journal(disk)
    await journal.append(0, [b"one"], sync=False)
    assert await journal.append(0, [b"one"], sync=True) == 1
    disk.power_cut()

    assert await contents(open_journal(disk)) == [b"one"]


async def test_files_roll_and_read_as_one(disk: FaultyDisk) -> None:
    journal = open_journal(disk, file_bytes_max=300)
    blocks = [b"block %d" % number for number in range(30)]
    await append_all(journal, *blocks)

    assert len(disk.list("/realm/journal")) > 5
    assert await contents(journal) == blocks
    await journal.close()
    assert await contents(open_journal(disk, file_bytes_max=300)) == blocks


async def test_a_block_larger_than_a_file_has_one_for_itself(disk: FaultyDisk) -> None:
    journal = open_journal(disk, file_bytes_max=300)
    await append_all(journal, b"small", b"x" * 5_000, b"small")

    assert await contents(journal) == [b"small", b"x" * 5_000, b"small"]
    assert len(disk.list("/realm/journal")) == 3


async def test_a_floor_inside_a_file_outlives_a_restart(disk: FaultyDisk) -> None:
    journal = open_journal(disk)
    await append_all(journal, b"one", b"two", b"three")
    await journal.trim(2)
    disk.power_cut()

    again = open_journal(disk)
    assert (again.info().floor, again.info().tail) == (2, 3)
    assert await contents(again) == [b"three"]
    with pytest.raises(Trimmed, match="starts after 2"):
        await again.read(2, 1)


async def test_trim_removes_whole_files_and_never_the_newest(disk: FaultyDisk) -> None:
    journal = open_journal(disk, file_bytes_max=300)
    await append_all(journal, *[b"block %d" % number for number in range(30)])
    await journal.trim(30)
    assert len(disk.list("/realm/journal")) == 10, "while others wait, nothing is deleted"
    await journal.free()

    assert len(disk.list("/realm/journal")) == 1
    await journal.close()
    again = open_journal(disk, file_bytes_max=300)
    assert (again.info().floor, again.info().tail) == (30, 30)
    assert await again.append(30, [b"next"]) == 31


async def test_a_trim_cut_short_is_finished_at_the_next_start() -> None:
    for seed in range(20):
        disk = FaultyDisk(seed)
        journal = open_journal(disk, file_bytes_max=300)
        blocks = [b"block %d" % number for number in range(20)]
        await append_all(journal, *blocks)
        await journal.trim(15)
        if seed % 2:
            await journal.free()
        disk.power_cut()

        again = open_journal(disk, file_bytes_max=300)
        assert again.info().floor == 15
        assert await contents(again) == blocks[15:]
        assert not again.damage


async def test_a_reader_may_finish_in_a_file_that_is_trimmed_away(tmp_path: Path) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def slow(call: Callable[[], T]) -> T:
        if not reading.is_set():
            reading.set()
            await go_on.wait()
        return call()

    root = f"{tmp_path}/realm"
    journal = open_on(root, limits=JournalLimits(file_bytes_max=300_000), offload=slow)
    reading.set()
    await append_all(journal, b"x" * 200_000, b"y" * 200_000)
    reading.clear()

    async def trim() -> None:
        await reading.wait()
        await journal.trim(1)
        await journal.free()
        go_on.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(trim())
        (block,) = await journal.read(1, 1)

    assert isinstance(block, Block)
    assert block.data == b"x" * 200_000
    assert os.listdir(f"{root}/journal") == ["00000000000000000002.log"]


async def test_a_trimmed_file_that_cannot_be_deleted_is_named(tmp_path: Path) -> None:
    journal = open_on(f"{tmp_path}/realm", limits=JournalLimits(file_bytes_max=300))
    await append_all(journal, *[b"block %d" % number for number in range(30)])
    (first, *_) = sorted((tmp_path / "realm/journal").iterdir())
    first.unlink()
    first.mkdir()
    await journal.trim(30)
    with pytest.raises(StorageFailed, match=f"{first} could not be removed"):
        await journal.free()

    assert len(list(first.parent.iterdir())) == 2, "the others are deleted"
    await journal.append(30, [b"next"])
    await journal.close()


async def test_a_deletion_that_begins_after_the_end_leaves_the_files_to_the_next_start(
    tmp_path: Path,
) -> None:
    is_closed = asyncio.Event()

    async def late(call: Callable[[], T]) -> T:
        if is_waiting:
            await is_closed.wait()
        return call()

    is_waiting = False
    limits = JournalLimits(file_bytes_max=300)
    journal = open_on(f"{tmp_path}/realm", limits=limits, offload=late)
    await append_all(journal, *[b"block %d" % number for number in range(30)])
    await journal.trim(30)
    is_waiting = True
    async with asyncio.TaskGroup() as group:
        group.create_task(journal.free())
        await asyncio.sleep(0)
        await journal.close()
        is_closed.set()

    assert len(os.listdir(f"{tmp_path}/realm/journal")) == 10
    await open_on(f"{tmp_path}/realm", limits=limits).close()
    assert len(os.listdir(f"{tmp_path}/realm/journal")) == 1


@pytest.mark.parametrize("room", [0, 1, 50, 56, 57, 500, 5_000, 9_000])
async def test_a_block_refused_by_a_full_disk_leaves_no_trace_and_the_journal_continues(
    disk: FaultyDisk, room: int
) -> None:
    journal = open_journal(disk)
    await append_all(journal, b"one")
    size = journal.info().size
    disk.free_bytes = room

    with pytest.raises(StorageFailed, match=r"00000000000000000001\.log: block 2.*No space"):
        await journal.append(1, [b"x" * 50_000])

    assert journal.info().tail == 1
    assert journal.info().size == size
    assert disk.content("/realm/journal/00000000000000000001.log")[size:].strip(b"\0") == b""
    disk.free_bytes = None
    assert await journal.append(1, [b"two"]) == 2
    disk.power_cut()
    assert await contents(open_journal(disk)) == [b"one", b"two"]


async def test_reserved_space_is_available_when_the_disk_is_full(disk: FaultyDisk) -> None:
    journal = open_journal(disk)
    disk.free_bytes = 60_000
    await journal.reserve(50_000)
    disk.free_bytes = 0

    assert await journal.append(0, [b"x" * 50_000]) == 1
    with pytest.raises(StorageFailed, match="no room"):
        await journal.reserve(50_000)
    disk.free_bytes = None
    assert await journal.append(1, [b"two"]) == 2


async def test_the_journal_continues_after_a_new_file_had_no_space(disk: FaultyDisk) -> None:
    journal = open_journal(disk, file_bytes_max=300)
    await append_all(journal, b"x" * 200)
    disk.free_bytes = 0
    for _ in range(2):
        with pytest.raises(StorageFailed, match="no room for block 2"):
            await journal.append(1, [b"y" * 200])

    disk.free_bytes = None
    await append_all(journal, b"z" * 200)
    assert await contents(journal) == [b"x" * 200, b"z" * 200]


@pytest.mark.spec("S1")
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("is_another_begun", [False, True])
async def test_a_file_whose_creation_failed_does_not_reappear_after_a_power_cut(
    seed: int, *, is_another_begun: bool
) -> None:
    """The next start would look for later blocks in this file, which are in the older one."""
    disk = FaultyDisk(seed)
    journal = open_journal(disk, file_bytes_max=300)
    await append_all(journal, b"x" * 100)
    disk.fail_writes()
    with pytest.raises(StorageFailed, match="no room for block 2"):
        await journal.append(1, [b"y" * 200])
    await append_all(journal, b"z")
    if is_another_begun:
        disk.halt_in_sync(2)
        with pytest.raises(StorageFailed):
            await journal.append(2, [b"y" * 200])
    disk.power_cut()

    journal = open_journal(disk, file_bytes_max=300)

    assert not journal.damage
    assert await contents(journal) == [b"x" * 100, b"z"]


@pytest.mark.spec("S1")
@pytest.mark.parametrize("call", ["unlink", "sync_directory"])
async def test_a_file_that_can_neither_be_created_nor_removed_ends_all_changes_until_the_next_start(
    disk: FaultyDisk, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(disk, file_bytes_max=300)
    await append_all(journal, b"x" * 100)

    def refuse(path: str) -> None:
        raise OSError(errno.EIO, "the disk is gone", path)

    with monkeypatch.context() as broken:
        broken.setattr(disk, call, refuse)
        disk.fail_writes()
        with pytest.raises(StorageFailed, match="no room for block 2"):
            await journal.append(1, [b"y" * 200])

    with pytest.raises(StorageFailed, match=r"00000000000000000002\.log.*might reappear"):
        await journal.append(1, [b"z"])
    await journal.close()
    journal = open_journal(disk, file_bytes_max=300)
    await append_all(journal, b"z")
    assert await contents(journal) == [b"x" * 100, b"z"]


async def test_a_failed_sync_ends_all_changes_until_the_next_start(disk: FaultyDisk) -> None:
    journal = open_journal(disk)
    await append_all(journal, b"one")
    disk.fail_syncs()

    with pytest.raises(StorageFailed, match="could not be synced"):
        await journal.append(1, [b"two"])
    syncs = disk.syncs
    with pytest.raises(StorageFailed, match="accepts no more"):
        await journal.append(1, [b"two"])
    with pytest.raises(StorageFailed, match="accepts no more"):
        await journal.sync()
    with pytest.raises(StorageFailed, match="accepts no more"):
        await journal.trim(1)

    assert disk.syncs == syncs, "a failed sync is never asked for again"
    await journal.close()
    disk.power_cut()
    assert (await contents(open_journal(disk)))[:1] == [b"one"]


async def test_a_write_that_cannot_be_undone_ends_all_changes(disk: FaultyDisk) -> None:
    journal = open_journal(disk)
    await append_all(journal, b"one")
    disk.free_bytes = 10
    disk.fail_syncs()

    with pytest.raises(StorageFailed):
        await journal.append(1, [b"x" * 50_000])
    with pytest.raises(StorageFailed, match="could not be undone"):
        await journal.append(1, [b"two"])


@pytest.mark.slow
async def test_a_cancelled_append_leaves_the_journal_closed_to_more(tmp_path: Path) -> None:
    root = f"{tmp_path}/realm"
    started = asyncio.Event()

    async def never(call: Callable[[], T]) -> T:
        started.set()
        await asyncio.Event().wait()
        return call()

    journal = open_on(root, offload=never)
    await append_all(journal, b"one")
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(journal.append(1, [b"x" * 300_000]))
        await started.wait()
        writing.cancel()

    with pytest.raises(StorageFailed, match="cancelled"):
        await journal.append(1, [b"two"])
    await journal.close()


@pytest.mark.slow
async def test_two_appends_at_the_same_time_fail_an_assertion(tmp_path: Path) -> None:
    journal = open_on(f"{tmp_path}/realm", offload=asyncio.to_thread)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(journal.append(0, [b"x" * 300_000]))
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="one writer"):
            await journal.append(0, [b"two"])
    assert writing.result() == 1


async def test_slow_syncs_leave_the_loop_and_quick_ones_come_back(tmp_path: Path) -> None:
    clock = StillClock()
    cost = [0]
    disk = FaultyDisk(on_sync=lambda: clock.advance(cost[0]))
    elsewhere = []

    async def offload(call: Callable[[], T]) -> T:
        elsewhere.append(call)
        return call()

    journal = open_embedded(
        "/realm", disk=disk, offload=offload, clock=clock, identity=lambda: 1, holder="a test"
    ).journal
    await append_all(journal, b"quick")
    assert not elsewhere
    cost[0] = 20_000
    await append_all(journal, b"slow", b"slow")
    assert len(elsewhere) == 1
    cost[0] = 10
    await append_all(journal, *[b"quick"] * 40)
    assert 1 < len(elsewhere) < 40
    before = len(elsewhere)
    await append_all(journal, b"quick", b"x" * 200_000)
    assert len(elsewhere) == before + 1, "large blocks always go elsewhere"


async def test_writes_keep_the_limit_of_chunks_of_a_real_system(tmp_path: Path) -> None:
    journal = open_on(
        f"{tmp_path}/realm",
        limits=JournalLimits(allocation_bytes=1 << 12),
        offload=asyncio.to_thread,
    )
    await append_all(journal, b"one")
    with file_size_limit(20_000), pytest.raises(StorageFailed, match="File too large"):
        await journal.append(1, [b"x" * 10_000, b"y" * 15_000])

    assert await journal.append(1, [b"two"]) == 2
    assert await contents(journal) == [b"one", b"two"]
    await journal.close()
    again = open_on(f"{tmp_path}/realm")
    assert await contents(again) == [b"one", b"two"]
    assert again.info().cut == 0
    await again.close()


async def test_an_append_of_another_writer_is_fenced(disk: FaultyDisk) -> None:
    journal = open_journal(disk)
    await append_all(journal, b"one")

    with pytest.raises(Deposed, match="expected the tail to be 0, but it is 1"):
        await journal.append(0, [b"other"])


def open_on(
    root: str,
    *,
    limits: JournalLimits | None = None,
    offload: object = asyncio.to_thread,
) -> FileJournal:
    return open_embedded(
        root,
        disk=RealDisk(),
        offload=offload,  # type: ignore[arg-type]  # test doubles are generic functions
        clock=StillClock(),
        identity=lambda: 1,
        holder="a test",
        limits=limits,
    ).journal


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
