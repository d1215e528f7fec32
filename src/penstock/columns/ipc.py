"""Batches and schemas as bytes: Arrow IPC messages, one a batch, the schema apart."""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa
from pyarrow import ipc

from penstock.core.errors import InvalidEvent

SCHEMAS_MAX: Final = 256
"""Parsed schemas kept; a peer that sends more gets slower, not larger."""

SCHEMA_BYTES_KEPT_MAX: Final = 64 * 1024

_INT32: Final = struct.Struct("<i").unpack_from
_UINT32: Final = struct.Struct("<I").unpack_from
_UINT16: Final = struct.Struct("<H").unpack_from

_REFUSALS: Final = (pa.ArrowException, OSError, EOFError, ValueError)
"""What Arrow raises for bytes that are not what they should be."""

_schemas: dict[bytes, pa.Schema] = {}


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
    except _REFUSALS as error:
        raise InvalidEvent(f"{len(message)} bytes are no Arrow schema: {error}") from error
    if len(message) <= SCHEMA_BYTES_KEPT_MAX:
        if len(_schemas) >= SCHEMAS_MAX:
            _schemas.clear()
        _schemas[message] = schema
    return schema


def _is_compressed(message: pa.Buffer) -> bool:
    """Does the message name a codec? A few such bytes could claim to be any size inside.

    Reads the flatbuffer by hand; what is damaged here is for Arrow to find.
    """
    view = memoryview(message)
    try:
        start = 8 if _INT32(view, 0)[0] == -1 else 4
        root = start + _UINT32(view, start)[0]
        header = _field(view, root, 2)
        batch = header + _UINT32(view, header)[0]
        return _field(view, batch, 3) != 0
    except struct.error:
        return False


def _field(view: memoryview, table: int, index: int) -> int:
    """Where field ``index`` of a flatbuffer table lies; 0 where it is not set."""
    vtable = table - _INT32(view, table)[0]
    entry = 4 + 2 * index
    if entry + 2 > _UINT16(view, vtable)[0]:
        return 0
    offset: int = _UINT16(view, vtable + entry)[0]
    return table + offset if offset else 0


def batch_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as an encapsulated IPC message, without its schema, not compressed."""
    return batch.serialize()


def batch_from(message: pa.Buffer | bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in a message, sharing its memory; :class:`InvalidEvent` when it is not one.

    From a peer, validate before use: :func:`penstock.columns.check.check_body`.
    """
    buffer = message if isinstance(message, pa.Buffer) else pa.py_buffer(message)
    if _is_compressed(buffer):
        raise InvalidEvent("the record batch is compressed; send it uncompressed")
    try:
        return ipc.read_record_batch(buffer, schema)
    except _REFUSALS as error:
        raise InvalidEvent(
            f"{buffer.size} bytes are no Arrow record batch of the announced schema: {error}"
        ) from error
