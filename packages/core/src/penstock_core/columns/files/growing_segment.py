"""A segment that grows: new batches are appended, starting at the offset of its old footer.

After each finished write it is a plain Arrow IPC file. Bytes before the old footer are never
changed, so the old index of the file stays valid even if writing the new bytes fails. The checksum
in the index of such a file covers its tail (end mark and footer) only, because each batch has its
own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from penstock_core.columns.files.segments import (
    ROWS_PER_BATCH,
    SegmentBatch,
    SegmentIndex,
    checked_table,
    ids_of_column,
)
from penstock_core.columns.schema.ipc import file_message
from penstock_core.columns.selectors.summaries import summary_of
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.errors import Damaged, InvalidArgument

_MAGIC = b"ARROW1"
"""First and last bytes of an Arrow file."""
_START = _MAGIC + b"\0\0"
"""Start of a file: the magic bytes, padded to eight bytes."""
_END_OF_BATCHES = b"\xff\xff\xff\xff\0\0\0\0"
"""The mark after the last batch: a message without metadata."""
_BLOCK = struct.Struct("<qi4xq")
"""Footer entry of a batch: offset, size of its metadata and size of its body, in bytes."""
_BATCHES_FIELD = 10
"""Position, in the footer's flatbuffer vtable, of the list of batches (Arrow format)."""

Buffer = bytes | bytearray | memoryview


class Growth(Struct, frozen=True):
    """The bytes to write to a file, and the index of the file after the write."""

    at: int
    """Offset in bytes. The chunks replace everything from this offset on."""
    chunks: tuple[Buffer, ...]
    """The bytes to write."""
    index: SegmentIndex
    """Index of the file after the write."""
    added: tuple[SegmentBatch, ...]
    """The part of the index for the new batches."""


def growing_name(folder: str, number: int) -> str:
    """Return the blob name of the ``number``-th file of a channel whose events are in a single
    file."""
    return f"segments/{folder}/events.{number:08d}.arrow"


def number_in(name: str) -> int:
    """Return the number in a name made by :func:`growing_name`; 0 for other names."""
    parts = name.rpartition("/")[2].split(".")
    return int(parts[1]) if parts[0] == "events" and len(parts) == 3 else 0


def started(
    batches: Sequence[pa.RecordBatch],
    *,
    rows_per_batch: int = ROWS_PER_BATCH,
    note: Mapping[bytes, bytes] | None = None,
    compression: Compression = "none",
) -> Growth:
    """Return the write of a new file with all rows of ``batches``.

    ``note`` is added to the metadata of its schema. Raises the errors of
    :func:`.segments.encode_segment`.
    """
    table = checked_table(batches).replace_schema_metadata(note)
    schema = table.schema.serialize().to_pybytes()
    head = _START + schema
    messages, places = _encoded(table, rows_per_batch, compression, offset=len(head))
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
    return Growth(0, (head, *messages, tail), index, added=places)


def extended(
    index: SegmentIndex,
    tail: Buffer,
    batches: Sequence[pa.RecordBatch],
    *,
    rows_per_batch: int = ROWS_PER_BATCH,
    compression: Compression = "none",
) -> Growth:
    """Return the write that appends ``batches`` to the file of ``index``, whose last bytes are
    ``tail``.

    Raises ``InvalidArgument`` unless the batches have the schema of the file and ids above all ids
    in it, and ``Damaged`` if ``tail`` does not match the index.
    """
    note = pa.ipc.read_schema(pa.py_buffer(index.schema)).metadata
    table = checked_table(batches).replace_schema_metadata(note)
    if table.schema.serialize().to_pybytes() != index.schema:
        raise InvalidArgument("the events have another schema than the file; start a new file")
    tail_start = end_of_batches(index.batches)
    # The new footer repeats the list of batches of the old one, which must not be damaged.
    if len(tail) != index.size - tail_start or xxh3_64_intdigest(tail) != index.checksum:
        raise Damaged(f"the footer at byte {tail_start} does not match its checksum in the index")
    messages, places = _encoded(table, rows_per_batch, compression, offset=tail_start)
    if places[0].first_id < index.end_id:
        raise InvalidArgument(
            f"event {places[0].first_id} cannot be added after event {index.end_id - 1}"
        )
    new_tail = tail_of(table.schema, _blocks_in(tail) + _blocks_of(messages, places))
    size = end_of_batches(places) + len(new_tail)
    grown = grown_index(index, places, size, checksum=xxh3_64_intdigest(new_tail))
    return Growth(tail_start, (*messages, new_tail), grown, added=places)


def grown_index(
    index: SegmentIndex, added: tuple[SegmentBatch, ...], size: int, checksum: int
) -> SegmentIndex:
    """Return the index of a file after ``added`` batches were appended and it has ``size``
    bytes."""
    return replace(
        index,
        end_id=added[-1].end_id,
        rows=index.rows + sum(place.rows for place in added),
        size=size,
        checksum=checksum,
        batches=index.batches + added,
    )


def end_of_batches(batches: Sequence[SegmentBatch]) -> int:
    """Return the offset of the tail in bytes: the end of the last batch."""
    return batches[-1].offset + batches[-1].length


def has_its_tail(file: memoryview, index: SegmentIndex) -> bool:
    """Whether the file ends as recorded in its index, so that plain Arrow readers can open it."""
    tail_start = end_of_batches(index.batches)
    return len(file) == index.size and xxh3_64_intdigest(file[tail_start:]) == index.checksum


def tail_or_rebuilt(file: memoryview, index: SegmentIndex) -> bytes:
    """Return the tail of ``file`` as recorded in its index, or a rebuilt tail.

    If the file ends differently, bytes were appended but the append was not recorded, so the tail
    is rebuilt from the batches. The checksum of a rebuilt tail differs from the index if batches
    are also damaged. The result is empty if batches are missing.
    """
    tail_start = end_of_batches(index.batches)
    tail = bytes(file[tail_start : index.size])  # a copy, since the file may be extended meanwhile
    if len(file) == index.size and xxh3_64_intdigest(tail) == index.checksum:
        return tail
    return rebuilt_tail(file, index) if len(file) >= tail_start else b""


def rebuilt_tail(file: memoryview, index: SegmentIndex) -> bytes:
    """Return the tail that belongs after the batches of ``index``, rebuilt from the batches.

    A batch with a damaged header is left out, so plain readers do not see it.
    """
    blocks = []
    for place in index.batches:
        head = bytes(file[place.offset : place.offset + 8])
        marker, length = struct.unpack("<ii", head) if len(head) == 8 else (0, 0)
        # An encapsulated message begins with -1 and the size of its metadata.
        if marker == -1 and 0 < length < place.length:
            blocks.append(_BLOCK.pack(place.offset, 8 + length, place.length - 8 - length))
    return tail_of(pa.ipc.read_schema(pa.py_buffer(index.schema)), b"".join(blocks))


def tail_of(schema: pa.Schema, blocks: bytes) -> bytes:
    """Return end mark and footer of an Arrow file with batches at the offsets in ``blocks``.

    Arrow itself writes the footer of a file without batches. The list of batches is appended and
    the footer patched to refer to it: parts of a flatbuffer may be in any order.
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
    table: pa.Table, rows_per_batch: int, compression: Compression, *, offset: int
) -> tuple[list[memoryview], tuple[SegmentBatch, ...]]:
    """Return the messages of a table's batches, and the index entries of the batches."""
    messages: list[memoryview] = []
    places = []
    for batch in table.combine_chunks().to_batches(max_chunksize=rows_per_batch):
        ids = ids_of_column(batch.column(0))
        message = file_message(batch, compression)
        checksum = xxh3_64_intdigest(message)
        first, end = int(ids[0]), int(ids[-1]) + 1
        summary = summary_of(batch)
        places.append(
            SegmentBatch(
                first,
                end,
                batch.num_rows,
                offset=offset,
                length=message.size,
                checksum=checksum,
                summary=summary,
            )
        )
        messages.append(memoryview(message))
        offset += message.size
    return messages, tuple(places)


def _blocks_of(messages: Sequence[memoryview], places: Sequence[SegmentBatch]) -> bytes:
    """Return the entries of new batches in the footer."""
    blocks = []
    for message, place in zip(messages, places, strict=True):
        metadata = 8 + struct.unpack_from("<i", message, 4)[0]
        blocks.append(_BLOCK.pack(place.offset, metadata, place.length - metadata))
    return b"".join(blocks)


def _blocks_in(tail: Buffer) -> bytes:
    """Return the bytes of the footer's list of batches."""
    footer = _footer(bytes(tail))
    reference = _batches_reference(footer)
    start = reference + struct.unpack_from("<I", footer, reference)[0]
    (count,) = struct.unpack_from("<I", footer, start)
    return footer[start + 4 : start + 4 + count * _BLOCK.size]


def _footer(file: bytes) -> bytes:
    """Return the footer of a file, or of its tail."""
    (length,) = struct.unpack("<i", file[-10:-6])
    return file[-10 - length : -10]


def _batches_reference(footer: Buffer) -> int:
    """Return the offset, inside the footer, of the field that points to its list of batches."""
    # A flatbuffer begins with the offset of its root table. The table begins with the distance back
    # to its vtable, which has the offset of each field from the start of the table.
    (table,) = struct.unpack_from("<I", footer, 0)
    (distance,) = struct.unpack_from("<i", footer, table)
    (field,) = struct.unpack_from("<H", footer, table - distance + _BATCHES_FIELD)
    assert field, "Arrow writes the list even when it is empty"
    return int(table + field)
