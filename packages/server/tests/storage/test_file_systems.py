"""Blobs on a folder and on an object store keep the contract of the port, and show no half."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from penstock.client.copies.object_store_uri import place
from penstock_core.vocabulary.errors import StorageFailed
from penstock_server.storage.file_systems import FileSystemBlobs
from penstock_testing.contracts import BlobsContract, checks, run
from tests.objects import ObjectStore, object_store

pytestmark = pytest.mark.slow

NAME = "segments/orders.1/events.00000001.arrow"


class BlobsKit(BlobsContract):
    def __init__(self, uri: str) -> None:
        self._uri = uri

    async def open(self) -> FileSystemBlobs:
        return blobs_at(self._uri)


def blobs_at(uri: str) -> FileSystemBlobs:
    return FileSystemBlobs(*place(uri, "--to"), offload=asyncio.to_thread)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture(params=["folder", "s3", "s3 bucket"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, store: ObjectStore) -> str:
    uris: dict[str, Callable[[], str]] = {
        "folder": lambda: f"file://{tmp_path}/copy",
        "s3": lambda: store.uri("bucket/some/realm"),
        "s3 bucket": lambda: store.uri("bucket"),
    }
    return uris[request.param]()


@pytest.mark.parametrize("check", checks(BlobsContract))
def test_blobs(uri: str, check: str) -> None:
    asyncio.run(run(BlobsKit(uri), check))


async def test_large_blobs_are_written_in_parts_and_visible_as_a_whole(store: ObjectStore) -> None:
    blobs = blobs_at(store.uri("bucket/realm"))
    content = bytes(range(256)) * (24 << 12)
    await blobs.put(NAME, [memoryview(content)])

    assert len(store.requests_of("PUT", NAME)) > 1
    assert store.objects == {f"bucket/realm/{NAME}": content}


@pytest.mark.parametrize("part", [1, 2, 3])
async def test_an_interrupted_large_blob_is_never_visible_in_part(
    store: ObjectStore, part: int
) -> None:
    blobs = blobs_at(store.uri("bucket/realm"))
    store.part_refused = part
    content = bytes(24 << 20)
    for chunks in ([content], [content[: 11 << 20], content[11 << 20 :], b"end"]):
        with pytest.raises(StorageFailed, match="ACCESS_DENIED"):
            await blobs.put(NAME, chunks)
        gc.collect()  # the remaining parts of the upload must not end it
        assert store.objects == {}

    store.part_refused = 0
    await blobs.put(NAME, [content])
    store.part_refused = part
    with pytest.raises(StorageFailed, match="ACCESS_DENIED"):
        await blobs.extend(NAME, 1, [content])
    gc.collect()
    assert store.objects == {f"bucket/realm/{NAME}": content}


async def test_a_list_with_a_prefix_reads_no_other_names(store: ObjectStore) -> None:
    blobs = blobs_at(store.uri("bucket/realm"))
    for number in range(10):
        await blobs.put(f"segments/orders.1/{number}", [b"x" * number])
        await blobs.put(f"segments/others.2/{number}", [b"x"])
    store.requests.clear()

    infos = await blobs.list("segments/orders.1/")
    assert [(blob.name, blob.size) for blob in infos] == [
        (f"segments/orders.1/{number}", number) for number in range(10)
    ]
    assert {name for name, _ in store.requests_of("GET", "")} == {"realm/segments/orders.1/"}


async def test_an_abandoned_temporary_file_is_not_a_blob(tmp_path: Path) -> None:
    blobs = blobs_at(f"file://{tmp_path}")
    await blobs.put(NAME, [b"whole"])
    (tmp_path / "segments/orders.1/.put-events.00000001.arrow").write_bytes(b"ha")

    assert [blob.size for blob in await blobs.list()] == [5]
    await blobs.extend(NAME, 0, [b"whole again"])
    assert [path.name for path in (tmp_path / "segments/orders.1").iterdir()] == [Path(NAME).name]


async def test_a_failed_write_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(fs.LocalFileSystem):  # type: ignore[misc]  # Arrow has no types
        def move(self, src: str, dest: str) -> None:
            raise OSError(28, "No space left on device")

    blobs = blobs_at(f"file://{tmp_path}")
    await blobs.put(NAME, [b"whole"])
    full = FileSystemBlobs(Full(), f"{tmp_path}", f"file://{tmp_path}", offload=asyncio.to_thread)
    with pytest.raises(StorageFailed, match=r"0001\.arrow could not be extended.*No space"):
        await full.extend(NAME, 0, [b"more"])

    assert bytes(await blobs.get(NAME)) == b"whole"
    assert [path.name for path in (tmp_path / "segments/orders.1").iterdir()] == [Path(NAME).name]


async def test_the_error_names_a_failing_store_without_its_secrets(store: ObjectStore) -> None:
    blobs = blobs_at(store.uri("bucket/realm"))
    store.refuses = True
    for call in (blobs.put(NAME, [b"x"]), blobs.get(NAME), blobs.list(), blobs.delete(NAME)):
        with pytest.raises(
            StorageFailed, match=r"s3://\*\*\*@bucket/realm/.* could not be"
        ) as raised:
            await call
        assert "secret" not in str(raised.value)
