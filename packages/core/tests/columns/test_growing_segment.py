"""Files that events are appended to stay ordinary Arrow files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather

from penstock_core.columns.files.growing_segment import (
    Growth,
    end_of_batches,
    extended,
    growing_name,
    has_its_tail,
    number_in,
    rebuilt_tail,
    started,
)
from penstock_core.columns.files.segments import SegmentReader, encode_segment
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import Damaged, InvalidArgument


def events(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.record_batch(
        {
            "event_id": pa.array(ids, pa.int64()),
            "tag": pa.array([None if i % 3 else f"t{i}" for i in ids], pa.string()),
            "properties": pa.array([{"a": float(i), "b": [i]} for i in ids]),
        }
    )


def written(file: bytes, growth: Growth) -> bytes:
    return file[: growth.at] + b"".join(growth.chunks)


def test_every_state_of_a_growing_file_is_a_whole_arrow_file() -> None:
    growth = started([events(0, 10)], rows_per_batch=4)
    file = written(b"", growth)
    for first in range(10, 100, 10):
        tail = file[end_of_batches(growth.index.batches) :]
        growth = extended(growth.index, tail, [events(first, 10)], rows_per_batch=4)
        file = written(file, growth)

        assert (
            pa.ipc.open_file(file).read_all().equals(pa.Table.from_batches([events(0, first + 10)]))
        )
        assert has_its_tail(memoryview(file), growth.index)
        assert (growth.index.rows, growth.index.size) == (first + 10, len(file))
    reader = SegmentReader(memoryview(file), growth.index)
    assert pa.Table.from_batches(reader.read(Span(37, 63))).equals(
        pa.Table.from_batches([events(37, 26)])
    )


def test_an_old_index_reads_a_file_that_has_grown() -> None:
    before = started([events(0, 10)])
    file = written(b"", before)
    tail = file[end_of_batches(before.index.batches) :]
    after = written(file, extended(before.index, tail, [events(10, 10)]))

    (batch,) = SegmentReader(memoryview(after), before.index).read(Span(0, 99))

    assert batch.equals(events(0, 10))


@pytest.mark.slow
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 4_000))
def test_a_lost_tail_is_rebuilt(sizes: list[int], torn: int) -> None:
    growth = started([events(0, sizes[0])], rows_per_batch=7)
    file = written(b"", growth)
    first = sizes[0]
    for size in sizes[1:]:
        tail = file[end_of_batches(growth.index.batches) :]
        growth = extended(growth.index, tail, [events(first, size)], rows_per_batch=7)
        file, first = written(file, growth), first + size
    tail_start = end_of_batches(growth.index.batches)
    hurt = memoryview(file[:tail_start] + b"\x17" * torn)

    assert not has_its_tail(hurt, growth.index)
    assert rebuilt_tail(hurt, growth.index) == file[tail_start:]


def test_a_batch_without_its_beginning_is_left_out_of_the_footer() -> None:
    growth = started([events(0, 12)], rows_per_batch=4)
    file = bytearray(written(b"", growth))
    second = growth.index.batches[1]
    file[second.offset : second.offset + 8] = bytes(8)
    tail = rebuilt_tail(memoryview(file), growth.index)
    mended = bytes(file[: end_of_batches(growth.index.batches)]) + tail

    assert pa.ipc.open_file(mended).read_all().column("event_id").to_pylist() == [
        *range(4),
        *range(8, 12),
    ]


def test_what_may_not_be_added_is_refused() -> None:
    growth = started([events(0, 10)])
    file = written(b"", growth)
    tail = file[end_of_batches(growth.index.batches) :]

    with pytest.raises(InvalidArgument, match="event 9 cannot be added after event 9"):
        extended(growth.index, tail, [events(9, 1)])
    with pytest.raises(InvalidArgument, match="another schema"):
        extended(growth.index, tail, [events(10, 1).select(["event_id"])])
    with pytest.raises(Damaged, match="footer"):
        extended(growth.index, bytes(len(tail)), [events(10, 1)])
    with pytest.raises(InvalidArgument, match="at least one event"):
        started([events(0, 0)])


def test_a_file_read_from_disk_by_plain_arrow(tmp_path: Path) -> None:
    growth = started([events(0, 1_000)])
    path = tmp_path / "events.arrow"
    path.write_bytes(written(b"", growth))

    with pa.memory_map(str(path)) as source:
        assert pa.ipc.open_file(source).num_record_batches == 1
    assert feather.read_table(path).num_rows == 1_000


def test_growing_and_whole_files_hold_the_same_batches() -> None:
    batches = [events(0, 5), events(5, 9)]
    grown = started(batches, rows_per_batch=3)
    sealed = encode_segment(batches, rows_per_batch=3)

    assert [place.span for place in grown.index.batches] == [
        place.span for place in sealed.index.batches
    ]
    assert grown.index.schema == sealed.index.schema


def test_names_carry_their_number() -> None:
    assert number_in(growing_name("orders.eu.7", 12)) == 12
    assert number_in("segments/orders/00000000000000000001-00000000000000000009.arrow") == 0
