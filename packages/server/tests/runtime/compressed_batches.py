"""Compressed files, whole and damaged."""

from __future__ import annotations

import pyarrow as pa
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from penstock_core.columns.files.segments import (
    SegmentIndex,
    encode_segment,
)
from penstock_core.vocabulary.compression import Compression

PACKED: tuple[Compression, ...] = ("zstd", "lz4")


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = pa.array(range(first, first + count), pa.int64())
    data = pa.array([b"%d " % number * 50 for number in range(first, first + count)], pa.binary())
    return pa.RecordBatch.from_arrays([ids, data], names=["event_id", "data"])


def with_a_batch_that_cannot_be_unpacked(compression: Compression) -> tuple[bytes, SegmentIndex]:
    """Return a file of three batches. The second has the right checksum but cannot be unpacked."""
    image = encode_segment([rows(0, 300)], rows_per_batch=100, compression=compression)
    file = bytearray(memoryview(image.buffer))
    first, bad, last = image.index.batches
    file[bad.offset + bad.length - 400 : bad.offset + bad.length] = bytes(400)
    message = bytes(file[bad.offset : bad.offset + bad.length])
    wrong = replace(bad, checksum=xxh3_64_intdigest(message))
    return bytes(file), replace(image.index, batches=(first, wrong, last))
