"""A segment that grows: batches are added behind those it has, where its old footer was.

At every moment that matters it is a plain Arrow IPC file. What lies before the old footer is
never touched, so an index of the file as it was stays true, whatever becomes of the new bytes.
The checksum in the index of such a file is that of its tail (end mark and footer): each batch
has its own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from penstock.columns.files.segments import (
    ROWS_PER_BATCH,
    SegmentBatch,
    SegmentIndex,
    checked_table,
    ids_of_column,
)
from penstock.columns.selectors.summaries import summary_of
from penstock.core.vocabulary.errors import Damaged, InvalidArgument

_MAGIC = b"ARROW1"
_START = _MAGIC + b"\0\0"
_END_OF_BATCHES = b"\xff\xff\xff\xff\0\0\0\0"
_BLOCK = struct.Struct("<qi4xq")
"""Footer entry of a batch: offset, bytes of its metadata, bytes of its body."""
_BATCHES_FIELD = 10
"""Where the footer's table of fields says where the list of batches is (Arrow format)."""

Buffer = bytes | bytearray | memoryview


class Growth(Struct, frozen=True):
    """What to write to a file, and its index once that is done."""

    at: int
    """Everything from this byte on is replaced."""
    chunks: tuple[Buffer, ...]
    index: SegmentIndex
    added: tuple[SegmentBatch, ...]


def growing_name(folder: str, number: int) -> str:
    """The blob name of the ``number``-th file of a channel whose events are in a single file."""
    return f"segments/{folder}/events.{number:08d}.arrow"


def number_in(name: str) -> int:
    """The number in a name :func:`growing_name` made; 0 for any other name."""
    parts = name.rpartition("/")[2].split(".")
    return int(parts[1]) if parts[0] == "events" and len(parts) == 3 else 0


def started(
    batches: Sequence[pa.RecordBatch],
    *,
    rows_per_batch: int = ROWS_PER_BATCH,
    note: Mapping[bytes, bytes] | None = None,
) -> Growth:
    """A new file of all rows of ``batches``, with ``note`` in the metadata of its schema. Raises
    as :func:`.segments.encode_segment` does."""
    table = checked_table(batches).replace_schema_metadata(note)
    schema = table.schema.serialize().to_pybytes()
    head = _START + schema
    messages, places = _encoded(table, rows_per_batch, at=len(head))
    tail = tail_of(table.schema, _blocks_of(messages, places))
    index = SegmentIndex(
        first_id=places[0].first_id,
        end_id=places[-1].end_id,
        rows=table.num_rows,
        size=end_of_batches(places) + len(tail),
        checksum=xxh3_64_intdigest(tail),
        schema=schema,
        batches=places,
    )
    return Growth(0, (head, *messages, tail), index, places)


def extended(
    index: SegmentIndex,
    tail: Buffer,
    batches: Sequence[pa.RecordBatch],
    *,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> Growth:
    """What makes the file of ``index``, which ends in ``tail``, hold ``batches`` too.

    Their schema is the file's and their ids are above all in it; ``InvalidArgument`` otherwise.
    Raises ``Damaged`` when ``tail`` is not what the index says.
    """
    noted = pa.ipc.read_schema(pa.py_buffer(index.schema)).metadata
    table = checked_table(batches).replace_schema_metadata(noted)
    if table.schema.serialize().to_pybytes() != index.schema:
        raise InvalidArgument("events of another schema cannot be added to a file")
    at = end_of_batches(index.batches)
    if len(tail) != index.size - at or xxh3_64_intdigest(tail) != index.checksum:
        raise Damaged(f"the footer at byte {at} is not the one that was written")
    messages, places = _encoded(table, rows_per_batch, at=at)
    if places[0].first_id < index.end_id:
        raise InvalidArgument(
            f"event {places[0].first_id} cannot be added behind event {index.end_id - 1}"
        )
    fresh = tail_of(table.schema, _blocks_in(tail) + _blocks_of(messages, places))
    size = end_of_batches(places) + len(fresh)
    grown = grown_index(index, places, size, xxh3_64_intdigest(fresh))
    return Growth(at, (*messages, fresh), grown, places)


def grown_index(
    index: SegmentIndex, added: tuple[SegmentBatch, ...], size: int, checksum: int
) -> SegmentIndex:
    """The index of a file of ``size`` bytes after ``added`` batches have come."""
    return replace(
        index,
        end_id=added[-1].end_id,
        rows=index.rows + sum(place.rows for place in added),
        size=size,
        checksum=checksum,
        batches=index.batches + added,
    )


def end_of_batches(batches: Sequence[SegmentBatch]) -> int:
    """Where the tail of a file starts."""
    return batches[-1].offset + batches[-1].length


def has_its_tail(file: memoryview, index: SegmentIndex) -> bool:
    """Whether the file ends as its index says: then plain Arrow readers can open it."""
    at = end_of_batches(index.batches)
    return len(file) == index.size and xxh3_64_intdigest(file[at:]) == index.checksum


def mended_tail(file: memoryview, index: SegmentIndex) -> bytes:
    """The tail that belongs behind the batches of ``index``, found again from the batches.

    A batch that does not even start as one is left out of it: plain readers do not see it.
    """
    blocks = []
    for place in index.batches:
        head = bytes(file[place.offset : place.offset + 8])
        marker, length = struct.unpack("<ii", head) if len(head) == 8 else (0, 0)
        if marker == -1 and 0 < length < place.length:
            blocks.append(_BLOCK.pack(place.offset, 8 + length, place.length - 8 - length))
    return tail_of(pa.ipc.read_schema(pa.py_buffer(index.schema)), b"".join(blocks))


def tail_of(schema: pa.Schema, blocks: bytes) -> bytes:
    """End mark and footer of an Arrow file whose batches are where ``blocks`` say.

    Arrow writes the footer of a file without batches; the list of batches is put behind it and
    the footer made to refer to it: its parts may lie in any order.
    """
    sink = pa.BufferOutputStream()
    pa.ipc.new_file(sink, schema).close()
    empty = sink.getvalue().to_pybytes()
    footer = bytearray(_footer(empty))
    reference = _batches_reference(footer)
    footer += bytes((4 - len(footer)) % 8)  # entries are aligned to 8, their count precedes them
    struct.pack_into("<I", footer, reference, len(footer) - reference)
    footer += struct.pack("<I", len(blocks) // _BLOCK.size) + blocks
    return _END_OF_BATCHES + footer + struct.pack("<i", len(footer)) + _MAGIC


def _encoded(
    table: pa.Table, rows_per_batch: int, *, at: int
) -> tuple[list[memoryview], tuple[SegmentBatch, ...]]:
    messages: list[memoryview] = []
    places = []
    for batch in table.combine_chunks().to_batches(max_chunksize=rows_per_batch):
        ids = ids_of_column(batch.column(0))
        message = batch.serialize()
        checksum = xxh3_64_intdigest(message)
        first, end = int(ids[0]), int(ids[-1]) + 1
        summary = summary_of(batch)
        places.append(SegmentBatch(first, end, batch.num_rows, at, message.size, checksum, summary))
        messages.append(memoryview(message))
        at += message.size
    return messages, tuple(places)


def _blocks_of(messages: Sequence[memoryview], places: Sequence[SegmentBatch]) -> bytes:
    blocks = []
    for message, place in zip(messages, places, strict=True):
        metadata = 8 + struct.unpack_from("<i", message, 4)[0]
        blocks.append(_BLOCK.pack(place.offset, metadata, place.length - metadata))
    return b"".join(blocks)


def _blocks_in(tail: Buffer) -> bytes:
    """The entries of the batches in a footer."""
    footer = _footer(bytes(tail))
    reference = _batches_reference(footer)
    start = reference + struct.unpack_from("<I", footer, reference)[0]
    (count,) = struct.unpack_from("<I", footer, start)
    return footer[start + 4 : start + 4 + count * _BLOCK.size]


def _footer(file: bytes) -> bytes:
    (length,) = struct.unpack("<i", file[-10:-6])
    return file[-10 - length : -10]


def _batches_reference(footer: Buffer) -> int:
    """Where the footer (a flatbuffer) keeps the distance to its list of batches."""
    (table,) = struct.unpack_from("<I", footer, 0)
    (back,) = struct.unpack_from("<i", footer, table)
    (field,) = struct.unpack_from("<H", footer, table - back + _BATCHES_FIELD)
    assert field, "Arrow writes the list even when it is empty"
    return int(table + field)
