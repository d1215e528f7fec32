"""A directory that files are put into is on disk before them, whatever its maker lived to see."""

from __future__ import annotations

from contextlib import suppress

from penstock_server.storage.disk import make_directories, write_all
from penstock_testing.disk import FaultyDisk

SEEDS = range(20)


def _is_there(disk: FaultyDisk) -> bool:
    """Whether a file in ``/realm/a/b`` outlives a power cut, once all of it was made."""
    make_directories(disk, "/realm/a/b", "/realm")
    write_all(disk, "/realm/a/b/file", [b"x"])
    disk.sync_directory("/realm/a/b")
    disk.power_cut()
    try:
        return disk.content("/realm/a/b/file") == b"x"
    except FileNotFoundError:
        return False


def _empty(seed: int) -> FaultyDisk:
    disk = FaultyDisk(seed)
    make_directories(disk, "/realm", "/")
    return disk


def test_a_directory_whose_sync_failed_is_synced_when_it_is_needed_again() -> None:
    kept = []
    for seed in SEEDS:
        disk = _empty(seed)
        disk.fail_syncs()
        with suppress(OSError):
            make_directories(disk, "/realm/a/b", "/realm")
        kept.append(_is_there(disk))

    assert all(kept)


def test_a_directory_made_by_a_process_that_was_killed_is_synced_by_the_next() -> None:
    kept = []
    for seed in SEEDS:
        disk = _empty(seed)
        disk.make_directory("/realm/a")
        disk.kill()
        kept.append(_is_there(disk))

    assert all(kept)
