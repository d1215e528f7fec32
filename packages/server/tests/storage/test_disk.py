"""The real disk does what its protocol says, and the faulty one does it the same way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_server.storage.disk import (
    Disk,
    LockHeld,
    RealDisk,
    make_directories,
    read_all,
    write_all,
)
from penstock_testing.disk import SECTOR, FaultyDisk


@pytest.fixture(params=[RealDisk, FaultyDisk])
def any_disk(request: pytest.FixtureRequest) -> Disk:
    make: Callable[[], Disk] = request.param
    return make()


@pytest.fixture
def root(any_disk: Disk, tmp_path: Path) -> str:
    make_directories(any_disk, f"{tmp_path}/root", "/")
    return f"{tmp_path}/root"


def test_many_chunks_are_written_in_order(any_disk: Disk, root: str) -> None:
    chunks = [bytes([number % 256]) * (number % 5) for number in range(4_000)]
    write_all(any_disk, f"{root}/a", chunks)

    assert read_all(any_disk, f"{root}/a") == b"".join(chunks)


def test_a_write_that_the_system_cuts_short_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def short(file: int, buffers: list[memoryview], offset: int) -> int:
        return real(file, [buffers[0][:3]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    write_all(RealDisk(), f"{tmp_path}/a", [b"0123456789", b"", b"ab", b"cdefg"])

    assert (tmp_path / "a").read_bytes() == b"0123456789abcdefg"


def test_reads_end_where_the_file_does(any_disk: Disk, root: str) -> None:
    write_all(any_disk, f"{root}/a", [b"0123456789"])
    file = any_disk.open(f"{root}/a")

    assert any_disk.pread(file, 4, 3) == b"3456"
    assert any_disk.pread(file, 100, 8) == b"89"
    assert any_disk.pread(file, 4, 50) == b""
    assert bytes(any_disk.map(file)) == b"0123456789"
    any_disk.close(file)


def test_files_grow_by_zeros_and_shrink(any_disk: Disk, root: str) -> None:
    file = any_disk.open(f"{root}/a", create=True)
    any_disk.pwrite(file, [b"abc"], 0)
    any_disk.allocate(file, 3, 5)
    assert any_disk.pread(file, 99, 0) == b"abc\0\0\0\0\0"
    any_disk.truncate(file, 2)
    assert any_disk.size(file) == 2
    any_disk.truncate(file, 0)
    assert bytes(any_disk.map(file)) == b""
    any_disk.close(file)


def test_a_mapping_shows_later_writes_and_outlives_its_file(any_disk: Disk, root: str) -> None:
    file = any_disk.open(f"{root}/a", create=True)
    any_disk.allocate(file, 0, 10)
    mapped = any_disk.map(file)
    any_disk.pwrite(file, [b"abc"], 4)
    any_disk.allocate(file, 0, 10)
    assert bytes(mapped) == b"\0\0\0\0abc\0\0\0"
    assert mapped.readonly
    any_disk.allocate(file, 10, 4)
    any_disk.pwrite(file, [b"end"], 11)
    any_disk.close(file)
    any_disk.unlink(f"{root}/a")

    assert bytes(mapped) == b"\0\0\0\0abc\0\0\0", "it ends where the file did"


def test_only_empty_directories_are_removed(any_disk: Disk, root: str) -> None:
    any_disk.make_directory(f"{root}/deep")
    write_all(any_disk, f"{root}/deep/a", [b"a"])
    with pytest.raises(OSError, match="not empty"):
        any_disk.remove_directory(f"{root}/deep")
    any_disk.unlink(f"{root}/deep/a")
    any_disk.remove_directory(f"{root}/deep")

    assert any_disk.list(root) == []
    with pytest.raises(FileNotFoundError):
        any_disk.remove_directory(f"{root}/deep")


def test_a_name_can_be_used_only_once(any_disk: Disk, root: str) -> None:
    write_all(any_disk, f"{root}/a", [b"a"])
    write_all(any_disk, f"{root}/b", [b"b"])

    with pytest.raises(FileExistsError):
        any_disk.open(f"{root}/a", create=True)
    with pytest.raises(FileExistsError):
        any_disk.rename(f"{root}/a", f"{root}/b", replace=False)
    any_disk.rename(f"{root}/a", f"{root}/c", replace=False)
    any_disk.rename(f"{root}/c", f"{root}/b", replace=True)
    assert [(entry.name, entry.size) for entry in any_disk.list(root)] == [("b", 1)]
    assert read_all(any_disk, f"{root}/b") == b"a"


def test_without_hard_links_a_taken_name_is_still_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(old: str, new: str) -> None:
        raise PermissionError(1, "no hard links on this file system")

    monkeypatch.setattr(os, "link", no_links)
    disk = RealDisk()
    write_all(disk, f"{tmp_path}/a", [b"a"])
    disk.rename(f"{tmp_path}/a", f"{tmp_path}/b", replace=False)
    write_all(disk, f"{tmp_path}/a", [b"new"])

    with pytest.raises(FileExistsError):
        disk.rename(f"{tmp_path}/a", f"{tmp_path}/b", replace=False)
    assert (tmp_path / "b").read_bytes() == b"a"


def test_missing_files_raise_file_not_found(any_disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        any_disk.open(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        any_disk.list(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        any_disk.unlink(f"{root}/none")


def test_one_holder_has_the_lock_until_it_closes(any_disk: Disk, root: str) -> None:
    held = any_disk.lock(f"{root}/LOCK", "pid 1")
    with pytest.raises(LockHeld, match="pid 1"):
        any_disk.lock(f"{root}/LOCK", "pid 2")
    any_disk.close(held)

    any_disk.close(any_disk.lock(f"{root}/LOCK", "pid 2"))


def test_a_power_cut_tears_unsynced_writes_at_sectors() -> None:
    seen = set()
    for seed in range(60):
        disk = FaultyDisk(seed)
        file = disk.open("/a", create=True)
        disk.pwrite(file, [b"o" * SECTOR * 3], 0)
        disk.datasync(file)
        disk.sync_directory("/")
        disk.pwrite(file, [b"n" * SECTOR * 3], 0)
        disk.power_cut()
        content = disk.content("/a").decode()
        seen.add("".join(content[sector * SECTOR] for sector in range(3)))
        assert all(
            len(set(content[sector * SECTOR : (sector + 1) * SECTOR])) == 1 for sector in range(3)
        )

    assert {"ooo", "nnn"} < seen, "all of it may be lost or kept"
    assert seen & {"non", "ono", "oon", "onn"}, "and later sectors may be there without earlier"


def test_a_power_cut_takes_names_that_were_not_synced() -> None:
    seen = set()
    for seed in range(60):
        disk = FaultyDisk(seed)
        write_all(disk, "/old", [b"x"])
        disk.sync_directory("/")
        disk.rename("/old", "/new", replace=False)
        disk.power_cut()
        seen.add(tuple(entry.name for entry in disk.list("/")))

    assert seen == {("old",), ("new",)}


def test_a_failed_sync_loses_the_bytes_and_the_next_one_succeeds() -> None:
    for seed in range(10):
        disk = FaultyDisk(seed)
        file = disk.open("/a", create=True)
        disk.sync_directory("/")
        disk.pwrite(file, [b"x"], 0)
        disk.fail_syncs()
        with pytest.raises(OSError, match="Input/output"):
            disk.datasync(file)
        disk.datasync(file)
        assert disk.content("/a") == b"x"
        disk.power_cut()
        assert disk.content("/a") == b""


def test_a_halt_in_a_sync_waits_for_one_with_enough_to_bring_and_is_counted() -> None:
    disk = FaultyDisk()
    file = disk.open("/a", create=True)
    disk.sync_directory("/")
    disk.halt_in_sync(1, least_bytes=2)
    disk.pwrite(file, [b"1"], 0)
    disk.datasync(file)
    disk.pwrite(file, [b"23"], 1)

    with pytest.raises(OSError, match="Input/output"):
        disk.datasync(file)

    disk.power_cut()
    assert disk.content("/a") in (b"1", b"123")
    lost = int(disk.content("/a") == b"1")
    assert disk.faults["power gone in the middle of a call"] == 1
    assert disk.faults["unsynced write lost"] == lost
