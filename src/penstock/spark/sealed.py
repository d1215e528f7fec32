"""Reading events from the realm's sealed files, without the realm.

A file is mapped, not copied: what Spark is handed are slices of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from penstock.columns.batch import ids_of
from penstock.columns.ipc import batch_from, schema_from
from penstock.columns.segments import SegmentBatch
from penstock.core.errors import Damaged
from penstock.core.ids import Span
from penstock.spark.plan import FileRows, Spans

Mask = npt.NDArray[np.bool_]

VERIFIED_MAX = 1 << 20
"""Record batches a process remembers as sound: those of about 17 billion events."""

_verified: set[tuple[str, int, int, int]] = set()
"""Of which file, inode, offset and checksum this process has found the bytes to be sound. A file
never changes where it was written, and computing the checksums takes most of the time of a read.
"""


def is_here(part: FileRows) -> bool:
    """Whether this machine has the file, and it is the one that is meant."""
    try:
        return Path(part.path).stat().st_size >= part.size  # a single file grows
    except OSError:
        return False


def stored_batches(part: FileRows) -> Iterator[tuple[pa.RecordBatch, Mask | None, Span]]:
    """The record batches of a file as they are stored, which of their rows are wanted (None:
    all), and the ids those have.

    Raises ``Damaged`` for a batch that fails its checksum, ``OSError`` for a file that is gone.
    """
    schema = schema_from(part.schema)
    with pa.memory_map(part.path) as file:
        buffer = file.read_buffer()
        inode = Path(part.path).stat().st_ino
    at = 0
    for place in part.batches:
        spans = []
        while at < len(part.spans) and part.spans[at].first < place.end_id:
            spans.append(part.spans[at].clipped(place.span))
            at += 1
        wanted = Span(spans[0].first, spans[-1].end)
        message = buffer.slice(place.offset, place.length)
        _verify(message, place, part.path, inode)
        batch, mask = _wanted(batch_from(message, schema), place, tuple(spans))
        yield batch, mask, wanted


def _verify(message: pa.Buffer, place: SegmentBatch, path: str, inode: int) -> None:
    """Once in the life of a process, as the realm does. Raises ``Damaged``."""
    known = (path, inode, place.offset, place.checksum)
    if known in _verified:
        return
    if xxh3_64_intdigest(message) != place.checksum:
        raise Damaged(
            f"{path}: events {place.first_id}-{place.end_id - 1}: bytes {place.offset}-"
            f"{place.offset + place.length} fail their checksum"
        )
    if len(_verified) >= VERIFIED_MAX:
        _verified.clear()
    _verified.add(known)


def _wanted(
    batch: pa.RecordBatch, place: SegmentBatch, spans: Spans
) -> tuple[pa.RecordBatch, Mask | None]:
    if sum(span.size for span in spans) == place.rows:
        return batch, None
    edges = np.array(spans, dtype=np.int64).reshape(-1)
    if place.end_id - place.first_id == place.rows:  # ids are positions
        edges -= place.first_id
    else:
        edges = np.searchsorted(ids_of(batch), edges)
    if len(spans) == 1:
        return batch.slice(int(edges[0]), int(edges[1] - edges[0])), None
    changes = np.zeros(batch.num_rows + 1, dtype=np.int8)
    np.add.at(changes, edges[0::2], 1)
    np.add.at(changes, edges[1::2], -1)
    return batch, np.cumsum(changes[:-1], dtype=np.int8).astype(np.bool_)
