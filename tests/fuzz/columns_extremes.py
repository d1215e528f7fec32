"""Well-formed Arrow columns with extreme values: numbers, times and TTLs at the ends of their
types, and dictionaries and compressed buffers far larger than their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from penstock_core.columns.schema.ipc import schema_bytes
from penstock_core.columns.schema.layout import UTC_MICROSECONDS

INTEGERS: Final = (-(2**63), -(2**31) - 1, -1, 0, 1, 2**31, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1)
ROWS: Final = 3
PACKED_BYTES: Final = 32 << 20
"""Size of a value that takes a few kilobytes when compressed."""
_TYPES: Final[dict[pa.DataType, tuple[Any, ...]]] = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.uint64(): (0, 2**63, 2**64 - 1),
    pa.float32(): (3.4e38, float("inf"), float("nan")),
    pa.float64(): (1.7976931348623157e308, -float("inf"), 5e-324),
}


@lru_cache
def batches() -> tuple[tuple[str, pa.RecordBatch], ...]:
    """Return named batches, each with one extreme column."""
    return tuple(_batches())


def _batches() -> Iterator[tuple[str, pa.RecordBatch]]:
    data = pa.array([b"x"] * ROWS, pa.binary())
    for value in INTEGERS:
        ttl = pa.array([value] * ROWS, pa.int64())
        yield f"ttl {value}", pa.record_batch({"data": data, "ttl": ttl})
        times = ttl.view(UTC_MICROSECONDS)
        yield f"deliver_at {value}", pa.record_batch({"data": data, "deliver_at": times})
        properties = pa.StructArray.from_arrays([ttl], names=["n"])
        yield f"property {value}", pa.record_batch({"data": data, "properties": properties})
        headers = pa.StructArray.from_arrays([times, times], names=["expiration", "timestamp"])
        yield f"header {value}", pa.record_batch({"data": data, "headers": headers})
    for value in (-128, -1, 9, 10, 127):
        priority = pa.array([value] * ROWS, pa.int8())
        yield f"priority {value}", pa.record_batch({"data": data, "priority": priority})
    for kind, values in _TYPES.items():
        for value in values:
            column = pa.array([value] * ROWS, kind)
            properties = pa.StructArray.from_arrays([column], names=["n"])
            named = pa.record_batch({"data": data, "properties": properties})
            yield f"{kind} {value}", named
    yield from _strange_types(data)
    yield from _repeated(data)


def _strange_types(data: pa.Array) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield properties of types at their ends; most of these types are not allowed for
    properties."""
    widest = pa.array([2**63 - 1] * ROWS, pa.int64())
    for unit in ("s", "ms", "us", "ns"):
        for kind in (pa.timestamp(unit), pa.duration(unit), pa.timestamp(unit, "UTC")):
            yield str(kind), _with_property(data, widest.view(kind))
    yield "time64", _with_property(data, widest.view(pa.time64("ns")))
    yield "date64", _with_property(data, widest.view(pa.date64()))
    small = pa.array([2**31 - 1] * ROWS, pa.int32())
    yield "date32", _with_property(data, small.view(pa.date32()))
    decimals = pa.array([None] * ROWS, pa.decimal256(76, 0))
    yield "decimal256", _with_property(data, decimals)
    nested: pa.Array = pa.array([1] * ROWS)
    for _ in range(60):  # Arrow itself reads 64 levels
        nested = pa.ListArray.from_arrays(list(range(ROWS + 1)), nested)
    yield "nested lists", _with_property(data, nested)


def _with_property(data: pa.Array, column: pa.Array) -> pa.RecordBatch:
    properties = pa.StructArray.from_arrays([column], names=["p"])
    return pa.record_batch({"data": data, "properties": properties})


def _repeated(data: pa.Array) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield columns whose values are stored once for many rows."""
    large = pa.DictionaryArray.from_arrays([0] * ROWS, pa.array([bytes(PACKED_BYTES)], pa.binary()))
    yield "a dictionary as data", pa.record_batch({"data": large})
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000, pa.int8()), ["x" * 200_000])
    rows = pa.array([b""] * 5_000, pa.binary())
    yield "a value of many rows", pa.record_batch({"data": rows, "tag": shared})
    yield "a property of many rows", _with_property(rows, shared)
    yield "zeros", pa.record_batch({"data": pa.array([bytes(PACKED_BYTES)], pa.binary())})
    yield "nulls", pa.record_batch({"tag": pa.nulls(1 << 20, pa.string())})
    indices = pa.array([0] * ROWS, pa.int32())
    dictionary = pa.DictionaryArray.from_arrays(indices, data)
    for _ in range(3):
        inner = pa.StructArray.from_arrays([dictionary], names=["d"])
        dictionary = pa.DictionaryArray.from_arrays(indices, inner)
    yield "dictionaries of dictionaries", _with_property(data, dictionary)


def stream(batch: pa.RecordBatch, codec: str | None = "zstd") -> bytes:
    """Return a compressed Arrow stream."""
    sink = pa.BufferOutputStream()
    options = ipc.IpcWriteOptions(compression=codec)
    with ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def messages_of(batch: pa.RecordBatch, codec: str | None = "zstd") -> tuple[bytes, list[bytes]]:
    """Return the schema of a batch, and the compressed messages of its dictionaries and of itself,
    as a native client sends them one by one."""
    reader = ipc.MessageReader.open_stream(pa.py_buffer(stream(batch, codec)))
    next(reader)
    return schema_bytes(batch.schema), [bytes(message.serialize()) for message in reader]
