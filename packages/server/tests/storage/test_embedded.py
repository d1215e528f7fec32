"""Opening a data directory: whose it is, who has it, what wrote it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    DataDirectoryInUse,
    InvalidArgument,
    NewerFormat,
    StorageFailed,
)
from penstock_core.vocabulary.ports import Block, VersionedRecord
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded import Embedded
from penstock_server.storage.embedded.records import encode_record
from penstock_testing.disk import FaultyDisk
from penstock_testing.process import search_path
from penstock_testing.stores import open_store


def tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def close(store: Embedded) -> None:
    asyncio.run(store.journal.close())


def test_a_new_directory_gets_the_format_record(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}/deep/realm", RealDisk())

    assert asyncio.run(store.registry.get("format")) == VersionedRecord(1, b'{"format": 2}')
    names = {"LOCK", "journal", "pages", "registry", "segments", "snapshots"}
    assert set(os.listdir(tmp_path / "deep/realm")) == names
    close(store)


@pytest.mark.slow
def test_the_error_of_a_second_realm_names_the_holder_of_the_directory(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}", RealDisk(), holder="pid 4711")

    with pytest.raises(DataDirectoryInUse, match=rf"{tmp_path} is in use by pid 4711"):
        open_store(f"{tmp_path}", RealDisk(), holder="pid 4712")

    close(store)
    close(open_store(f"{tmp_path}", RealDisk()))


@pytest.mark.slow
def test_the_lock_of_a_process_that_ended_is_free(tmp_path: Path) -> None:
    script = (
        "import sys; from penstock_server.storage.disk import RealDisk;"
        "from penstock_testing.stores import open_store;"
        "open_store(sys.argv[1], RealDisk(), holder='gone')"
    )
    environment = os.environ | {"PYTHONPATH": search_path()}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=environment)

    close(open_store(f"{tmp_path}", RealDisk()))


def test_a_newer_format_is_refused_without_changes(tmp_path: Path) -> None:
    close(open_store(f"{tmp_path}", RealDisk()))
    record = encode_record(VersionedRecord(7, b'{"format": 12}'))
    (tmp_path / "registry/format").write_bytes(record)
    before = tree(tmp_path)

    with pytest.raises(NewerFormat) as refusal:
        open_store(f"{tmp_path}", RealDisk())

    for part in ("format 12", "formats up to 2", str(tmp_path)):
        assert part in str(refusal.value)
    assert tree(tmp_path) == before


def test_a_foreign_folder_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")

    with pytest.raises(InvalidArgument, match=r"not a Penstock data directory.*thesis\.tex"):
        open_store(f"{tmp_path}", RealDisk())

    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_fresh_file_system_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()

    close(open_store(f"{tmp_path}", RealDisk()))


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="absolute"):
        open_store("realm", FaultyDisk())


def test_the_error_names_a_directory_that_cannot_be_created() -> None:
    with pytest.raises(StorageFailed, match="/proc/none/realm"):
        open_store("/proc/none/realm", RealDisk())


def test_a_directory_with_events_and_no_format_record_is_damaged(disk: FaultyDisk) -> None:
    close(open_store("/realm", disk))
    disk.unlink("/realm/registry/format")

    with pytest.raises(Damaged, match="'format' is missing"):
        open_store("/realm", disk)


@pytest.mark.parametrize("value", [b"{}", b"format 1", b'{"format": "x"}'])
def test_an_invalid_format_record_is_damaged(disk: FaultyDisk, value: bytes) -> None:
    close(open_store("/realm", disk))
    disk.unlink("/realm/registry/format")
    file = disk.open("/realm/registry/format", create=True)
    disk.pwrite(file, [encode_record(VersionedRecord(1, value))], 0)

    with pytest.raises(Damaged, match="format record"):
        open_store("/realm", disk)


@pytest.mark.slow
def test_a_power_cut_during_the_first_start_leaves_something_to_start_from() -> None:
    for seed in range(200):
        disk = FaultyDisk(seed)
        disk.fail_syncs_after(seed % 12)
        with suppress(StorageFailed):
            open_store("/realm", disk)
        disk.fail_syncs(0)
        disk.power_cut()

        store = open_store("/realm", disk)
        assert asyncio.run(store.journal.append(0, [b"one"])) == 1


@pytest.mark.spec("S1")
def test_a_damaged_record_is_kept_aside_and_hides_only_its_key(disk: FaultyDisk) -> None:
    store = open_store("/realm", disk)
    asyncio.run(store.registry.cas("a/b", 0, b"one"))
    asyncio.run(store.registry.cas("c", 0, b"two"))
    disk.kill()
    disk.flip("/realm/registry/a%2Fb", 33)

    registry = open_store("/realm", disk).registry

    assert asyncio.run(registry.get("c")) == VersionedRecord(1, b"two")
    assert list(asyncio.run(registry.list())) == ["a/b", "c", "format"]
    with pytest.raises(Damaged, match="a%2Fb"):
        asyncio.run(registry.get("a/b"))
    with pytest.raises(Damaged, match="a%2Fb"):
        asyncio.run(registry.cas("a/b", 1, b"over it"))
    assert [entry.name for entry in disk.list("/realm/quarantine")] == ["registry-a%2Fb.record"]


@pytest.mark.spec("S1")
def test_the_journal_does_without_its_record(disk: FaultyDisk) -> None:
    store = open_store("/realm", disk)
    asyncio.run(store.journal.append(0, [b"one"]))
    disk.kill()
    disk.flip("/realm/registry/journal", 40)

    journal = open_store("/realm", disk).journal

    (block,) = asyncio.run(journal.read(1, 9))
    assert isinstance(block, Block)
    assert bytes(block.data) == b"one"
    assert asyncio.run(journal.append(1, [b"two"])) == 2


def test_the_journals_record_cannot_be_changed_by_others(disk: FaultyDisk) -> None:
    registry = open_store("/realm", disk).registry

    with pytest.raises(Conflict, match="journal's own"):
        asyncio.run(registry.cas("journal", 0, b"mine"))


@pytest.mark.slow
def test_records_outlive_power_and_a_full_disk_changes_nothing() -> None:
    for seed in range(30):
        disk = FaultyDisk(seed)
        registry = open_store("/realm", disk).registry
        asyncio.run(registry.cas("a", 0, b"one"))
        disk.free_bytes = 20
        with pytest.raises(StorageFailed, match=r"registry/a.*No space"):
            asyncio.run(registry.cas("a", 1, b"two"))
        disk.free_bytes = None
        asyncio.run(registry.cas("a", 1, b"three"))
        disk.power_cut()

        again = open_store("/realm", disk).registry
        assert asyncio.run(again.get("a")) == VersionedRecord(2, b"three")
        assert [entry.name for entry in disk.list("/realm/registry")] == ["a", "format", "journal"]


@pytest.mark.slow
def test_a_record_is_old_or_new_after_a_failed_sync_and_a_power_cut() -> None:
    seen = set()
    for seed in range(40):
        disk = FaultyDisk(seed)
        registry = open_store("/realm", disk).registry
        asyncio.run(registry.cas("a", 0, b"old"))
        disk.fail_syncs_after(1)
        with pytest.raises(StorageFailed):
            asyncio.run(registry.cas("a", 1, b"new"))
        disk.fail_syncs(0)
        with pytest.raises(StorageFailed, match="accepts no more"):
            asyncio.run(registry.cas("b", 0, b"x"))
        disk.power_cut()

        record = asyncio.run(open_store("/realm", disk).registry.get("a"))
        assert record is not None
        seen.add(record.value)
    assert seen <= {b"old", b"new"}


def test_keys_too_long_for_a_file_are_refused(disk: FaultyDisk) -> None:
    registry = open_store("/realm", disk).registry

    with pytest.raises(InvalidArgument, match="240"):
        asyncio.run(registry.cas("/" * 100, 0, b"x"))
