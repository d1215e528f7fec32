"""Sealed segments: plain Arrow files, read by range; damage affects single batches."""

from __future__ import annotations

from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from xxhash import xxh3_64_intdigest

from penstock_core.columns.files.segments import (
    SegmentImage,
    SegmentIndex,
    SegmentReader,
    encode_segment,
    segment_folder,
    segment_name,
)
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import Damaged, InvalidArgument

IDS = [*range(1, 40), *range(50, 90), 95, 97, 200]


def batch(ids: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "event_id": pa.array(ids, pa.int64()),
            "tag": pa.array([f"t{event_id % 3}" for event_id in ids]),
            "data": pa.array([b"x" * (event_id % 7) for event_id in ids]),
            "price": pa.array([None if event_id % 5 == 0 else event_id / 4 for event_id in ids]),
        }
    )


def sealed(rows_per_batch: int = 16) -> SegmentImage:
    return encode_segment(
        [batch(IDS[start : start + 10]) for start in range(0, len(IDS), 10)],
        rows_per_batch=rows_per_batch,
    )


def ids_of(reader: SegmentReader, span: Span) -> list[int | None]:
    return [event_id for result in reader.read(span) for event_id in result.column(0).to_pylist()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "segment.arrow"
    path.write_bytes(b"".join(sealed().chunks))
    return path


def test_pyarrow_reads_every_event_with_its_id(path: Path) -> None:
    table = pa.ipc.open_file(str(path)).read_all()

    assert table.equals(pa.Table.from_batches([batch(IDS)]))


def test_a_dataset_reads_every_event_with_its_id(path: Path) -> None:
    result = ds.dataset(path, format="ipc").to_table(filter=ds.field("event_id") >= 60)

    assert result.column("event_id").to_pylist() == [e for e in IDS if e >= 60]


def test_duckdb_reads_every_event_with_its_id(path: Path) -> None:
    segment = ds.dataset(path, format="ipc")
    with duckdb.connect() as connection:
        connection.register("segment", segment)
        rows = connection.execute(
            "select event_id, tag, octet_length(data) from segment"
        ).fetchall()

    assert rows == [(e, f"t{e % 3}", e % 7) for e in IDS]


def test_small_batches_are_merged() -> None:
    index = sealed().index

    assert [place.rows for place in index.batches] == [16, 16, 16, 16, 16, 2]
    assert (index.rows, index.first_id, index.end_id) == (len(IDS), 1, 201)


def test_the_index_describes_the_file() -> None:
    image = sealed()
    stored = b"".join(image.chunks)

    assert image.index.size == len(stored)
    assert image.index.checksum == xxh3_64_intdigest(stored)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(image.index), type=SegmentIndex)
    assert again == image.index


def test_a_batch_is_read_from_its_place_alone() -> None:
    image = sealed()
    schema = pa.ipc.read_schema(pa.py_buffer(image.index.schema))
    result = []
    for place in image.index.batches:
        message = image.buffer.slice(place.offset, place.length)
        result.append(pa.ipc.read_record_batch(message, schema))

    assert pa.Table.from_batches(result).equals(pa.Table.from_batches([batch(IDS)]))


@pytest.mark.parametrize("rows_per_batch", [1, 3, 16, 1_000])
def test_every_span_yields_its_ids(rows_per_batch: int) -> None:
    image = sealed(rows_per_batch)
    reader = SegmentReader(memoryview(image.buffer), image.index)
    borders = [0, 1, 2, 16, 17, 39, 40, 45, 50, 51, 89, 90, 96, 97, 98, 199, 200, 201, 500]
    for first in borders:
        for end in borders:
            wanted = [e for e in IDS if first <= e < end]
            assert ids_of(reader, Span(first, end)) == wanted, (first, end)


@pytest.mark.parametrize("rows_per_batch", [1, 3, 16])
def test_many_spans_are_gathered_in_few_batches(rows_per_batch: int) -> None:
    image = sealed(rows_per_batch)
    reader = SegmentReader(image.buffer, image.index)
    stored_ids = [place for place in IDS if place % 3]
    spans = IdSet.from_ids(stored_ids).spans
    damage: list[Span] = []
    result = list(reader.gather([Span(0, 1), *spans], lambda _, span: damage.append(span)))

    got = [i for _, batch in result for i in batch.column("event_id").to_pylist()]
    assert got == stored_ids
    assert (
        sorted({i for spans_read, _ in result for span in spans_read for i in range(*span)} - {0})
        == stored_ids
    )
    assert len(result) <= len(image.index.batches)
    assert not damage


def test_reading_copies_nothing() -> None:
    image = sealed()
    reader = SegmentReader(memoryview(image.buffer), image.index)
    start, end = image.buffer.address, image.buffer.address + image.buffer.size
    for result in reader.read(Span(10, 80)):
        for column in result.columns:
            for buffer in column.buffers():
                assert buffer is None or start <= buffer.address < end


@pytest.mark.spec("S1")
def test_a_damaged_batch_hides_only_its_own_events() -> None:
    image = sealed()
    place = image.index.batches[2]
    for offset in range(place.offset, place.offset + place.length, 7):
        stored = bytearray(b"".join(image.chunks))
        stored[offset] ^= 16
        reader = SegmentReader(memoryview(stored), image.index, name="segments/a/1.arrow")

        with pytest.raises(Damaged, match=r"segments/a/1\.arrow: batch 2, events 33-58: bytes"):
            ids_of(reader, Span(0, 500))
        hurt: list[Span] = []
        result = reader.read(Span(0, 50), lambda _, span: hurt.append(span))  # noqa: B023
        assert [e for part in result for e in part.column(0).to_pylist()] == list(range(1, 33))
        assert hurt == [Span(33, 50)]
        assert ids_of(reader, Span(59, 500)) == [e for e in IDS if e >= 59]


@pytest.mark.spec("S1")
def test_a_shortened_segment_keeps_its_complete_batches() -> None:
    image = sealed()
    size = image.index.batches[3].offset + 5
    reader = SegmentReader(memoryview(image.buffer)[:size], image.index)

    assert ids_of(reader, Span(0, 59)) == [e for e in IDS if e < 59]
    with pytest.raises(Damaged, match=f"the file ends at byte {size}"):
        ids_of(reader, Span(59, 60))


def test_a_batch_is_checked_once() -> None:
    image = sealed()
    stored = bytearray(b"".join(image.chunks))
    reader = SegmentReader(memoryview(stored), image.index)
    assert ids_of(reader, Span(1, 3)) == [1, 2]
    stored[image.index.batches[0].offset + 8] ^= 1

    assert ids_of(reader, Span(1, 3)) == [1, 2]


def test_names_sort_as_ids_do() -> None:
    name = segment_name("orders/eu", 1, 50_001)

    assert name == "segments/orders/eu/00000000000000000001-00000000000000050000.arrow"


def refused(*batches: pa.RecordBatch) -> str:
    with pytest.raises(InvalidArgument) as refusal:
        encode_segment(batches)
    return str(refusal.value)


def test_what_cannot_be_a_segment_is_refused() -> None:
    no_ids = pa.record_batch({"data": pa.array([b"x"])})
    small_ids = pa.record_batch({"event_id": pa.array([1], pa.int32())})
    null_id = pa.record_batch({"event_id": pa.array([1, None], pa.int64())})
    coded = pa.record_batch({"event_id": pa.array([1]), "tag": pa.array(["t"]).dictionary_encode()})
    nested = pa.record_batch(
        {"event_id": pa.array([1]), "tags": pa.array([["t"]])}
    ).cast(
        pa.schema(
            {"event_id": pa.int64(), "tags": pa.list_(pa.dictionary(pa.int32(), pa.string()))}
        )
    )  # fmt: skip

    assert "at least one event" in refused()
    assert "at least one event" in refused(batch([]))
    assert "first column" in refused(no_ids)
    assert "first column" in refused(small_ids)
    assert "nulls" in refused(null_id)
    assert "ascend" in refused(batch([2, 1]))
    assert "ascend" in refused(batch([1, 2]), batch([2, 3]))
    assert "batch 1 has another schema" in refused(batch([1]), small_ids)
    assert "column tag is dictionary-encoded" in refused(coded)
    assert "column tags is dictionary-encoded" in refused(nested)
    with pytest.raises(InvalidArgument, match="rows_per_batch"):
        encode_segment([batch([1])], rows_per_batch=0)


def test_sliced_and_empty_batches_are_fine() -> None:
    complete = batch(IDS)
    image = encode_segment([complete.slice(3, 0), complete.slice(5, 20), complete.slice(25)])

    result = pa.ipc.open_file(image.buffer).read_all()
    assert result.equals(pa.Table.from_batches([complete.slice(5)]))


def test_a_large_segment_reads_back_as_it_was() -> None:
    ids = np.cumsum(np.random.default_rng(7).integers(1, 4, 50_000))
    source = pa.record_batch({"event_id": pa.array(ids, pa.int64()), "n": pa.array(ids * 3)})
    image = encode_segment([source.slice(start, 1_000) for start in range(0, 50_000, 1_000)])
    reader = SegmentReader(memoryview(image.buffer), image.index)

    first, end = int(ids[12_345]), int(ids[40_001])
    result = pa.Table.from_batches(list(reader.read(Span(first, end))))

    assert result.equals(pa.Table.from_batches([source.slice(12_345, 40_001 - 12_345)]))
    assert len(image.index.batches) == 4


@pytest.mark.spec("C2")
def test_a_channels_folder_is_its_escaped_name_and_number() -> None:
    assert segment_folder("orders", 4) == "orders.4"
    assert segment_folder("eu/orders.new", 4) == "eu~2Forders.new.4"
    assert segment_folder("日", 4) == "~E6~97~A5.4"
    long = segment_folder("日" * 255, 1 << 40)
    assert len(long) < 256
    assert long.endswith(f".{1 << 40}")


@pytest.mark.spec("C2")
def test_where_an_earlier_version_began_the_files_go_on() -> None:
    begun = "segments/eu/orders.4/00000000000000000000-00000000000000049999.arrow"

    assert segment_folder("eu/orders", 4, begun) == "eu/orders.4"
    assert segment_folder("eu/orders", 5, begun) == "eu~2Forders.5"
    assert segment_folder("eu/orders", 4, "segments/x.import-1-1/0-1.arrow") == "eu~2Forders.4"
