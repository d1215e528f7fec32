"""Sealed segments: files with events of one channel, readable by any Arrow program.

A segment is a plain Arrow file whose first column is ``event_id``, so pyarrow, DuckDB and Spark
read it without this package. Its batches are compressed if the channel sets
``storage.compression``, each buffer separately, as the Arrow format defines. The index, kept in the
manifest, has the position and checksum of each record batch. A reader maps the file and accesses
only the batches it needs; a damaged batch makes only its own events unreadable (SEM S1).
Uncompressed batches are read in place; compressed batches have to be unpacked into memory first.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, Final
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from penstock_core.columns.schema.ipc import (
    file_batch_from,
    file_options,
    is_compressed,
    unpacked_size,
)
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.errors import Damaged, InvalidArgument
from penstock_core.vocabulary.names import file_part

ROWS_PER_BATCH = 16_384
"""Default number of rows of a record batch in a segment."""

UNPACKED_MAX: Final = 2
"""Maximum number of compressed batches of a file that a reader keeps in memory."""

UNPACKED_BYTES_MAX: Final = 256 << 20
"""Maximum number of bytes of unpacked batches that all readers of a process keep together. The
newest batch is kept in any case.

The limit is per process, because hundreds of mapped files are kept open.
"""

ALL_UNPACKED_MAX: Final = 1_024
"""Maximum number of unpacked batches that all readers keep together. The limit exists because their
sizes are added up for each new batch."""

ID_COLUMN = "event_id"
"""Name of the first column of a segment."""

_first = itemgetter(0)


class SegmentBatch(Struct, frozen=True, array_like=True):
    """The index entry of one record batch in a segment."""

    first_id: int
    """The lowest id in the batch."""
    end_id: int
    """The highest id in the batch plus one."""
    rows: int
    offset: int
    """Offset, in bytes, of the encapsulated IPC message in the file."""
    length: int
    checksum: int
    """xxh3_64 of the message."""
    summary: bytes = b""
    """Statistics that let selectors skip the batch; empty if they were not computed."""

    @property
    def span(self) -> Span:
        return Span(self.first_id, self.end_id)


class SegmentIndex(Struct, frozen=True, array_like=True):
    """The index of a segment, kept in the manifest."""

    first_id: int
    """The lowest id in the file."""
    end_id: int
    """The highest id in the file plus one."""
    rows: int
    size: int
    """Size of the file in bytes."""
    checksum: int
    """xxh3_64 of the file."""
    schema: bytes
    """The schema as an IPC message."""
    batches: tuple[SegmentBatch, ...]


class SegmentImage(Struct, frozen=True):
    """A segment before it is stored: its bytes and its index."""

    buffer: pa.Buffer
    index: SegmentIndex

    @property
    def chunks(self) -> Sequence[memoryview]:
        """The bytes in the form that ``Blobs.put`` takes."""
        return (memoryview(self.buffer),)


def segment_folder(name: str, number: int, newest: str = "") -> str:
    """Return the folder below ``segments`` for the files of channel ``number``.

    The number separates the folders of channels whose names were shortened or differ only in case.
    ``newest`` is the name of the channel's newest file. If an earlier version of Penstock wrote
    that file, the channel has one folder for each part of its name, and keeps using it.
    """
    former_folder = f"{name}.{number}"
    return (
        former_folder
        if newest.startswith(f"segments/{former_folder}/")
        else f"{file_part(name)}.{number}"
    )


def segment_name(folder: str, first_id: int, end_id: int) -> str:
    """Return the blob name of the segment with the ids ``first_id .. end_id - 1``."""
    return f"segments/{folder}/{first_id:020d}-{end_id - 1:020d}.arrow"


def encode_segment(
    batches: Sequence[pa.RecordBatch],
    *,
    rows_per_batch: int = ROWS_PER_BATCH,
    note: Mapping[bytes, bytes] | None = None,
    compression: Compression = "none",
) -> SegmentImage:
    """Return one file with all rows of ``batches``, in compressed record batches of
    ``rows_per_batch`` rows.

    ``note`` is added to the metadata of its schema. All batches have one schema, whose first column
    is ``event_id``: int64, without nulls, ascending over all batches; gaps are allowed. Raises
    ``InvalidArgument`` otherwise, and for dictionary-encoded columns, because such a batch could
    not be read without its dictionary.
    """
    if rows_per_batch < 1:
        raise InvalidArgument(f"rows_per_batch is {rows_per_batch}; it must be at least 1")
    # Imported here because it loads all selectors, which readers of segments do not need.
    from penstock_core.columns.selectors.summaries import summary_of

    table = checked_table(batches).replace_schema_metadata(note)
    record_batches = table.combine_chunks().to_batches(max_chunksize=rows_per_batch)
    buffer, ends = _written(table.schema, record_batches, compression)
    spans: list[tuple[int, int, int]] = []
    summaries = []
    for batch in record_batches:
        ids = ids_of_column(batch.column(0))
        spans.append((int(ids[0]), int(ids[-1]) + 1, batch.num_rows))
        summaries.append(summary_of(batch))
    # Each batch begins where the schema, or the batch before it, ends.
    places = pairwise([_schema_end(buffer), *ends])
    segment_batches = tuple(
        SegmentBatch(
            *span,
            offset=start,
            length=end - start,
            checksum=xxh3_64_intdigest(buffer.slice(start, end - start)),
            summary=summary,
        )
        for span, (start, end), summary in zip(spans, places, summaries, strict=True)
    )
    index = SegmentIndex(
        first_id=segment_batches[0].first_id,
        end_id=segment_batches[-1].end_id,
        rows=table.num_rows,
        size=buffer.size,
        checksum=xxh3_64_intdigest(buffer),
        schema=table.schema.serialize().to_pybytes(),
        batches=segment_batches,
    )
    return SegmentImage(buffer, index)


def _written(
    schema: pa.Schema, batches: Sequence[pa.RecordBatch], compression: Compression
) -> tuple[pa.Buffer, list[int]]:
    """Return a whole file, and the offset at which each record batch ends, in bytes."""
    options = file_options(compression)
    if compression != "none":  # the size is known only after the compression
        growing = pa.BufferOutputStream()
        ends = _write(growing, schema, batches, options=options)
        return growing.getvalue(), ends
    measured = pa.MockOutputStream()
    _write(measured, schema, batches, options=options)
    buffer = pa.allocate_buffer(measured.size())  # exact size: a growing buffer would be copied
    with pa.FixedSizeBufferWriter(buffer) as sink:
        return buffer, _write(sink, schema, batches, options=options)


def _write(
    sink: pa.NativeFile,
    schema: pa.Schema,
    batches: Sequence[pa.RecordBatch],
    options: pa.ipc.IpcWriteOptions,
) -> list[int]:
    """Write a whole file and return the offset at which each record batch ends, in bytes."""
    ends = []
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())
    return ends


class UnpackedBatches:
    """The compressed batches that readers keep unpacked, within a number of bytes."""

    def __init__(self, bytes_max: int = UNPACKED_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        # Weak references, because the cache must not keep closed files alive.
        self.sizes: dict[tuple[ReferenceType[SegmentReader], int], int] = {}
        """Size in bytes of each batch that a reader keeps unpacked, in the order of unpacking."""

    def make_room(self, newest: tuple[ReferenceType[SegmentReader], int]) -> None:
        """Drop the oldest unpacked batches until the others are within the limits.

        Several threads may call this method at the same time. Each step is atomic, and at worst one
        batch too many is dropped.
        """
        size = sum(list(self.sizes.values()))
        for key in list(self.sizes):
            fits_limits = size <= self.bytes_max and len(self.sizes) <= ALL_UNPACKED_MAX
            if fits_limits or key == newest:
                return
            size -= self.sizes.pop(key, 0)
            reader, number = key[0](), key[1]
            if reader is not None:  # a closed file has no batches to drop
                reader.forget(number)


_UNPACKED: Final = UnpackedBatches()
"""Unpacked batches of all readers of the process."""


class SegmentReader:
    """Reads events from a mapped segment, without copying them unless they are compressed.

    The checksum of a record batch is verified on first read. A damaged batch raises ``Damaged``
    with the segment, the batch and its ids; all other batches stay readable. The last
    :data:`UNPACKED_MAX` compressed batches read stay in memory, unless the batches of all readers
    take more than :data:`UNPACKED_BYTES_MAX`.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_name",
        "_schema",
        "_unpacked",
        "_unpacked_batches",
        "batches",
        "index",
    )

    def __init__(
        self,
        buffer: memoryview | pa.Buffer,
        index: SegmentIndex,
        *,
        name: str = "segment",
        unpacked: UnpackedBatches = _UNPACKED,
    ) -> None:
        self.index, self._unpacked_batches = index, unpacked
        self._name = name
        self._buffer = pa.py_buffer(buffer)
        self._schema = pa.ipc.read_schema(pa.py_buffer(index.schema)).remove_metadata()
        self.batches: list[pa.RecordBatch | None] = [None] * len(index.batches)
        """The record batches that are in memory."""
        self._unpacked: tuple[int, ...] = ()
        """Numbers of the compressed batches that are in memory, the oldest first."""

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def read(
        self, span: Span, on_damage: Callable[[Damaged, Span], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events with ids in ``span``, oldest first, as slices of the mapped file.

        A damaged batch raises ``Damaged``. With ``on_damage``, the error and the ids that cannot be
        read are passed to it instead, and reading continues after the batch.
        """
        for number, place in enumerate(self.index.batches):
            if place.end_id <= span.first or place.first_id >= span.end:
                continue
            try:
                batch = self.batch(number)
            except Damaged as error:
                if on_damage is None:
                    raise
                on_damage(error, Span(place.first_id, place.end_id).clipped(span))
                continue
            in_span = _slice(batch, place, span)
            if in_span.num_rows:
                yield in_span

    def gather(
        self, spans: Sequence[Span], on_damage: Callable[[Damaged, Span], None]
    ) -> Iterator[tuple[Sequence[Span], pa.RecordBatch]]:
        """Yield the events with ids in ``spans``, at most one batch per record batch of the file.

        Each batch is paired with the spans it covers. ``spans`` are ascending and do not touch; ids
        that are not in the file are skipped. For many small spans this is far cheaper than
        :meth:`read` for each. Damage is passed to ``on_damage``, as in :meth:`read`.
        """
        ends = [end for _, end in spans]
        for number, place in enumerate(self.index.batches):
            parts = [*overlapping(spans, ends, place.span)]
            if not parts:
                continue
            # Only the first and the last span can reach beyond the batch.
            parts[0] = parts[0].clipped(place.span)
            parts[-1] = parts[-1].clipped(place.span)
            try:
                batch = self.batch(number)
            except Damaged as error:
                for part in parts:
                    on_damage(error, part)
                continue
            in_spans = _slice(batch, place, parts[0]) if len(parts) == 1 else rows_of(batch, parts)
            if in_spans.num_rows:
                yield parts, in_spans

    def batch(self, number: int) -> pa.RecordBatch:
        """Return record batch ``number`` of the segment. Raises ``Damaged``."""
        batch = self.batches[number]
        if batch is None:
            batch = self.batches[number] = self._verified(number)
            # A batch that is not compressed is a view of the mapped file, which takes no memory.
            if is_compressed(self._message(number)):
                self._keep_unpacked(number)
        return batch

    def forget(self, number: int) -> None:
        """Drop record batch ``number`` from memory; the next access reads it again."""
        self.batches[number] = None

    def _keep_unpacked(self, number: int) -> None:
        """Keep a batch in memory, and drop older ones beyond the limit of this file."""
        # Other threads read this tuple at the same time, so it is replaced as a whole.
        in_memory = (
            *(batch_number for batch_number in self._unpacked if batch_number != number),
            number,
        )
        self._unpacked = in_memory[-UNPACKED_MAX:]
        for batch_number in in_memory[:-UNPACKED_MAX]:
            self.forget(batch_number)
            self._unpacked_batches.sizes.pop((ref(self), batch_number), None)
        newest, sizes = (ref(self), number), self._unpacked_batches.sizes
        sizes.pop(newest, None)  # removed first, so that it is added at the end
        sizes[newest] = self.unpacked_size(number)
        self._unpacked_batches.make_room(newest)

    def unpacked_size(self, number: int) -> int:
        """Return the bytes that record batch ``number`` takes once it is unpacked.

        Reads only the first bytes of the batch and of its buffers. :meth:`batch` reports damage.
        """
        place = self.index.batches[number]
        if place.offset + place.length > self._buffer.size:
            return 0
        return unpacked_size(self._message(number))

    def _message(self, number: int) -> pa.Buffer:
        place = self.index.batches[number]
        return self._buffer.slice(place.offset, place.length)

    def check(self) -> list[str]:
        """Read every batch and return one message for each damaged batch."""
        messages = []
        for number in range(len(self.index.batches)):
            try:
                self.batch(number)
            except Damaged as error:
                messages.append(str(error))
        return messages

    def _verified(self, number: int) -> pa.RecordBatch:
        """Return a batch after checking its position and checksum. Raises ``Damaged``."""
        place = self.index.batches[number]
        ids = f"batch {number}, events {place.first_id}-{place.end_id - 1}"
        if place.offset + place.length > self._buffer.size:
            raise Damaged(
                f"{self._name}: {ids}: the file ends at byte {self._buffer.size}, "
                f"the batch at {place.offset + place.length}"
            )
        message = self._message(number)
        if xxh3_64_intdigest(message) != place.checksum:
            raise Damaged(
                f"{self._name}: {ids}: bytes {place.offset}-{place.offset + place.length} "
                "fail their checksum"
            )
        try:
            return file_batch_from(message, self._schema)
        except Damaged as error:
            raise Damaged(f"{self._name}: {ids}: {error}") from error


def overlapping(spans: Sequence[Span], ends: Sequence[int], other: Span) -> Sequence[Span]:
    """Return the part of ascending ``spans``, whose ends are ``ends``, that overlaps ``other``."""
    start = bisect_right(ends, other.first)
    return spans[start : bisect_left(spans, other.end, start, key=_first)]


def rows_of(batch: pa.RecordBatch, spans: Sequence[Span]) -> pa.RecordBatch:
    """Return the rows of a batch with ids in ``spans``, which are ascending and do not touch."""
    edges = np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans))
    places = np.searchsorted(ids_of_column(batch.column(0)), edges)
    if len(spans) == 1:
        return batch.slice(int(places[0]), int(places[1] - places[0]))
    return batch.take(pa.array(numbers_in(places[0::2], places[1::2])))


def numbers_in(firsts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return all numbers in the half-open ranges, one range after the other."""
    sizes = ends - firsts
    earlier_count = np.cumsum(sizes) - sizes
    numbers: npt.NDArray[np.int64] = np.arange(sizes.sum()) + np.repeat(
        firsts - earlier_count, sizes
    )
    return numbers


def _schema_end(file: pa.Buffer) -> int:
    """Return the offset of the first record batch, from the length of the schema message before
    it."""
    magic, marker, length = struct.unpack("<8sIi", file.slice(0, 16).to_pybytes())
    assert magic == b"ARROW1\0\0", "the magic bytes of an Arrow file"
    assert marker == 0xFFFFFFFF, "the schema follows as an encapsulated message"
    return 16 + int(length)


def _slice(batch: pa.RecordBatch, place: SegmentBatch, span: Span) -> pa.RecordBatch:
    """Return the rows of a batch whose ids are in ``span``."""
    if span.first <= place.first_id and span.end >= place.end_id:
        return batch
    if place.end_id - place.first_id == place.rows:  # no gaps, so offsets follow from ids
        start = max(span.first - place.first_id, 0)
        return batch.slice(start, min(span.end, place.end_id) - place.first_id - start)
    ids = ids_of_column(batch.column(0))
    start, end = np.searchsorted(ids, [span.first, span.end])
    return batch.slice(int(start), int(end - start))


def ids_of_column(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> npt.NDArray[np.int64]:
    """Return the event ids of a column as NumPy integers."""
    return np.asarray(column.to_numpy(), dtype=np.int64)


def checked_table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return all rows of ``batches`` as one table.

    Raises ``InvalidArgument`` if they cannot be a segment (:func:`encode_segment`).
    """
    if not any(batch.num_rows for batch in batches):
        raise InvalidArgument("a segment needs at least one event")
    schema = batches[0].schema
    if not schema.names or schema.names[0] != ID_COLUMN or schema.types[0] != pa.int64():
        raise InvalidArgument(f"the first column of a segment is {ID_COLUMN}, int64; got {schema}")
    for number, batch in enumerate(batches):
        if not batch.schema.equals(schema):
            raise InvalidArgument(f"batch {number} has another schema than the first one")
    for field in schema:
        if _has_dictionary(field.type):
            raise InvalidArgument(
                f"column {field.name} is dictionary-encoded; a segment takes plain values only"
            )
    table = pa.Table.from_batches(batches)
    if table.column(0).null_count:
        raise InvalidArgument(f"{ID_COLUMN} has nulls; every event has an id")
    if not bool(np.all(np.diff(ids_of_column(table.column(0))) > 0)):
        raise InvalidArgument(f"{ID_COLUMN} must ascend over all batches of a segment")
    return table


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))
