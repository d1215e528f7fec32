"""Reads events from the realm's sealed files, without the realm.

A file on this machine is memory-mapped, so Spark receives slices of the file without copying. If
the options name a copy of the data directory, files are read from the copy.
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
"""True for the rows of a batch that are read."""

VERIFIED_MAX = 1 << 20
"""Largest number of verified record batches that a process remembers. They have about 17 billion
events."""

_verified: set[tuple[str, int, int, int]] = set()
"""Path, inode, offset and checksum of the record batches that this process has verified. They are
verified once, because the written bytes of a file never change and checksums take most of the time
of a read."""


def is_readable_here(path: str, size: int) -> bool:
    """Return whether this machine has the file with at least ``size`` bytes. False if ``path`` is
    empty."""
    try:
        # A longer file is valid: a file that grew after the plan still has the planned bytes.
        return bool(path) and Path(path).stat().st_size >= size
    except OSError:
        return False


class CopiedFile(NamedTuple):
    """An open file of a copy of the data directory."""

    copy: Copy
    file: Any
    """The open Arrow file."""


class Absent(NamedTuple):
    """The reason why a file cannot be read here."""

    reason: str


def open_part(part: FileRows, copy: Copy | None) -> CopiedFile | Absent | None:
    """Open the file of ``part`` in ``copy``, or return None if there is no copy and the file can be
    read in the realm's data directory. Otherwise return the reason why it cannot be read."""
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
    """Yield each record batch of ``part``, a mask of the rows to read, and the span of their ids.

    A mask of None means all rows. Raises ``Damaged`` if a batch fails its checksum or cannot be
    unpacked, and ``OSError`` if the file was removed.
    """
    schema = schema_from(part.schema)
    messages = _map_batches(part) if copied is None else _copied_batches(part, copied)
    span_index = 0
    for batch_place, message in zip(part.batches, messages, strict=True):
        spans = []
        while span_index < len(part.spans) and part.spans[span_index].first < batch_place.end_id:
            spans.append(part.spans[span_index].clipped(batch_place.span))
            span_index += 1
        ids_to_read = Span(spans[0].first, spans[-1].end)
        try:
            stored = file_batch_from(message, schema)
        except Damaged as error:
            where = f"{part.path}: events {batch_place.first_id}-{batch_place.end_id - 1}"
            raise Damaged(f"{where}: {error}") from error
        yield *_select_rows(stored, batch_place, tuple(spans)), ids_to_read


def _map_batches(part: FileRows) -> Iterator[pa.Buffer]:
    """Yield the bytes of each record batch, from the memory-mapped file. A process verifies each
    batch once. Raises ``Damaged``."""
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
    """Yield the bytes of each record batch, from a copy. Each is verified, because the bytes are
    transferred at each read. Raises ``Damaged``, and ``OSError`` if the store fails."""
    messages = copied.copy.messages(copied.file, part.name, part.batches)
    for batch_place, message in zip(part.batches, messages, strict=True):
        _verify(message, batch_place, f"{part.name} in {copied.copy!r}")
        yield message


def _verify(message: pa.Buffer, place: SegmentBatch, path: str) -> None:
    """Raise ``Damaged`` if the bytes of a record batch do not have the checksum of its place."""
    if xxh3_64_intdigest(message) != place.checksum:
        raise Damaged(
            f"{path}: events {place.first_id}-{place.end_id - 1}: bytes {place.offset}-"
            f"{place.offset + place.length} fail their checksum"
        )


def _select_rows(
    batch: pa.RecordBatch, place: SegmentBatch, spans: Spans
) -> tuple[pa.RecordBatch, Mask | None]:
    """Return ``batch``, or a slice of it, and a mask of the rows whose ids are in ``spans``; None
    if all rows are read."""
    if sum(span.size for span in spans) == place.rows:
        return batch, None
    bounds = np.array(spans, dtype=np.int64).reshape(-1)
    if place.end_id - place.first_id == place.rows:  # without gaps, row = id - first id
        bounds -= place.first_id
    else:
        bounds = np.searchsorted(ids_of(batch), bounds)
    if len(spans) == 1:
        return batch.slice(int(bounds[0]), int(bounds[1] - bounds[0])), None
    # Even entries of `bounds` are starts and odd ones are ends, so the running sum is 1 in the rows
    # to read and 0 elsewhere.
    steps = np.zeros(batch.num_rows + 1, dtype=np.int8)
    np.add.at(steps, bounds[0::2], 1)
    np.add.at(steps, bounds[1::2], -1)
    return batch, np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)
