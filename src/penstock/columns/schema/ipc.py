"""Batches and schemas as bytes: Arrow IPC messages, one a batch, the schema apart."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from penstock.core.vocabulary.compression import Compression
from penstock.core.vocabulary.errors import Damaged, InvalidEvent

SCHEMAS_MAX: Final = 256
"""Parsed schemas kept; a peer that sends more gets slower, not larger."""

SCHEMA_BYTES_KEPT_MAX: Final = 64 * 1024

INFLATED_MAX: Final = 64
"""A compressed batch may be so many times as large as its bytes: a few of them cannot claim to
be any size inside."""

INFLATED_BYTES_MAX: Final = 64 << 20
"""And no larger than this."""

_RECORD_BATCH: Final = 3
"""The type of record batches among Arrow's messages."""

_UNKNOWN: Final = 1 << 62

_END_BYTES: Final = 8
"""Size of the end marker of a stream."""

_PACKED: Final = ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
_WRITTEN: Final = {
    "zstd": _PACKED,
    "lz4": ipc.IpcWriteOptions(compression="lz4"),
    "none": ipc.IpcWriteOptions(compression=None),
}
"""How the batches of files are written, by the compression that a channel asks for."""

_INT32: Final = struct.Struct("<i").unpack_from
_UINT32: Final = struct.Struct("<I").unpack_from
_INT64: Final = struct.Struct("<q").unpack_from
_PLACE: Final = struct.Struct("<qq").unpack_from
_UINT16: Final = struct.Struct("<H").unpack_from
_INT16: Final = struct.Struct("<h").unpack_from

_REFUSALS: Final = (pa.ArrowException, OSError, EOFError, ValueError)
"""Exceptions that Arrow raises for invalid bytes."""

_schemas: dict[bytes, pa.Schema] = {}
_names: dict[bytes, frozenset[str]] = {}


def schema_bytes(schema: pa.Schema) -> bytes:
    """A schema as an encapsulated IPC message."""
    return bytes(schema.serialize())


def schema_from(message: bytes) -> pa.Schema:
    """The schema in a message; :class:`InvalidEvent` when it is not one."""
    schema = _schemas.get(message)
    if schema is not None:
        return schema
    try:
        schema = ipc.read_schema(pa.py_buffer(message))
        is_swapped = _is_swapped(message)
    except (*_REFUSALS, struct.error) as error:
        raise InvalidEvent(f"{len(message)} bytes are not an Arrow schema: {error}") from error
    if is_swapped:  # a segment with it would be read with all numbers turned round
        raise InvalidEvent("the schema uses big-endian numbers; send little-endian ones")
    if len(message) <= SCHEMA_BYTES_KEPT_MAX:
        if len(_schemas) >= SCHEMAS_MAX:
            _schemas.clear()
        _schemas[message] = schema
    return schema


def _is_swapped(message: bytes) -> bool:
    """Whether a schema that Arrow has found sound is of big-endian numbers."""
    view = memoryview(message)
    start = 8 if _INT32(view, 0)[0] == -1 else 4
    header = _field(view, start + _UINT32(view, start)[0], 2)
    order = _field(view, header + _UINT32(view, header)[0], 0)
    return bool(order and _INT16(view, order)[0])


def names_in(message: bytes) -> frozenset[str]:
    """The columns of the schema in a message."""
    names = _names.get(message)
    if names is None:
        names = frozenset(schema_from(message).names)
        if len(message) <= SCHEMA_BYTES_KEPT_MAX:
            if len(_names) >= SCHEMAS_MAX:
                _names.clear()
            _names[message] = names
    return names


def _inflated(message: pa.Buffer) -> int:
    """Bytes a message claims to have once its buffers are uncompressed; 0: they are not
    compressed.

    Reads the flatbuffer by hand; what is damaged here is for Arrow to find.
    """
    view = memoryview(message)
    try:
        body, batch = _places(view)
        if not _field(view, batch, 3):
            return 0
    except struct.error:
        return 0
    try:
        return _claimed(view, body, batch)
    except (struct.error, OverflowError):  # a buffer that lies nowhere
        return _UNKNOWN


def _places(view: memoryview) -> tuple[int, int]:
    """Where the buffers of a message begin, and its flatbuffer table of a record batch."""
    start = 8 if _INT32(view, 0)[0] == -1 else 4
    root = start + _UINT32(view, start)[0]
    header = _field(view, root, 2)
    return start + _UINT32(view, start - 4)[0], header + _UINT32(view, header)[0]


def _claimed(view: memoryview, body: int, batch: int) -> int:
    field = _field(view, batch, 2)
    buffers = field + _UINT32(view, field)[0]
    size = 1
    for at in range(_UINT32(view, buffers)[0]):
        offset, length = _PLACE(view, buffers + 4 + 16 * at)
        if length > 8:
            claimed = _INT64(view, body + offset)[0]
            size += length if claimed < 0 else claimed
    return size


def _field(view: memoryview, table: int, index: int) -> int:
    """Where field ``index`` of a flatbuffer table lies; 0 where it is not set."""
    vtable = table - _INT32(view, table)[0]
    entry = 4 + 2 * index
    if entry + 2 > _UINT16(view, vtable)[0]:
        return 0
    offset: int = _UINT16(view, vtable + entry)[0]
    return table + offset if offset else 0


class BatchPlaces(NamedTuple):
    """Offsets in a batch's message that depend on the lengths of its values."""

    body: int
    """Where its buffers begin."""
    body_length: int
    buffers: int
    """The place and length of each buffer, two numbers of eight bytes each."""


def batch_places(message: bytes) -> BatchPlaces:
    """The places in a message that :func:`batch_bytes` has made."""
    view = memoryview(message)
    root = 8 + _UINT32(view, 8)[0]
    header = _field(view, root, 2)
    batch = header + _UINT32(view, header)[0]
    field = _field(view, batch, 2)
    buffers = field + _UINT32(view, field)[0]
    return BatchPlaces(8 + _UINT32(view, 4)[0], _field(view, root, 3), buffers + 4)


def batch_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as an encapsulated IPC message, without its schema, not compressed."""
    return batch.serialize()


def file_options(compression: Compression) -> ipc.IpcWriteOptions:
    """How Arrow is to write a file whose batches are compressed so."""
    return _WRITTEN[compression]


def file_message(batch: pa.RecordBatch, compression: Compression) -> pa.Buffer:
    """A batch as an encapsulated IPC message of a file, compressed so."""
    return batch.serialize() if compression == "none" else _through(batch, _WRITTEN[compression])


def file_batch_from(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in a message of a file that has passed its checksum: however much larger it gets,
    the realm has written it. Raises ``Damaged`` for bytes that cannot be unpacked or are none."""
    try:
        return ipc.read_record_batch(message, schema)
    except (*_REFUSALS, MemoryError) as error:
        raise Damaged(f"{message.size} bytes are not the batch that they should be: {error}") from (
            error
        )


def unpacked_size(message: pa.Buffer) -> int:
    """Bytes that the buffers of a batch's message take in memory, compressed or not."""
    return _inflated(message) or message.size


def is_compressed(message: pa.Buffer) -> bool:
    """Whether the buffers of a batch's message are compressed."""
    return bool(_inflated(message))


def _through(batch: pa.RecordBatch, options: ipc.IpcWriteOptions) -> pa.Buffer:
    """A batch's message, written with options that ``serialize`` does not take."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    written = sink.getvalue()
    head = batch.schema.serialize().size
    return written.slice(head, written.size - head - _END_BYTES)


def _inflated_max(size: int) -> int:
    return min(INFLATED_MAX * size, INFLATED_BYTES_MAX)


def packed_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """Serialize a batch, compressed where the other side accepts that and it saves a fifth.

    Deltas of which each changes another column are mostly nulls, and compress well.
    """
    plain = batch.serialize()
    packed = _through(batch, _PACKED)
    if 5 * packed.size > 4 * plain.size or plain.size > _inflated_max(packed.size):
        return plain
    return packed


def batch_from(message: pa.Buffer | bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in a message, sharing its memory; :class:`InvalidEvent` when it is not one.

    From a peer, validate before use: :func:`penstock.columns.events.check.check_body`.
    """
    buffer = message if isinstance(message, pa.Buffer) else pa.py_buffer(message)
    inflated = _inflated(buffer)
    if inflated > _inflated_max(buffer.size):
        raise InvalidEvent(
            f"{buffer.size} bytes of a compressed record batch claim to be {inflated} bytes; "
            "send it uncompressed"
        )
    try:
        return ipc.read_record_batch(buffer, schema)
    except _REFUSALS as error:
        raise InvalidEvent(
            f"{buffer.size} bytes are not an Arrow record batch of the announced schema: {error}"
        ) from error


def edges_of(message: memoryview, count: int) -> tuple[int, int] | None:
    """The first and last value of the first column of a message that :func:`batch_from` has read:
    ``count`` 64-bit integers without nulls. None if they are compressed or missing. This takes a
    fraction of the time of building an array."""
    try:
        body, batch = _places(message)
        if _field(message, batch, 3):
            return None
        field = _field(message, batch, 2)
        buffers = field + _UINT32(message, field)[0]
        values = body + _PLACE(message, buffers + 4 + 16)[0]  # its second buffer, after the nulls
        return _INT64(message, values)[0], _INT64(message, values + 8 * (count - 1))[0]
    except struct.error:
        return None


def _rows_claimed(message: pa.Buffer) -> int:
    """The number of rows that a message claims to have; 0 if it is not a batch."""
    view = memoryview(message)
    try:
        start = 8 if _INT32(view, 0)[0] == -1 else 4
        kind = _field(view, start + _UINT32(view, start)[0], 1)
        if not kind or view[kind] != _RECORD_BATCH:
            return 0
        length = _field(view, _places(view)[1], 0)
        return int(_INT64(view, length)[0]) if length else 0
    except (struct.error, IndexError):
        return 0  # for Arrow to find


def table_from_stream(data: bytes, *, rows_max: int) -> pa.Table:
    """The table in an Arrow IPC stream from a peer; :class:`InvalidEvent` when it is none,
    claims to be far larger than its bytes, or has more than ``rows_max`` rows."""
    rows = 0
    try:
        messages = ipc.MessageReader.open_stream(pa.py_buffer(data))
        while True:
            try:
                message = messages.read_next_message()
            except StopIteration:
                break
            whole = message.serialize()
            rows += _rows_claimed(whole)
            if rows > rows_max:
                raise InvalidEvent(
                    f"{len(data)} bytes of Arrow claim to be {rows} events; send at most "
                    f"{rows_max} of this size at once"
                )
            claimed = _inflated(whole)
            if claimed > _inflated_max(len(data)):
                raise InvalidEvent(
                    f"{len(data)} bytes of compressed Arrow claim to be {claimed} bytes; send "
                    "them uncompressed"
                )
        table = ipc.open_stream(pa.py_buffer(data)).read_all()
        table.validate(full=True)
    except _REFUSALS as error:
        raise InvalidEvent(f"{len(data)} bytes are not an Arrow IPC stream: {error}") from error
    return table
