"""Reading events from the realm's sealed files, without the realm.

A file of this machine is mapped, not copied: what Spark is handed are slices of it. Where a copy of
the data directory is named, files are read there.
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
"""Record batches a process remembers as sound: those of about 17 billion events."""

_verified: set[tuple[str, int, int, int]] = set()
"""The file, inode, offset and checksum of bytes that this process has verified. A file never
changes where it was written, and computing checksums takes most of the time of a read."""


def is_here(part: FileRows) -> bool:
    """Whether this machine has the file, and it is the one that is meant."""
    try:
        return Path(part.path).stat().st_size >= part.size  # a single file grows
    except OSError:
        return False


class CopiedFile(NamedTuple):
    """A file in a copy."""

    copy: Copy
    file: Any


class Absent(NamedTuple):
    """A file that cannot be read here, and why."""

    why: str


def opened(part: FileRows, copy: Copy | None) -> CopiedFile | Absent | None:
    """The file, where it is read: in the ``copy`` where one is named, else where the realm has it
    (None)."""
    if copy is None:
        return None if is_here(part) else Absent(f"{part.path} cannot be read here")
    if not part.name:
        return Absent("the realm does not report the names of its files: it is an older version")
    try:
        return CopiedFile(copy, copy.open(part.name, part.size))
    except (MissingInCopy, OSError) as error:
        return Absent(str(error))


def stored_batches(
    part: FileRows, found: CopiedFile | None = None
) -> Iterator[tuple[pa.RecordBatch, Mask | None, Span]]:
    """The record batches of a file as they are stored, with the wanted rows (None: all) and their
    ids. Raises ``Damaged`` for a batch that fails its checksum or cannot be unpacked, ``OSError``
    for a file that is gone."""
    schema = schema_from(part.schema)
    messages = _mapped(part) if found is None else _copied(part, found)
    at = 0
    for place, message in zip(part.batches, messages, strict=True):
        spans = []
        while at < len(part.spans) and part.spans[at].first < place.end_id:
            spans.append(part.spans[at].clipped(place.span))
            at += 1
        wanted = Span(spans[0].first, spans[-1].end)
        try:
            stored = file_batch_from(message, schema)
        except Damaged as error:
            where = f"{part.path}: events {place.first_id}-{place.end_id - 1}"
            raise Damaged(f"{where}: {error}") from error
        yield *_wanted(stored, place, tuple(spans)), wanted


def _mapped(part: FileRows) -> Iterator[pa.Buffer]:
    """Verified once in the life of a process, as the realm does. Raises ``Damaged``."""
    with pa.memory_map(part.path) as file:
        buffer = file.read_buffer()
        inode = Path(part.path).stat().st_ino
    for place in part.batches:
        message = buffer.slice(place.offset, place.length)
        known = (part.path, inode, place.offset, place.checksum)
        if known not in _verified:
            _verify(message, place, part.path)
            if len(_verified) >= VERIFIED_MAX:
                _verified.clear()
            _verified.add(known)
        yield message


def _copied(part: FileRows, found: CopiedFile) -> Iterator[pa.Buffer]:
    """Batches from a copy, verified each time, because the bytes are read anew. Raises
    ``Damaged``."""
    messages = found.copy.messages(found.file, part.name, part.batches)
    for place, message in zip(part.batches, messages, strict=True):
        _verify(message, place, f"{part.name} in {found.copy!r}")
        yield message


def _verify(message: pa.Buffer, place: SegmentBatch, path: str) -> None:
    if xxh3_64_intdigest(message) != place.checksum:
        raise Damaged(
            f"{path}: events {place.first_id}-{place.end_id - 1}: bytes {place.offset}-"
            f"{place.offset + place.length} fail their checksum"
        )


def _wanted(
    batch: pa.RecordBatch, place: SegmentBatch, spans: Spans
) -> tuple[pa.RecordBatch, Mask | None]:
    if sum(span.size for span in spans) == place.rows:
        return batch, None
    edges = np.array(spans, dtype=np.int64).reshape(-1)
    if place.end_id - place.first_id == place.rows:  # ids follow from positions
        edges -= place.first_id
    else:
        edges = np.searchsorted(ids_of(batch), edges)
    if len(spans) == 1:
        return batch.slice(int(edges[0]), int(edges[1] - edges[0])), None
    changes = np.zeros(batch.num_rows + 1, dtype=np.int8)
    np.add.at(changes, edges[0::2], 1)
    np.add.at(changes, edges[1::2], -1)
    return batch, np.cumsum(changes[:-1], dtype=np.int8).astype(np.bool_)
