"""Every storage adapter keeps the contract of its port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs

from penstock_cluster.storage.shared_blobs import CachedBlobs, PrefixedBlobs
from penstock_core.vocabulary.ports import Blobs, Journal, Pages, Registry, inline
from penstock_server.storage.disk import RealDisk, make_directories
from penstock_server.storage.embedded import Embedded, FileBlobs
from penstock_server.storage.file_systems import FileSystemBlobs
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal, MemoryPages, MemoryRegistry
from penstock_testing.contracts import (
    BlobsContract,
    JournalContract,
    RegistryContract,
    checks,
    run,
)
from penstock_testing.disk import FaultyDisk
from penstock_testing.engine import MemoryEngine, at_once
from penstock_testing.pages_contract import PagesContract
from penstock_testing.stores import open_store

Store = Callable[[], tuple[Journal, Blobs, Registry, Pages]]


class JournalKit(JournalContract):
    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> Journal:
        return self._store()[0]


class BlobsKit(BlobsContract):
    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> Blobs:
        return self._store()[1]


class RegistryKit(RegistryContract):
    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> Registry:
        return self._store()[2]


class PagesKit(PagesContract):
    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> Pages:
        return self._store()[3]


def in_memory() -> tuple[Journal, Blobs, Registry, Pages]:
    return MemoryJournal(), MemoryBlobs(), MemoryRegistry(), MemoryPages()


def on_an_engine() -> tuple[Journal, Blobs, Registry, Pages]:
    engine = MemoryEngine(frame_bytes_max=4_096)
    registry, blobs = at_once(engine.registry()), at_once(engine.blobs(0))
    return at_once(engine.journal(0, 1)), blobs, registry, MemoryPages()


@pytest.fixture(params=["memory", "real disk", "faulty disk", "tiny files", "engine"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    def on_real_disk() -> Embedded:
        return open_store(f"{tmp_path}/realm", RealDisk())

    def on_faulty_disk() -> Embedded:
        return open_store("/realm", FaultyDisk())

    def in_tiny_files() -> Embedded:
        return open_store(
            "/realm",
            FaultyDisk(),
            file_bytes_max=200,
            allocation_bytes=64,
            page_bytes_min=64,
            page_bytes_max=200,
        )

    stores: dict[str, Store] = {
        "memory": in_memory,
        "engine": on_an_engine,
        "real disk": on_real_disk,
        "faulty disk": on_faulty_disk,
        "tiny files": in_tiny_files,
    }
    return stores[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("check", checks(JournalContract))
def test_journal(store: Store, check: str) -> None:
    asyncio.run(run(JournalKit(store), check))


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("check", checks(BlobsContract))
def test_blobs_in_a_folder(tmp_path: Path, check: str, grows: bool) -> None:
    def in_a_folder() -> tuple[Journal, Blobs, Registry, Pages]:
        files, folder = fs.LocalFileSystem(), str(tmp_path)
        blobs = FileSystemBlobs(files, folder, folder, offload=inline, grows=grows)
        return MemoryJournal(), blobs, MemoryRegistry(), MemoryPages()

    asyncio.run(run(BlobsKit(in_a_folder), check))


def on_the_disk_of_a_node() -> FileBlobs:
    disk = FaultyDisk()
    make_directories(disk, "/cache", "/")
    return FileBlobs("/cache", disk=disk, offload=inline)


@pytest.mark.parametrize(
    "share",
    [
        lambda blobs: PrefixedBlobs(blobs, "shard-7/"),
        lambda blobs: CachedBlobs(blobs, on_the_disk_of_a_node(), 1 << 20, offload=inline),
        lambda blobs: CachedBlobs(blobs, on_the_disk_of_a_node(), 4, offload=inline),
        lambda blobs: CachedBlobs(
            PrefixedBlobs(blobs, "shard-7/"), on_the_disk_of_a_node(), 1 << 20, offload=inline
        ),
    ],
    ids=["prefixed", "cached", "larger than the cache", "cached and prefixed"],
)
@pytest.mark.parametrize("of", ["folder", "memory"])
@pytest.mark.parametrize("check", checks(BlobsContract))
def test_shared_blobs(tmp_path: Path, check: str, share: Callable[[Blobs], Blobs], of: str) -> None:
    def shared() -> tuple[Journal, Blobs, Registry, Pages]:
        files, folder = fs.LocalFileSystem(), str(tmp_path)
        blobs: Blobs = MemoryBlobs()
        if of == "folder":
            blobs = FileSystemBlobs(files, folder, folder, offload=inline, grows=False)
        return MemoryJournal(), share(blobs), MemoryRegistry(), MemoryPages()

    asyncio.run(run(BlobsKit(shared), check))


@pytest.mark.parametrize("check", checks(BlobsContract))
def test_blobs(store: Store, check: str) -> None:
    asyncio.run(run(BlobsKit(store), check))


@pytest.mark.parametrize("check", checks(RegistryContract))
def test_registry(store: Store, check: str) -> None:
    asyncio.run(run(RegistryKit(store), check))


@pytest.mark.spec("C1g")
@pytest.mark.parametrize("check", checks(PagesContract))
def test_pages(store: Store, check: str) -> None:
    asyncio.run(run(PagesKit(store), check))
