"""Sealed segments: Arrow IPC files of one channel's events that anything can read.

A segment is a plain, uncompressed Arrow file whose first column is ``event_id``, so pyarrow,
DuckDB and Spark read it without this package. The index, kept in the manifest, says where each
record batch lies and what its checksum is: a reader maps the file, goes straight to the batches
it needs, and one damaged batch hides only its own events (SEM S1).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from penstock.core.ids.ids import Span
from penstock.core.vocabulary.errors import Damaged, InvalidArgument
from penstock.core.vocabulary.names import file_part

ROWS_PER_BATCH = 16_384
"""Rows of a record batch in a segment, unless the caller knows better."""

ID_COLUMN = "event_id"

_first = itemgetter(0)


class SegmentBatch(Struct, frozen=True, array_like=True):
    """Where one record batch lies in a segment."""

    first_id: int
    end_id: int
    """One more than the newest id."""
    rows: int
    offset: int
    """Of the encapsulated IPC message in the file."""
    length: int
    checksum: int
    """xxh3_64 of that message."""
    summary: bytes = b""
    """What selectors can tell of it without reading it; empty where nobody has looked."""

    @property
    def span(self) -> Span:
        return Span(self.first_id, self.end_id)


class SegmentIndex(Struct, frozen=True, array_like=True):
    """What the manifest knows about a segment."""

    first_id: int
    end_id: int
    """One more than the newest id."""
    rows: int
    size: int
    """Bytes of the file."""
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
        """The bytes as ``Blobs.put`` takes them."""
        return (memoryview(self.buffer),)


def segment_folder(name: str, number: int, newest: str = "") -> str:
    """Where the files of channel ``number`` lie below ``segments``; ``newest`` is the last of them.

    The number tells the folders of channels apart whose names were cut, or differ in case only.
    Where an earlier version has begun, with a folder for each part of a name, it goes on.
    """
    before = f"{name}.{number}"
    return before if newest.startswith(f"segments/{before}/") else f"{file_part(name)}.{number}"


def segment_name(folder: str, first_id: int, end_id: int) -> str:
    """The blob name of the segment with the ids ``first_id .. end_id - 1``."""
    return f"segments/{folder}/{first_id:020d}-{end_id - 1:020d}.arrow"


def encode_segment(
    batches: Sequence[pa.RecordBatch],
    *,
    rows_per_batch: int = ROWS_PER_BATCH,
    note: Mapping[bytes, bytes] | None = None,
) -> SegmentImage:
    """One file of all rows of ``batches``, in record batches of ``rows_per_batch`` rows; ``note``
    is put into the metadata of its schema.

    All batches have the same schema, whose first column is ``event_id``: int64, no nulls, and
    ascending over all of them; ids may be left out. Raises ``InvalidArgument`` otherwise, and
    for dictionary-encoded columns: a batch could not be read without its dictionary.
    """
    if rows_per_batch < 1:
        raise InvalidArgument(f"rows_per_batch is {rows_per_batch}; at least 1 is needed")
    # Who reads segments needs none of it, and it brings all of the selectors.
    from penstock.columns.selectors.summaries import summary_of

    table = checked_table(batches).replace_schema_metadata(note)
    record_batches = table.combine_chunks().to_batches(max_chunksize=rows_per_batch)
    measured = pa.MockOutputStream()
    _write(measured, table.schema, record_batches)
    buffer = pa.allocate_buffer(measured.size())  # what grows as it is written is copied each time
    with pa.FixedSizeBufferWriter(buffer) as sink:
        ends = _write(sink, table.schema, record_batches)
    spans: list[tuple[int, int, int]] = []
    summaries = []
    for batch in record_batches:
        ids = ids_of_column(batch.column(0))
        spans.append((int(ids[0]), int(ids[-1]) + 1, batch.num_rows))
        summaries.append(summary_of(batch))
    places = pairwise([_schema_end(buffer), *ends])
    found = tuple(
        SegmentBatch(
            *span, start, end - start, xxh3_64_intdigest(buffer.slice(start, end - start)), summary
        )
        for span, (start, end), summary in zip(spans, places, summaries, strict=True)
    )
    index = SegmentIndex(
        first_id=found[0].first_id,
        end_id=found[-1].end_id,
        rows=table.num_rows,
        size=buffer.size,
        checksum=xxh3_64_intdigest(buffer),
        schema=table.schema.serialize().to_pybytes(),
        batches=found,
    )
    return SegmentImage(buffer, index)


def _write(sink: pa.NativeFile, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> list[int]:
    """Put a whole file down; where each of its record batches ends."""
    ends = []
    options = pa.ipc.IpcWriteOptions(compression=None)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())
    return ends


class SegmentReader:
    """Reads ids out of a mapped segment without copying.

    The checksum of a record batch is verified when it is first read. A damaged one raises
    ``Damaged`` naming the segment, the batch and its ids; all others stay readable.
    """

    __slots__ = ("_batches", "_buffer", "_name", "_schema", "index")

    def __init__(
        self, buffer: memoryview | pa.Buffer, index: SegmentIndex, *, name: str = "segment"
    ) -> None:
        self.index = index
        self._name = name
        self._buffer = pa.py_buffer(buffer)
        self._schema = pa.ipc.read_schema(pa.py_buffer(index.schema)).remove_metadata()
        self._batches: list[pa.RecordBatch | None] = [None] * len(index.batches)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def read(
        self, span: Span, on_damage: Callable[[Damaged, Span], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The events with ids in ``span``, oldest first, as slices of the mapped file.

        A damaged batch raises ``Damaged``; with ``on_damage`` it is told there instead, with
        the ids that cannot be read, and reading goes on behind it.
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
            within = _slice(batch, place, span)
            if within.num_rows:
                yield within

    def gather(
        self, spans: Sequence[Span], on_damage: Callable[[Damaged, Span], None]
    ) -> Iterator[tuple[Sequence[Span], pa.RecordBatch]]:
        """The events with ids in ``spans``, which ascend and do not touch, in as few batches as
        the file has, each with the spans it is of: where they are many and small, far less work
        than reading each. There may be fewer: ids that are not in the file.

        What is damaged is told to ``on_damage``, as when reading.
        """
        ends = [end for _, end in spans]
        for number, place in enumerate(self.index.batches):
            start = bisect_right(ends, place.first_id)
            stop = bisect_left(spans, place.end_id, start, key=_first)
            if start == stop:
                continue
            parts = [spans[start].clipped(place.span), *spans[start + 1 : stop]]
            parts[-1] = parts[-1].clipped(place.span)
            try:
                batch = self.batch(number)
            except Damaged as error:
                for part in parts:
                    on_damage(error, part)
                continue
            within = _slice(batch, place, parts[0]) if len(parts) == 1 else rows_of(batch, parts)
            if within.num_rows:
                yield parts, within

    def batch(self, number: int) -> pa.RecordBatch:
        """One whole record batch of the segment. Raises ``Damaged``."""
        found = self._batches[number]
        if found is None:
            found = self._batches[number] = self._verified(number)
        return found

    def check(self) -> list[str]:
        """Read every batch; what is wrong with those that are damaged."""
        found = []
        for number in range(len(self.index.batches)):
            try:
                self.batch(number)
            except Damaged as error:
                found.append(str(error))
        return found

    def _verified(self, number: int) -> pa.RecordBatch:
        place = self.index.batches[number]
        ids = f"batch {number}, events {place.first_id}-{place.end_id - 1}"
        if place.offset + place.length > self._buffer.size:
            raise Damaged(
                f"{self._name}: {ids}: the file ends at byte {self._buffer.size}, "
                f"the batch at {place.offset + place.length}"
            )
        message = self._buffer.slice(place.offset, place.length)
        if xxh3_64_intdigest(message) != place.checksum:
            raise Damaged(
                f"{self._name}: {ids}: bytes {place.offset}-{place.offset + place.length} "
                "fail their checksum"
            )
        return pa.ipc.read_record_batch(message, self._schema)


def rows_of(batch: pa.RecordBatch, spans: Sequence[Span]) -> pa.RecordBatch:
    """The rows of a batch whose ids are in ``spans``, which ascend and do not touch."""
    edges = np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans))
    places = np.searchsorted(ids_of_column(batch.column(0)), edges)
    if len(spans) == 1:
        return batch.slice(int(places[0]), int(places[1] - places[0]))
    return batch.take(pa.array(numbers_in(places[0::2], places[1::2])))


def numbers_in(firsts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers of all these half-open ranges, one range after the other."""
    sizes = ends - firsts
    before = np.cumsum(sizes) - sizes
    numbers: npt.NDArray[np.int64] = np.arange(sizes.sum()) + np.repeat(firsts - before, sizes)
    return numbers


def _schema_end(file: pa.Buffer) -> int:
    """Where the first record batch starts: the writer puts the schema down together with it."""
    magic, marker, length = struct.unpack("<8sIi", file.slice(0, 16).to_pybytes())
    assert magic == b"ARROW1\0\0", "an Arrow file starts so"
    assert marker == 0xFFFFFFFF, "then comes the schema, as an encapsulated message"
    return 16 + int(length)


def _slice(batch: pa.RecordBatch, place: SegmentBatch, span: Span) -> pa.RecordBatch:
    if span.first <= place.first_id and span.end >= place.end_id:
        return batch
    if place.end_id - place.first_id == place.rows:  # no gaps: ids are positions
        start = max(span.first - place.first_id, 0)
        return batch.slice(start, min(span.end, place.end_id) - place.first_id - start)
    ids = ids_of_column(batch.column(0))
    start, end = np.searchsorted(ids, [span.first, span.end])
    return batch.slice(int(start), int(end - start))


def ids_of_column(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> npt.NDArray[np.int64]:
    """Event ids as numbers."""
    return np.asarray(column.to_numpy(), dtype=np.int64)


def checked_table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """All rows of ``batches``, if they may be a segment. Raises ``InvalidArgument``."""
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
