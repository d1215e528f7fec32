"""Reads events from the realm's sealed files, without the realm.

A file on this machine is memory-mapped: Spark gets slices of it, not copies. If the options name a
copy of the data directory, files are read from the copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.files.segments import SegmentBatch
from penstock_core.columns.schema.ipc import file_batch_from, schema_from
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import Damaged
from penstock_spark.reading.copies import Copy, MissingInCopy
from penstock_spark.reading.plan import FileRows, Spans

Mask = npt.NDArray[np.bool_]

VERIFIED_MAX = 1 << 20
"""Maximum number of verified record batches that a process remembers: those of about 17 billion
events."""

_verified: set[tuple[str, int, int, int]] = set()
"""File, inode, offset and checksum of verified bytes. Written bytes of a file never change, and
checksums take most of the time of a read."""


def is_readable_here(path: str, size: int) -> bool:
    """Return whether this machine has the file with at least this size in bytes. An empty path is
    that of no file."""
    try:
        return bool(path) and Path(path).stat().st_size >= size  # a single file grows
    except OSError:
        return False


class CopiedFile(NamedTuple):
    """A file in a copy."""

    copy: Copy
    file: Any


class Absent(NamedTuple):
    """The reason why a file cannot be read here."""

    reason: str


def open_part(part: FileRows, copy: Copy | None) -> CopiedFile | Absent | None:
    """Open a file in the ``copy``; None: read it in the realm's data directory. If neither is
    possible, return the reason."""
    if copy is None:
        return (
            None
            if is_readable_here(part.path, part.size)
            else Absent(f"{part.path} cannot be read here")
        )
    if not part.name:
        return Absent("the realm does not report the names of its files: it is an older version")
    try:
        return CopiedFile(copy, copy.open(part.name, part.size))
    except (MissingInCopy, OSError) as error:
        return Absent(str(error))


def stored_batches(
    part: FileRows, copied: CopiedFile | None = None
) -> Iterator[tuple[pa.RecordBatch, Mask | None, Span]]:
    """Yield the record batches of a file, with masks of the wanted rows (None: all) and their ids.

    Raises ``Damaged`` for a batch that fails its checksum or cannot be unpacked, ``OSError`` for a
    removed file.
    """
    schema = schema_from(part.schema)
    messages = _map_batches(part) if copied is None else _copied_batches(part, copied)
    span_index = 0
    for batch_place, message in zip(part.batches, messages, strict=True):
        spans = []
        while span_index < len(part.spans) and part.spans[span_index].first < batch_place.end_id:
            spans.append(part.spans[span_index].clipped(batch_place.span))
            span_index += 1
        wanted = Span(spans[0].first, spans[-1].end)
        try:
            stored = file_batch_from(message, schema)
        except Damaged as error:
            where = f"{part.path}: events {batch_place.first_id}-{batch_place.end_id - 1}"
            raise Damaged(f"{where}: {error}") from error
        yield *_select_rows(stored, batch_place, tuple(spans)), wanted


def _map_batches(part: FileRows) -> Iterator[pa.Buffer]:
    """Yield batches of a mapped file; each is verified once per process. Raises ``Damaged``."""
    with pa.memory_map(part.path) as file:
        buffer = file.read_buffer()
        inode = Path(part.path).stat().st_ino
    for batch_place in part.batches:
        message = buffer.slice(batch_place.offset, batch_place.length)
        # The inode distinguishes the files of a recreated channel, which may have the same path.
        identity = (part.path, inode, batch_place.offset, batch_place.checksum)
        if identity not in _verified:
            _verify(message, batch_place, part.path)
            if len(_verified) >= VERIFIED_MAX:
                _verified.clear()
            _verified.add(identity)
        yield message


def _copied_batches(part: FileRows, copied: CopiedFile) -> Iterator[pa.Buffer]:
    """Yield batches from a copy, verified at each read, because the bytes are transferred each
    time. Raises ``Damaged``."""
    messages = copied.copy.messages(copied.file, part.name, part.batches)
    for batch_place, message in zip(part.batches, messages, strict=True):
        _verify(message, batch_place, f"{part.name} in {copied.copy!r}")
        yield message


def _verify(message: pa.Buffer, place: SegmentBatch, path: str) -> None:
    if xxh3_64_intdigest(message) != place.checksum:
        raise Damaged(
            f"{path}: events {place.first_id}-{place.end_id - 1}: bytes {place.offset}-"
            f"{place.offset + place.length} fail their checksum"
        )


def _select_rows(
    batch: pa.RecordBatch, place: SegmentBatch, spans: Spans
) -> tuple[pa.RecordBatch, Mask | None]:
    if sum(span.size for span in spans) == place.rows:
        return batch, None
    bounds = np.array(spans, dtype=np.int64).reshape(-1)
    if place.end_id - place.first_id == place.rows:  # ids follow from positions
        bounds -= place.first_id
    else:
        bounds = np.searchsorted(ids_of(batch), bounds)
    if len(spans) == 1:
        return batch.slice(int(bounds[0]), int(bounds[1] - bounds[0])), None
    # Even entries of `bounds` are starts and odd ones ends: the running sum is 1 in wanted rows.
    steps = np.zeros(batch.num_rows + 1, dtype=np.int8)
    np.add.at(steps, bounds[0::2], 1)
    np.add.at(steps, bounds[1::2], -1)
    return batch, np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)
