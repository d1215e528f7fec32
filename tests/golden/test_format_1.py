"""Format 1, byte for byte: what is written today is what was written when it was settled.

``format-1`` is a data directory and a segment as the first version wrote them. Every later
version reads them; a version that writes other bytes needs a new format number. Format 2 differs
in records only (``test_format_2``), which the journal does not look into.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock_core.columns.files.segments import SegmentIndex, SegmentReader, encode_segment
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.ports import Block, VersionedRecord
from penstock_server.storage.disk import RealDisk
from penstock_testing.stores import open_store
from tests.loops import on_a_loop

GOLDEN = Path(__file__).parent / "format-1"
BLOCKS = [b"", b"first", bytes(range(256)), b"p\xc3\xa9n stock" * 5, b"last"]
KEPT = {
    "realm/journal/00000000000000000001.log",
    "realm/journal/00000000000000000004.log",
    "realm/registry/format",
    "realm/registry/journal",
    "realm/registry/manifest%2Forders",
    "realm/segments/orders/eu/00000000000000000001-00000000000000000009.arrow",
}
RECORDS = {"records/facts.block", "records/snapshot.block"}
"""Facts of a channel, and a snapshot in their place: ``test_format_2``."""
SEGMENT = "segments/orders/eu/00000000000000000001-00000000000000000009.arrow"

pytestmark = pytest.mark.spec("S1")


def events() -> pa.RecordBatch:
    ids = [1, 2, 3, 5, 8, 9]
    return pa.record_batch(
        {
            "event_id": pa.array(ids, pa.int64()),
            "tag": pa.array(["a", None, "b", "", "c", "d"]),
            "data": pa.array([b"x" * number for number in ids]),
        }
    )


async def write(root: str) -> SegmentIndex:
    """Make the golden directory."""
    image = encode_segment([events()], rows_per_batch=4)
    journal, blobs, registry, _ = open_store(
        root, RealDisk(), file_bytes_max=500, allocation_bytes=0, identity=0x0123456789ABCDEF
    )
    for number, block in enumerate(BLOCKS):
        await journal.append(number, [block])
    await journal.trim(1)
    await registry.cas("manifest/orders", 0, b"old")
    await registry.cas("manifest/orders", 1, b'{"segments": 1}')
    await blobs.put(SEGMENT, image.chunks)
    await journal.close()
    return image.index


@on_a_loop
async def test_todays_code_reads_the_first_format(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "realm", tmp_path / "realm")

    journal, blobs, registry, _ = open_store(f"{tmp_path}/realm", RealDisk())
    info = journal.info()
    assert (info.floor, info.tail, info.cut) == (1, 5, 0)
    blocks = await journal.read(2, 99)
    assert [b.data for b in blocks if isinstance(b, Block)] == BLOCKS[1:]
    assert await registry.get("manifest/orders") == VersionedRecord(2, b'{"segments": 1}')
    stored = (GOLDEN / "segment-index.msgpack").read_bytes()
    index = msgspec.msgpack.decode(stored, type=SegmentIndex)
    reader = SegmentReader(await blobs.get(SEGMENT), index)
    segment = pa.Table.from_batches(list(reader.read(Span(0, 100))))
    assert segment.equals(pa.Table.from_batches([events()]))
    assert await journal.append(5, [b"next"]) == 6
    await journal.close()


def test_todays_code_writes_the_first_format(tmp_path: Path) -> None:
    asyncio.run(write(f"{tmp_path}/realm"))

    for name in sorted(KEPT):
        if name == "realm/registry/format":  # of format 2 by now
            continue
        if not name.endswith(".arrow"):  # its bytes are the Arrow library's to choose
            assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes(), name


def test_the_golden_directory_is_whole() -> None:
    paths = {path for path in GOLDEN.rglob("*") if path.is_file()}
    names = {str(path.relative_to(GOLDEN)) for path in paths} - RECORDS

    assert names == KEPT | {"segment-index.msgpack"}
    assert sum(path.stat().st_size for path in paths) < 20_000
