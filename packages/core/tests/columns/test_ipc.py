"""Batches and schemas as bytes, valid and damaged."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from penstock_core.columns.events.batch import ids_of, stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.check import check_body
from penstock_core.columns.schema import ipc
from penstock_core.columns.schema.ipc import (
    batch_bytes,
    batch_from,
    batch_places,
    edges_of,
    packed_bytes,
    schema_bytes,
    schema_from,
    table_from_stream,
)
from penstock_core.columns.schema.rows import Rows
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidEvent
from tests.thorough import examples

FLIPS = examples(4_000)


def body() -> pa.RecordBatch:
    properties = [
        {"a": n, "b": str(n), "lines": [{"sku": "x" * n, "qty": None}], "mixed": [n, "x"]}
        if n % 3
        else {"a": "other", "c": {"d": [1.5, None]}}
        for n in range(20)
    ]
    return body_of_columns([bytes([n]) * n for n in range(20)], ["t"] * 20, properties)


def test_a_batch_and_its_schema_survive_their_bytes() -> None:
    batch = body()
    schema = schema_from(schema_bytes(batch.schema))
    for message in (batch_bytes(batch), bytes(batch_bytes(batch))):
        again = batch_from(message, schema)

        assert again.equals(batch)
        assert again.schema.equals(batch.schema, check_metadata=True)


def test_a_parsed_schema_is_kept() -> None:
    message = schema_bytes(body().schema)

    assert schema_from(message) is schema_from(bytes(message))


def test_kept_schemas_are_bounded() -> None:
    for number in range(600):
        message = schema_bytes(pa.schema([(f"c{number}", pa.int8())]))

        assert schema_from(message).names == [f"c{number}"]


@pytest.mark.parametrize(
    "message", [b"", b"x", b"\xff" * 64, b"\xff\xff\xff\xff\x10\0\0\0" + b"\1" * 64]
)
def test_garbage_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidEvent, match="not an Arrow schema"):
        schema_from(message)
    with pytest.raises(InvalidEvent, match="not an Arrow record batch"):
        batch_from(message, body().schema)


def test_a_batch_of_another_schema_is_refused() -> None:
    message = batch_bytes(body_of_columns([b"x"]))

    with pytest.raises(InvalidEvent):
        check_body(batch_from(message, body().schema))


def test_a_packed_batch_is_read_as_any_other() -> None:
    properties = [{f"field {n % 20}": n / 7} for n in range(500)]
    batch = body_of_columns([b""] * 500, properties=properties)
    packed = packed_bytes(batch)

    assert 4 * packed.size < batch_bytes(batch).size
    assert batch_from(packed, batch.schema).equals(batch)
    check_body(batch_from(packed, batch.schema))


@pytest.mark.slow
def test_the_ends_of_the_first_column_are_read_without_the_others() -> None:
    batch = stamp(body(), Span(7, 27), 0)
    for part in (batch, batch.slice(3, 5), batch.slice(19)):
        message, ids = memoryview(batch_bytes(part)), ids_of(part)

        assert edges_of(message, len(ids)) == (ids[0], ids[-1])

    message = memoryview(batch_bytes(batch))
    assert edges_of(message, 1 << 20) is None  # so many are not in it
    assert edges_of(message[:40], 20) is None
    packed = memoryview(packed_bytes(stamp(body_of_columns([b"x" * 999] * 9), Span(7, 16), 0)))
    assert batch_from(packed, stamp(body_of_columns([b""]), Span(0, 1), 0).schema).num_rows == 9
    assert edges_of(packed, 9) is None


@pytest.mark.slow
def test_a_batch_that_is_large_once_it_is_uncompressed_is_refused() -> None:
    words = random.Random(1).randbytes(2 << 20)
    batch = body_of_columns([words * 40])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))

    with pytest.raises(InvalidEvent, match=r"claim to be 8\d+ bytes; send it uncompressed"):
        batch_from(messages[1].serialize(), batch.schema)


def test_a_batch_is_packed_only_if_it_pays_and_would_be_accepted() -> None:
    noise = body_of_columns([random.Random(1).randbytes(1_000)])
    zeros = body_of_columns([b"\0" * 10_000_000])

    for batch in (noise, zeros):
        assert packed_bytes(batch).equals(batch_bytes(batch))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_batch_that_claims_to_be_far_larger_is_refused(codec: str) -> None:
    batch = body_of_columns([b"x" * 10_000_000])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))

    with pytest.raises(InvalidEvent, match=r"claim to be 100\d+ bytes; send it uncompressed"):
        batch_from(messages[1].serialize(), batch.schema)


def test_a_compressed_batch_with_buffers_outside_it_is_refused() -> None:
    batch = body_of_columns([b"x" * 1_000] * 10)
    message = bytearray(packed_bytes(batch))
    places = batch_places(bytes(message))
    for position in range(places.buffers, places.body - 8, 16):
        if struct.unpack_from("<q", message, position + 8)[0] > 8:
            struct.pack_into("<q", message, position, (1 << 63) - 1)

    with pytest.raises(InvalidEvent, match="send it uncompressed"):
        batch_from(bytes(message), batch.schema)


@pytest.mark.slow
@pytest.mark.parametrize("is_packed", [False, True])
def test_flipped_bits_are_refused_or_harmless(is_packed: bool) -> None:
    """The process never crashes, no other exception is raised, and an accepted batch can be
    read."""
    batch = body()
    sound = bytes(batch_bytes(batch))
    if is_packed:
        properties = [{f"field {n % 20}": n / 7} for n in range(100)]
        batch = body_of_columns([b""] * 100, properties=properties)
        sound = bytes(packed_bytes(batch))
    dice = random.Random(4711)
    refused = 0
    for _ in range(FLIPS):
        damaged = bytearray(sound)
        for _ in range(dice.randint(1, 3)):
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        if dice.random() < 0.2:
            del damaged[dice.randrange(len(damaged)) :]
        try:
            result = batch_from(bytes(damaged), batch.schema)
            check_body(result)
        except InvalidEvent:
            refused += 1
            continue
        rows = Rows(result)
        for row in range(min(result.num_rows, 3)):
            rows.properties(row)

    assert FLIPS / 10 < refused < FLIPS


@pytest.mark.slow
def test_a_flipped_schema_is_refused_or_checked() -> None:
    batch = body()
    sound = schema_bytes(batch.schema)
    message = batch_bytes(batch)
    dice = random.Random(4712)
    refused = 0
    for _ in range(FLIPS):
        damaged = bytearray(sound)
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        try:
            check_body(batch_from(message, schema_from(bytes(damaged))))
        except InvalidEvent:
            refused += 1

    assert 0 < refused <= FLIPS


def test_a_schema_of_big_endian_numbers_is_refused() -> None:
    """Batches always arrive as little-endian, and every reader of a segment would swap their
    bytes."""
    plain = schema_bytes(pa.schema([("properties", pa.struct([("\x01", pa.int64())]))]))
    table = 8 + int.from_bytes(plain[8:12], "little")
    header = ipc._field(memoryview(plain), table, 2)
    schema = header + int.from_bytes(plain[header : header + 4], "little")
    vtable = schema - int.from_bytes(plain[schema : schema + 4], "little", signed=True)
    one = plain.index(b"\x01\0", schema + 4)  # the name of the property will do for it
    swapped = bytearray(plain)
    swapped[vtable + 4 : vtable + 6] = (one - schema).to_bytes(2, "little")
    assert pa.ipc.read_schema(pa.py_buffer(bytes(swapped))).names == ["properties"]

    assert schema_from(plain).names == ["properties"]
    with pytest.raises(InvalidEvent, match="little-endian"):
        schema_from(bytes(swapped))


def claiming(rows: int) -> bytes:
    """Return a stream of a few hundred bytes that claims to have so many rows, all null."""
    batch = pa.record_batch({"a": pa.nulls(1_000_003)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    length = struct.pack("<q", 1_000_003)
    data = sink.getvalue().to_pybytes()
    assert data.count(length) == 3, "of the batch, and of its column and its nulls"
    return bytes(data.replace(length, struct.pack("<q", rows)))


@pytest.mark.parametrize("rows", [101, 1 << 34, (1 << 62) + 5])
def test_a_stream_is_not_believed_to_have_any_number_of_rows(rows: int) -> None:
    data = claiming(rows)
    assert len(data) < 400

    with pytest.raises(InvalidEvent, match=f"claim to be {rows} events; send at most 100 of"):
        table_from_stream(data, rows_max=100)
    assert table_from_stream(claiming(100), rows_max=100).num_rows == 100


def test_rows_of_many_batches_are_counted_together() -> None:
    batch = pa.record_batch({"a": pa.nulls(60)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
        stream.write_batch(batch)

    with pytest.raises(InvalidEvent, match="claim to be 120 events"):
        table_from_stream(sink.getvalue().to_pybytes(), rows_max=100)


def test_a_stream_with_any_byte_changed_is_read_or_refused() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, body().schema) as stream:
        stream.write_batch(body())
    sound, chance = sink.getvalue().to_pybytes(), random.Random(17)

    for _ in range(FLIPS // 4):
        data = bytearray(sound)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            table = table_from_stream(bytes(data), rows_max=1_000)
        except InvalidEvent:
            continue
        assert table.num_rows <= 1_000


def stream_of(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def dictionary_of(value: pa.Array, rows: int) -> pa.Array:
    indices = pa.array(np.zeros(rows, np.int8))
    return pa.DictionaryArray.from_arrays(indices, value)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_a_dictionary_claims_is_counted_before_it_is_unpacked(codec: str) -> None:
    value = pa.array([bytes(100 << 20)], pa.binary())
    data = stream_of(pa.record_batch({"data": dictionary_of(value, 1)}), codec)
    del value
    before = pa.total_allocated_bytes()

    with pytest.raises(InvalidEvent, match=r"compressed Arrow claim to be 1048\d+ bytes"):
        table_from_stream(data, rows_max=100)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_dictionaries_and_batches_of_a_stream_are_counted_together() -> None:
    value = pa.array([bytes(200_000)], pa.binary())
    columns = {f"c{index}": dictionary_of(value, 1) for index in range(20)}
    data = stream_of(pa.record_batch(columns), "zstd")
    assert 64 * len(data) > 200_000, "each of them alone is below the bound"

    with pytest.raises(InvalidEvent, match="compressed Arrow claim to be"):
        table_from_stream(data, rows_max=100)


def test_a_dictionary_is_not_believed_to_have_any_number_of_values() -> None:
    data = stream_of(pa.record_batch({"a": dictionary_of(pa.nulls(101), 1)}))

    with pytest.raises(InvalidEvent, match="claim to be 101 values of dictionaries"):
        table_from_stream(data, rows_max=100)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_string(), pa.string_view()])
def test_a_value_that_many_rows_share_is_refused_before_it_is_written_out(
    kind: pa.DataType,
) -> None:
    """No compression is needed for this: 100 KB of zeros and 10,000 rows of one byte become a
    gigabyte."""
    value = pa.array(["0" * 100_000]).cast(kind)
    data = stream_of(pa.record_batch({"a": dictionary_of(value, 10_000)}))
    before = pa.total_allocated_bytes()

    with pytest.raises(InvalidEvent, match="bytes as plain columns; send fewer events at once"):
        table_from_stream(data, rows_max=10_000)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_views_of_one_value_are_refused_before_they_are_written_out() -> None:
    _, view, text = pa.array(["0" * 100_000]).cast(pa.string_view()).buffers()
    many = pa.py_buffer(view.to_pybytes() * 10_000)
    views = pa.Array.from_buffers(pa.string_view(), 10_000, [None, many, text])
    data = stream_of(pa.record_batch({"a": views}))
    assert len(data) < 1 << 20

    with pytest.raises(InvalidEvent, match="bytes as plain columns"):
        table_from_stream(data, rows_max=10_000)


@pytest.mark.parametrize("view", [(-(1 << 31), 0, 0, 0), (100, 0, 7, 0), (100, 0, 0, 1 << 30)])
@pytest.mark.parametrize("is_nested", [True, False])
def test_a_view_of_a_null_outside_its_column_is_refused(
    view: tuple[int, ...], is_nested: bool
) -> None:
    """Arrow's validation does not find it, and its cast to text would end the process."""
    texts = ["a" * 50, None]
    valid, views, *data = pa.array(texts).cast(pa.string_view()).buffers()
    spoilt = pa.py_buffer(views.to_pybytes()[:16] + struct.pack("<4i", *view))
    array = pa.Array.from_buffers(pa.string_view(), 2, [valid, spoilt, *data])
    array.validate(full=True)
    if is_nested:
        array = pa.StructArray.from_arrays([array], names=["s"])

    with pytest.raises(InvalidEvent, match="points outside its column"):
        table_from_stream(stream_of(pa.record_batch({"a": array})), rows_max=10)
    usual = pa.record_batch({"a": pa.array(texts).cast(pa.string_view())})
    assert table_from_stream(stream_of(usual), rows_max=10).column("a").to_pylist() == texts


def test_dictionaries_of_usual_texts_are_read() -> None:
    texts = pa.array(["new", "sent", None] * 1_000).dictionary_encode()
    nested = pa.StructArray.from_arrays([texts], names=["s"])
    batch = pa.record_batch({"state": texts, "in": nested})

    assert table_from_stream(stream_of(batch, "zstd"), rows_max=3_000).to_batches() == [batch]


def test_a_dictionary_of_lists_is_refused() -> None:
    data = stream_of(pa.record_batch({"a": dictionary_of(pa.array([["x"]]), 1)}))

    with pytest.raises(InvalidEvent, match="values of type list<item: string>; send the column"):
        table_from_stream(data, rows_max=10)


def test_a_type_that_pyarrow_does_not_know_is_refused() -> None:
    """Months are not a date type, although one byte in the schema distinguishes the two."""
    data = stream_of(pa.record_batch({"a": pa.array([1, 2], pa.date32())}))
    date, months = 8, 11
    spoilt = [
        data[:position] + bytes([months]) + data[position + 1 :]
        for position in range(100)
        if data[position] == date
    ]
    result = [candidate for candidate in spoilt if "month_interval" in schema_text(candidate)]

    assert len(result) == 1
    with pytest.raises(InvalidEvent, match="type 21, which pyarrow does not support; cast it"):
        table_from_stream(result[0], rows_max=10)


def schema_text(data: bytes) -> str:
    try:
        return str(pa.ipc.open_stream(data).schema)
    except (pa.ArrowException, OSError, ValueError):
        return ""


def test_a_message_of_a_tensor_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(np.zeros(4)), sink)
    schema = stream_of(pa.record_batch({"a": [1]}))[:-8]

    with pytest.raises(InvalidEvent, match="a message of type 4; send a schema, record batches"):
        table_from_stream(schema + bytes(sink.getvalue()), rows_max=10)


def test_a_batch_whose_columns_share_a_buffer_is_refused() -> None:
    """800 KB would become 80 MB when the columns are sealed, because each is then written
    separately."""
    numbers = pa.array(np.arange(100_000, dtype=float))
    struct_of_all = pa.StructArray.from_arrays([numbers] * 100, names=[f"p{n}" for n in range(100)])
    batch = pa.RecordBatch.from_arrays([struct_of_all], names=["properties"])
    message = bytearray(batch.serialize().to_pybytes())
    places = ipc.batch_places(bytes(message))
    (count,) = struct.unpack_from("<I", message, places.buffers - 4)
    for index in range(count):
        place = places.buffers + 16 * index
        _, length = struct.unpack_from("<qq", message, place)
        struct.pack_into("<qq", message, place, 0, length)
    struct.pack_into("<q", message, places.body_length, 800_000)

    with pytest.raises(InvalidEvent, match="because its columns share buffers"):
        batch_from(bytes(message[: places.body + 800_000]), batch.schema)
    assert batch_from(batch.serialize(), batch.schema).equals(batch)
