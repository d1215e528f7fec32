"""Batches and schemas as bytes: an Arrow IPC message per batch, and the schema as a separate
message."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from penstock_core.columns.schema import compute as pc
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.errors import Damaged, InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX

SCHEMAS_MAX: Final = 256
"""Maximum number of parsed schemas that are cached. A client that sends more schemas makes the
realm slower, but does not increase its memory."""

SCHEMA_BYTES_KEPT_MAX: Final = 16 << 10
"""Largest schema in bytes whose computed values are cached."""
SCHEMAS_BYTES_MAX: Final = 1 << 20
"""Maximum number of bytes of all parsed schemas that are kept. A parsed schema takes about ten
times its bytes."""

INFLATED_MAX: Final = 64
"""Maximum number of bytes that a compressed batch may unpack to, as a multiple of its compressed
bytes. Without the limit a few bytes could claim any size."""

INFLATED_BYTES_MAX: Final = 64 << 20
"""Maximum number of bytes that a compressed batch may unpack to, whatever its compressed size."""

_SCHEMA: Final = 1
_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
"""Types of the Arrow messages in a stream of events."""

_SHARED_BYTES_MIN: Final = 64 << 10
"""Batches of at least this many bytes are examined for shared buffers. Smaller batches can do
little harm with them."""

_UNKNOWN: Final = 1 << 62
"""The size of a message that cannot be measured. It is larger than each limit, so that such a
message is refused."""

_END_BYTES: Final = 8
"""Size of the end marker of a stream."""

_PACKED_OPTIONS: Final = ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
_WRITE_OPTIONS: Final = {
    "zstd": _PACKED_OPTIONS,
    "lz4": ipc.IpcWriteOptions(compression="lz4"),
    "none": ipc.IpcWriteOptions(compression=None),
}
"""Options for the batches of files, by the compression that a channel sets."""

_INT32: Final = struct.Struct("<i").unpack_from
_UINT32: Final = struct.Struct("<I").unpack_from
_INT64: Final = struct.Struct("<q").unpack_from
_PLACE: Final = struct.Struct("<qq").unpack_from
_UINT16: Final = struct.Struct("<H").unpack_from
_INT16: Final = struct.Struct("<h").unpack_from

_REFUSALS: Final = (pa.ArrowException, OSError, EOFError, ValueError)
"""Exceptions that Arrow raises for invalid bytes."""

_BYTES: Final = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_large_string,
    pa.types.is_large_binary,
)

_schemas: dict[bytes, pa.Schema] = {}
"""Parsed schemas by message."""
_names: dict[bytes, frozenset[str]] = {}
"""Column names of schemas by message."""


def schema_bytes(schema: pa.Schema) -> bytes:
    """Return a schema as an encapsulated IPC message."""
    return bytes(schema.serialize())


def schema_from(message: bytes) -> pa.Schema:
    """Return the schema in a message. Raises :class:`InvalidEvent` for other bytes."""
    schema = _schemas.get(message)
    if schema is not None:
        return schema
    try:
        schema = ipc.read_schema(pa.py_buffer(message))
        is_swapped = _is_swapped(message)
        check_schema_nesting(schema)
    except (*_REFUSALS, struct.error) as error:
        raise InvalidEvent(f"{len(message)} bytes are not an Arrow schema: {error}") from error
    # Arrow would swap the bytes on parsing, but a segment with this schema would be misread.
    if is_swapped:
        raise InvalidEvent("the schema uses big-endian numbers; send little-endian ones")
    if len(_schemas) >= SCHEMAS_MAX or sum(map(len, _schemas)) + len(message) > SCHEMAS_BYTES_MAX:
        _schemas.clear()
    if len(message) <= SCHEMAS_BYTES_MAX:
        _schemas[message] = schema
    return schema


def check_schema_nesting(schema: pa.Schema) -> None:
    """Raise :class:`InvalidEvent` if a column has more than `NESTING_MAX` levels. Arrow itself
    refuses more than about 120 before it reads a schema."""
    for name, kind in zip(schema.names, schema.types, strict=True):
        kinds = [kind]
        for _ in range(NESTING_MAX + 1):
            kinds = [kind.field(i).type for kind in kinds for i in range(kind.num_fields)]
            if not kinds:
                break
        else:
            raise InvalidEvent(
                f"column {name!r} is nested too deep; at most {NESTING_MAX} levels of lists and "
                "structs are allowed"
            )


def _is_swapped(message: bytes) -> bool:
    """Whether a schema that Arrow has parsed has big-endian numbers."""
    view = memoryview(message)
    # Versions of Arrow before 0.15 write no continuation mark (-1) in front of the length.
    start = 8 if _INT32(view, 0)[0] == -1 else 4
    header = _field(view, start + _UINT32(view, start)[0], 2)
    order = _field(view, header + _UINT32(view, header)[0], 0)
    return bool(order and _INT16(view, order)[0])


def names_in(message: bytes) -> frozenset[str]:
    """Return the column names of the schema in a message."""
    names = _names.get(message)
    if names is None:
        names = frozenset(schema_from(message).names)
        if len(message) <= SCHEMA_BYTES_KEPT_MAX:
            if len(_names) >= SCHEMAS_MAX:
                _names.clear()
            _names[message] = names
    return names


def _unpacked_bytes(message: pa.Buffer) -> int:
    """Return the bytes that a message claims to have once its buffers are decompressed; 0 if they
    are not compressed.

    The function reads the flatbuffer itself, because Arrow has no function for this. Arrow reports
    damage when it reads the message.
    """
    view = memoryview(message)
    try:
        body, batch = _buffers_and_batch(view)
        if not batch or not _field(view, batch, 3):
            return 0
    except (struct.error, IndexError):
        return 0
    try:
        return _claimed_bytes(view, body, batch)
    except (struct.error, OverflowError):  # a buffer outside the message
        return _UNKNOWN


def _kind_of(view: memoryview) -> int:
    """Return the type of a message; 0 if it has none."""
    start = 8 if _INT32(view, 0)[0] == -1 else 4
    kind = _field(view, start + _UINT32(view, start)[0], 1)
    return view[kind] if kind else 0


def _buffers_and_batch(view: memoryview) -> tuple[int, int]:
    """Return the offset of a message's buffers, and the offset of its flatbuffer table of a record
    batch; 0 instead of the second if the message has no such table.

    A dictionary has that table one level deeper.
    """
    start = 8 if _INT32(view, 0)[0] == -1 else 4
    root = start + _UINT32(view, start)[0]
    kind, header = _field(view, root, 1), _field(view, root, 2)
    batch = header + _UINT32(view, header)[0]
    if kind and view[kind] == _DICTIONARY_BATCH:
        data = _field(view, batch, 1)
        batch = data + _UINT32(view, data)[0] if data else 0
    return start + _UINT32(view, start - 4)[0], batch


def _claimed_bytes(view: memoryview, body: int, batch: int) -> int:
    """Return the bytes that the compressed buffers of a batch claim to have once unpacked."""
    buffers = _buffer_list(view, batch)
    size = 1
    for buffer_index in range(_UINT32(view, buffers)[0]):
        offset, length = _PLACE(view, buffers + 4 + 16 * buffer_index)
        if length > 8:
            # A compressed buffer begins with its unpacked length, or with -1 if it is stored as it
            # is.
            claimed = _INT64(view, body + offset)[0]
            size += length if claimed < 0 else claimed
    return size


def _buffer_list(view: memoryview, batch: int) -> int:
    """Return the offset of the list of a record batch's buffers: their count, then offset and
    length of each."""
    field = _field(view, batch, 2)
    return field + int(_UINT32(view, field)[0])


def _field(view: memoryview, table: int, index: int) -> int:
    """Return the offset of field ``index`` of a flatbuffer table; 0 if it is not set."""
    # A table begins with the distance back to its vtable, which has two sizes and then the offset
    # of each field from the start of the table.
    vtable = table - _INT32(view, table)[0]
    entry = 4 + 2 * index
    if entry + 2 > _UINT16(view, vtable)[0]:
        return 0
    offset: int = _UINT16(view, vtable + entry)[0]
    return table + offset if offset else 0


class BatchPlaces(NamedTuple):
    """Offsets in a batch's message of the numbers that depend on the lengths of its values."""

    body: int
    """Offset of the buffers of the message."""
    body_length: int
    """Offset of the total length of the buffers."""
    buffers: int
    """Offset of the list with offset and length of each buffer, two numbers of eight bytes each."""


def batch_places(message: bytes) -> BatchPlaces:
    """Return the offsets in a message that :func:`batch_bytes` has written."""
    view = memoryview(message)
    root = 8 + _UINT32(view, 8)[0]
    header = _field(view, root, 2)
    buffers = _buffer_list(view, header + _UINT32(view, header)[0])
    return BatchPlaces(8 + _UINT32(view, 4)[0], _field(view, root, 3), buffers + 4)


def batch_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """Return a batch as an encapsulated IPC message, without its schema, not compressed."""
    return batch.serialize()


def file_options(compression: Compression) -> ipc.IpcWriteOptions:
    """Return Arrow's options for writing a file whose batches have this compression."""
    return _WRITE_OPTIONS[compression]


def file_message(batch: pa.RecordBatch, compression: Compression) -> pa.Buffer:
    """Return a batch as an encapsulated IPC message of a file, with this compression."""
    return (
        batch.serialize()
        if compression == "none"
        else _written_with(batch, _WRITE_OPTIONS[compression])
    )


def file_batch_from(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in a message of a file that has passed its checksum.

    The unpacked size is not limited, because the realm itself wrote the message. Raises ``Damaged``
    for bytes that cannot be unpacked or are not a batch.
    """
    try:
        return ipc.read_record_batch(message, schema)
    except (*_REFUSALS, MemoryError) as error:
        raise Damaged(f"{message.size} bytes are not the batch that they should be: {error}") from (
            error
        )


def unpacked_size(message: pa.Buffer) -> int:
    """Return the bytes that the buffers of a batch's message take in memory, compressed or not."""
    return _unpacked_bytes(message) or message.size


def is_compressed(message: pa.Buffer) -> bool:
    """Whether the buffers of a batch's message are compressed."""
    return bool(_unpacked_bytes(message))


def _written_with(batch: pa.RecordBatch, options: ipc.IpcWriteOptions) -> pa.Buffer:
    """Return a batch's message, written with options that ``serialize`` does not accept."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    # Arrow has no function for one compressed message, so it is cut out of a stream: behind the
    # schema and in front of the end marker.
    stream_bytes = sink.getvalue()
    head = batch.schema.serialize().size
    return stream_bytes.slice(head, stream_bytes.size - head - _END_BYTES)


def _unpacked_bytes_max(size: int) -> int:
    return min(INFLATED_MAX * size, INFLATED_BYTES_MAX)


def packed_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """Return a batch as a message, compressed if that saves a fifth of the bytes and the other side
    accepts the ratio.

    Deltas that each change another column are mostly nulls, and compress well.
    """
    plain = batch.serialize()
    compressed = _written_with(batch, _PACKED_OPTIONS)
    if 5 * compressed.size > 4 * plain.size or plain.size > _unpacked_bytes_max(compressed.size):
        return plain
    return compressed


def batch_from(message: pa.Buffer | bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in a message, sharing its memory. Raises :class:`InvalidEvent` for other
    bytes.

    Validate a client's batch before use: :func:`penstock_core.columns.events.check.check_body`.
    """
    buffer = message if isinstance(message, pa.Buffer) else pa.py_buffer(message)
    inflated = _unpacked_bytes(buffer)
    if inflated > _unpacked_bytes_max(buffer.size):
        raise InvalidEvent(
            f"{buffer.size} bytes of a compressed record batch claim to be {inflated} bytes; "
            "send it uncompressed"
        )
    if not inflated and buffer.size >= _SHARED_BYTES_MIN:
        _check_shared(buffer)
    try:
        return ipc.read_record_batch(buffer, schema)
    except _REFUSALS as error:
        raise InvalidEvent(
            f"{buffer.size} bytes are not an Arrow record batch of the announced schema: {error}"
        ) from error


def _check_shared(message: pa.Buffer) -> None:
    """Raise :class:`InvalidEvent` if columns share buffers, because each column is written out when
    events are sealed."""
    size, claimed = message.size, _buffers_bytes(message)
    if claimed > max(size, _unpacked_bytes_max(size)):
        raise InvalidEvent(
            f"{size} bytes of a record batch claim to be {claimed} bytes, because its columns "
            "share buffers; send each with its own"
        )


def _buffers_bytes(message: pa.Buffer) -> int:
    """Return the total length of a message's buffers, each counted once for every column that uses
    it.

    The function reads the message itself, because adding up the sizes of the columns takes ten
    times as long.
    """
    view = memoryview(message)
    try:
        buffers = _buffer_list(view, _buffers_and_batch(view)[1])
        numbers = struct.unpack_from(f"<{2 * _UINT32(view, buffers)[0]}q", view, buffers + 4)
    except (struct.error, IndexError):
        return 0  # Arrow reports the damage
    return sum(map(abs, numbers[1::2]))  # Arrow refuses negative lengths


def edges_of(message: memoryview, count: int) -> tuple[int, int] | None:
    """Return the first and last value of the first column of a message that :func:`batch_from` has
    read.

    The column must have ``count`` 64-bit integers without nulls. Return None if the column is
    compressed or missing. This function takes a fraction of the time of building an array.
    """
    try:
        body, batch = _buffers_and_batch(message)
        if _field(message, batch, 3):
            return None
        buffers = _buffer_list(message, batch)
        # The second buffer, after the validity bitmap.
        values = body + _PLACE(message, buffers + 4 + 16)[0]
        return _INT64(message, values)[0], _INT64(message, values + 8 * (count - 1))[0]
    except (struct.error, IndexError):
        return None


def _rows_claimed(view: memoryview) -> int:
    """Return the number of rows that a batch or a dictionary claims to have."""
    batch = _buffers_and_batch(view)[1]
    length = _field(view, batch, 0) if batch else 0
    return int(_INT64(view, length)[0]) if length else 0


def stream_of(rows: pa.RecordBatch | pa.Table) -> pa.Buffer:
    """Return rows as a whole Arrow IPC stream: schema, batches and end marker."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    return sink.getvalue()


def table_from_stream(data: bytes, *, rows_max: int) -> pa.Table:
    """Return the table in an Arrow IPC stream from a client.

    Raises :class:`InvalidEvent` if the bytes are not a stream, claim to be far larger than they
    are, or have more than ``rows_max`` rows.
    """
    try:
        messages = ipc.MessageReader.open_stream(pa.py_buffer(data))
        _check_messages(messages, len(data), rows_max)
        stream = ipc.open_stream(pa.py_buffer(data))
        check_schema_nesting(stream.schema)
        table = stream.read_all()
        table.validate(full=True)
        _check_plain_size(table, len(data))
    except (*_REFUSALS, struct.error, IndexError) as error:
        raise InvalidEvent(f"{len(data)} bytes are not an Arrow IPC stream: {error}") from error
    except KeyError as error:
        raise InvalidEvent(
            f"the Arrow stream has a column of type {error}, which pyarrow does not "
            "support; cast it"
        ) from error
    return table


def _check_messages(messages: ipc.MessageReader, size: int, rows_max: int) -> None:
    """Raise :class:`InvalidEvent` if the messages of a stream of ``size`` bytes claim to have too
    many rows or bytes. Called before Arrow reads the messages."""
    rows = {_RECORD_BATCH: 0, _DICTIONARY_BATCH: 0}
    claimed = 0
    while True:
        try:
            message = messages.read_next_message().serialize()
        except StopIteration:
            return
        view = memoryview(message)
        kind = _kind_of(view)
        if kind == _SCHEMA:
            continue
        if kind not in rows:
            raise InvalidEvent(
                f"the Arrow stream has a message of type {kind}; send a schema, record batches "
                "and their dictionaries"
            )
        rows[kind] += _rows_claimed(view)
        if rows[kind] > rows_max:
            unit = "events" if kind == _RECORD_BATCH else "values of dictionaries"
            raise InvalidEvent(
                f"{size} bytes of Arrow claim to be {rows[kind]} {unit}; send at most "
                f"{rows_max} of this size at once"
            )
        claimed += _unpacked_bytes(message)
        if claimed > _unpacked_bytes_max(size):
            raise InvalidEvent(
                f"{size} bytes of compressed Arrow claim to be {claimed} bytes; send "
                "them uncompressed"
            )


def _check_plain_size(table: pa.Table, size: int) -> None:
    """Raise :class:`InvalidEvent` if a table that arrived as ``size`` bytes is far larger once its
    columns are plain, because a dictionary, views or shared buffers use values many times.
    """
    plain = _held_bytes(table) + sum(
        _decoded_bytes(chunk) for column in table.columns for chunk in column.chunks
    )
    if plain > max(size, _unpacked_bytes_max(size)):
        raise InvalidEvent(
            f"{size} bytes of Arrow are {plain} bytes as plain columns; send fewer events at once"
        )


def _held_bytes(columns: pa.Table | pa.RecordBatch) -> int:
    """Return the bytes of the columns. Shared buffers count once for each column."""
    try:
        return int(columns.nbytes)
    except pa.ArrowTypeError:  # older versions of Arrow do not know this size for views
        return int(columns.get_total_buffer_size())


def _decoded_bytes(array: pa.Array) -> int:
    """Return the bytes of an array's values that are written out only when the array becomes
    plain."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        indices = array.indices.drop_null().to_numpy()
        return int(_value_bytes(array.dictionary)[indices].sum())
    if _is_view(kind):
        return int(_value_bytes(array).sum())
    if pa.types.is_struct(kind):
        return sum(_decoded_bytes(array.field(index)) for index in range(kind.num_fields))
    return _decoded_bytes(array.values) if hasattr(array, "values") else 0


def _value_bytes(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each value of an array of single values."""
    kind = values.type
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        raise InvalidEvent(f"a dictionary has values of type {kind}; send the column without one")
    if _is_view(kind):
        return _view_bytes(values)
    if any(is_kind(kind) for is_kind in _BYTES):
        counted: pa.Array = pc.binary_length(values)
        return np.asarray(counted.fill_null(0).to_numpy(), np.int64)
    width = 0 if pa.types.is_null(kind) else (kind.bit_width + 7) // 8
    return np.full(len(values), width, np.int64)


def _view_bytes(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each view, read from its length; Arrow has no kernel for it.

    Raises ``InvalidEvent`` for a view that points outside the column: Arrow reads the views of
    nulls only when it casts them, and crashes there.
    """
    _, views_buffer, *variadic = values.buffers()
    end = values.offset + len(values)
    views = np.frombuffer(views_buffer or b"", np.int32, 4 * end).reshape(-1, 4)[values.offset :]
    lengths, _, buffer_indexes, offsets = views.astype(np.int64).T
    sizes = np.array([0 if buffer is None else buffer.size for buffer in variadic] or [0], np.int64)
    is_inside = (buffer_indexes >= 0) & (buffer_indexes < len(variadic)) & (offsets >= 0)
    ends = offsets + lengths <= sizes[np.clip(buffer_indexes, 0, len(sizes) - 1)]
    if not ((lengths >= 0) & ((lengths <= _INLINE_BYTES_MAX) | (is_inside & ends))).all():
        raise InvalidEvent(
            "a string or binary view points outside its column; send plain strings or bytes"
        )
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), lengths, 0)


_INLINE_BYTES_MAX: Final = 12
"""Longest value in bytes that is stored in the view itself."""


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))
