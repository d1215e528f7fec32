"""Backups capture files that change while they are read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock_core.columns.files.growing_segment import Growth, extended, started
from penstock_core.columns.files.segments import SegmentIndex
from penstock_core.vocabulary.ports import Blobs
from penstock_server.storage.embedded.copying import Capture, HeldFile
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import open_store

NAME = "segments/orders/events.00000001.arrow"


def rows(first: int) -> pa.RecordBatch:
    ids = pa.array(range(first, first + 100), pa.int64())
    return pa.record_batch({"event_id": ids, "data": pa.array([b"x" * 50] * 100)})


async def begun(blobs: Blobs) -> Growth:
    growth = started([rows(0)])
    await blobs.put(NAME, growth.chunks)
    return growth


async def extend(blobs: Blobs, index: SegmentIndex, tail: bytes, first: int) -> SegmentIndex:
    growth = extended(index, tail, [rows(first)])
    await blobs.extend(NAME, growth.at, growth.chunks)
    return growth.index


def content(file: HeldFile) -> bytes:
    parts: list[bytes] = []
    while (offset := sum(map(len, parts))) < file.size:
        part = file.read(offset, 1_000)
        assert part, f"nothing at byte {offset} of {file.size}"
        parts.append(part)
    return b"".join(parts)


@pytest.mark.spec("S1")
@pytest.mark.parametrize("is_under_way", [False, True])
async def test_a_file_that_is_extended_during_a_backup_ends_as_it_was_recorded(
    disk: FaultyDisk, is_under_way: bool
) -> None:
    """The extension is made after the capture, or before it without being recorded yet."""
    store = open_store("/realm", disk)
    before = await begun(store.blobs)
    file_bytes, tail = b"".join(before.chunks), bytes(before.chunks[-1])
    capture = Capture("/realm", disk, store.journal)

    if is_under_way:
        await extend(store.blobs, before.index, tail, first=100)
    held = capture(await store.blobs.list(), growing={NAME: before.index})
    if not is_under_way:
        await extend(store.blobs, before.index, tail, first=100)
    (file,) = [captured for captured in held if captured.name == NAME]

    assert content(file) == file_bytes
    table = pa.ipc.open_file(pa.py_buffer(content(file))).read_all()
    assert table.column("event_id").to_pylist() == list(range(100))
    capture.release(held)
