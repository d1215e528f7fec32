"""A disk that shows what would happen."""

from __future__ import annotations

import asyncio

import pytest

from penstock_core.vocabulary.ports import Blobs, Journal
from penstock_server.storage.overlay import OverlayDisk
from penstock_testing.contracts import BlobsContract, JournalContract, checks, run
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import open_store


class JournalKit(JournalContract):
    async def open(self) -> Journal:
        return open_store("/realm", _over_a_made_store(), file_bytes_max=200).journal


class BlobsKit(BlobsContract):
    async def open(self) -> Blobs:
        return open_store("/realm", _over_a_made_store()).blobs


def _over_a_made_store() -> OverlayDisk:
    disk = FaultyDisk()
    open_store("/realm", disk)
    disk.kill()
    return OverlayDisk(disk)


@pytest.mark.slow
@pytest.mark.parametrize("check", checks(JournalContract))
def test_a_journal_works_on_it(check: str) -> None:
    asyncio.run(run(JournalKit(), check))


@pytest.mark.parametrize("check", checks(BlobsContract))
def test_blobs_work_on_it(check: str) -> None:
    asyncio.run(run(BlobsKit(), check))


async def test_the_disk_below_is_read_and_not_changed() -> None:
    disk = FaultyDisk()
    store = open_store("/realm", disk)
    await store.journal.append(0, [b"one"])
    await store.blobs.put("segments/a/1", [b"whole"])
    await store.blobs.put("segments/a/2", [b"gone"])
    await store.journal.close()
    names = ("journal/00000000000000000001.log", "segments/a/1", "segments/a/2", "registry/journal")
    before = [disk.content(f"/realm/{name}") for name in names]

    above = open_store("/realm", OverlayDisk(disk))
    await above.journal.append(1, [b"two"])
    await above.blobs.extend("segments/a/1", 2, [b"at"])
    await above.blobs.delete("segments/a/2")
    await above.blobs.put("segments/b/1", [b"new"])
    await above.journal.close()

    assert bytes(await above.blobs.get("segments/a/1")) == b"what"
    assert [blob.name for blob in await above.blobs.list()] == ["segments/a/1", "segments/b/1"]
    assert [disk.content(f"/realm/{name}") for name in names] == before
    assert [entry.name for entry in disk.list("/realm/segments")] == ["a"]
