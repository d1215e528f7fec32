"""Batches and schemas as bytes: Arrow IPC messages, one a batch, the schema apart."""

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
"""Parsed schemas kept; a peer that sends more gets slower, not larger."""

SCHEMA_BYTES_KEPT_MAX: Final = 16 << 10
"""Bytes of the largest schema for which something is kept that was worked out from it."""
SCHEMAS_BYTES_MAX: Final = 1 << 20
"""Bytes of all parsed schemas that are kept; parsed, a schema takes about ten times its bytes."""

INFLATED_MAX: Final = 64
"""A compressed batch may be so many times as large as its bytes: a few of them cannot claim to
be any size inside."""

INFLATED_BYTES_MAX: Final = 64 << 20
"""And no larger than this."""

_SCHEMA: Final = 1
_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
"""The types of Arrow's messages that a stream of events has."""

_SHARED_BYTES_MIN: Final = 64 << 10
"""Size from which a batch is examined for shared buffers; in a smaller one they do little harm."""

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

_BYTES: Final = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_large_string,
    pa.types.is_large_binary,
)

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
        check_schema_nesting(schema)
    except (*_REFUSALS, struct.error) as error:
        raise InvalidEvent(f"{len(message)} bytes are not an Arrow schema: {error}") from error
    if is_swapped:  # a segment with it would be read with all numbers turned round
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
        if not batch or not _field(view, batch, 3):
            return 0
    except (struct.error, IndexError):
        return 0
    try:
        return _claimed(view, body, batch)
    except (struct.error, OverflowError):  # a buffer that lies nowhere
        return _UNKNOWN


def _kind_of(view: memoryview) -> int:
    """The type of a message; 0 where it has none."""
    start = 8 if _INT32(view, 0)[0] == -1 else 4
    kind = _field(view, start + _UINT32(view, start)[0], 1)
    return view[kind] if kind else 0


def _places(view: memoryview) -> tuple[int, int]:
    """Where the buffers of a message begin, and its flatbuffer table of a record batch, which a
    dictionary has one table deeper; 0 where the message has none."""
    start = 8 if _INT32(view, 0)[0] == -1 else 4
    root = start + _UINT32(view, start)[0]
    kind, header = _field(view, root, 1), _field(view, root, 2)
    batch = header + _UINT32(view, header)[0]
    if kind and view[kind] == _DICTIONARY_BATCH:
        data = _field(view, batch, 1)
        batch = data + _UINT32(view, data)[0] if data else 0
    return start + _UINT32(view, start - 4)[0], batch


def _claimed(view: memoryview, body: int, batch: int) -> int:
    buffers = _buffer_list(view, batch)
    size = 1
    for at in range(_UINT32(view, buffers)[0]):
        offset, length = _PLACE(view, buffers + 4 + 16 * at)
        if length > 8:
            claimed = _INT64(view, body + offset)[0]
            size += length if claimed < 0 else claimed
    return size


def _buffer_list(view: memoryview, batch: int) -> int:
    """Where the buffers of a record batch are listed: their number, then the place and length of
    each."""
    field = _field(view, batch, 2)
    return field + int(_UINT32(view, field)[0])


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
    buffers = _buffer_list(view, header + _UINT32(view, header)[0])
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

    From a peer, validate before use: :func:`penstock_core.columns.events.check.check_body`.
    """
    buffer = message if isinstance(message, pa.Buffer) else pa.py_buffer(message)
    inflated = _inflated(buffer)
    if inflated > _inflated_max(buffer.size):
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
    """Refuse a batch whose columns share buffers: each is written out when events are sealed."""
    size, written = message.size, _buffers_bytes(message)
    if written > max(size, _inflated_max(size)):
        raise InvalidEvent(
            f"{size} bytes of a record batch claim to be {written} bytes, because its columns "
            "share buffers; send each with its own"
        )


def _buffers_bytes(message: pa.Buffer) -> int:
    """The lengths of all buffers of a message together, counted once for each column that uses
    them. Read by hand: asking the columns of a batch takes ten times as long."""
    view = memoryview(message)
    try:
        buffers = _buffer_list(view, _places(view)[1])
        numbers = struct.unpack_from(f"<{2 * _UINT32(view, buffers)[0]}q", view, buffers + 4)
    except (struct.error, IndexError):
        return 0  # damage, which Arrow finds
    return sum(map(abs, numbers[1::2]))  # Arrow refuses a negative one


def edges_of(message: memoryview, count: int) -> tuple[int, int] | None:
    """The first and last value of the first column of a message that :func:`batch_from` has read:
    ``count`` 64-bit integers without nulls. None if they are compressed or missing. This takes a
    fraction of the time of building an array."""
    try:
        body, batch = _places(message)
        if _field(message, batch, 3):
            return None
        buffers = _buffer_list(message, batch)
        values = body + _PLACE(message, buffers + 4 + 16)[0]  # its second buffer, after the nulls
        return _INT64(message, values)[0], _INT64(message, values + 8 * (count - 1))[0]
    except (struct.error, IndexError):
        return None


def _rows_claimed(view: memoryview) -> int:
    """The number of rows that a batch or a dictionary claims to have."""
    batch = _places(view)[1]
    length = _field(view, batch, 0) if batch else 0
    return int(_INT64(view, length)[0]) if length else 0


def table_from_stream(data: bytes, *, rows_max: int) -> pa.Table:
    """The table in an Arrow IPC stream from a peer; :class:`InvalidEvent` when it is none,
    claims to be far larger than its bytes, or has more than ``rows_max`` rows."""
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
            f"the Arrow stream has a column of type {error}, which pyarrow does not know; cast it"
        ) from error
    return table


def _check_messages(messages: ipc.MessageReader, size: int, rows_max: int) -> None:
    """Refuse a stream of ``size`` bytes by what its messages claim, before Arrow reads any."""
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
        claimed += _inflated(message)
        if claimed > _inflated_max(size):
            raise InvalidEvent(
                f"{size} bytes of compressed Arrow claim to be {claimed} bytes; send "
                "them uncompressed"
            )


def _check_plain_size(table: pa.Table, size: int) -> None:
    """Refuse a table that is far larger than its ``size`` bytes once its columns are plain:
    values of a dictionary, views and buffers can be used many times."""
    plain = _held_bytes(table) + sum(
        _decoded_bytes(chunk) for column in table.columns for chunk in column.chunks
    )
    if plain > max(size, _inflated_max(size)):
        raise InvalidEvent(
            f"{size} bytes of Arrow are {plain} bytes as plain columns; send fewer events at once"
        )


def _held_bytes(columns: pa.Table | pa.RecordBatch) -> int:
    """Bytes of the columns, each counted by itself where they share buffers."""
    try:
        return int(columns.nbytes)
    except pa.ArrowTypeError:  # older versions of Arrow cannot say it of views
        return int(columns.get_total_buffer_size())


def _decoded_bytes(array: pa.Array) -> int:
    """Bytes of the values of an array that are written out only when it becomes a plain one."""
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
    """Bytes of each value of an array of single values."""
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
    """Bytes of each view, which begins with them; no kernel tells. Raises ``InvalidEvent`` for one
    that lies nowhere: Arrow looks at views of nulls only when it casts them, and crashes there."""
    _, own, *variadic = values.buffers()
    there = values.offset + len(values)
    views = np.frombuffer(own or b"", np.int32, 4 * there).reshape(-1, 4)[values.offset :]
    lengths, _, numbers, offsets = views.astype(np.int64).T
    sizes = np.array([0 if each is None else each.size for each in variadic] or [0], np.int64)
    is_inside = (numbers >= 0) & (numbers < len(variadic)) & (offsets >= 0)
    ends = offsets + lengths <= sizes[np.clip(numbers, 0, len(sizes) - 1)]
    if not ((lengths >= 0) & ((lengths <= _INLINE_BYTES_MAX) | (is_inside & ends))).all():
        raise InvalidEvent("a view of a text or of bytes lies outside of its column")
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), lengths, 0)


_INLINE_BYTES_MAX: Final = 12
"""Longest value that is in its view itself."""


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))
