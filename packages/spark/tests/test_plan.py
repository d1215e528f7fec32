"""Partitions hold every event once, in id order, and about as many each."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock_core.api.channels import Location, SealedPart
from penstock_core.columns.files.segments import SegmentBatch, SegmentIndex
from penstock_core.ids.ids import IdSet, Span
from penstock_spark.reading.plan import (
    PARTITION_EVENTS_MIN,
    FileRows,
    Sizes,
    WireRows,
    partitions,
)

SCHEMA = pa.schema([("event_id", pa.int64())]).serialize().to_pybytes()
ROWS_PER_BATCH = 10


def sealed_part(wanted: IdSet, stored_span: Span, path: str) -> SealedPart:
    """A file of all ids of ``stored_span``, of which ``wanted`` are left."""
    batches = tuple(
        SegmentBatch(
            first,
            min(first + ROWS_PER_BATCH, stored_span.end),
            size,
            offset=0,
            length=size * 100,
            checksum=0,
        )
        for first in range(stored_span.first, stored_span.end, ROWS_PER_BATCH)
        for size in (min(ROWS_PER_BATCH, stored_span.end - first),)
    )
    index = SegmentIndex(
        stored_span.first,
        stored_span.end,
        stored_span.size,
        size=1,
        checksum=0,
        schema=SCHEMA,
        batches=batches,
    )
    spans = tuple(wanted.within(stored_span).spans)
    return SealedPart(path, 1, spans, index=msgspec.msgpack.encode(index))


def ids_of(parts: tuple[FileRows | WireRows, ...]) -> list[int]:
    return [
        event_id
        for part in parts
        for span in (part.spans if isinstance(part, FileRows) else (part.span,))
        for event_id in range(*span)
    ]


@st.composite
def locations(draw: st.DrawFn) -> tuple[Location, IdSet, bool]:
    """A location, the ids it has, and whether some of them are in memory below a file's end."""
    end = draw(st.integers(1, 120))
    border = draw(st.integers(0, end))
    cuts = sorted(draw(st.sets(st.integers(1, 119), max_size=3)))
    edges = [0, *(cut for cut in cuts if cut < border), border]
    wanted = IdSet([Span(0, end)])
    for first, size in draw(st.lists(st.tuples(st.integers(0, 119), st.integers(1, 9)))):
        wanted.remove(Span(first, first + size))
    volatile = IdSet.from_ids(draw(st.sets(st.integers(0, 119), max_size=3)))
    in_memory = IdSet(
        span for kept in volatile.spans for span in wanted.within(kept.clipped(Span(0, end))).spans
    )
    files = wanted.copy()
    files.remove_all(in_memory)
    parts = [
        sealed_part(files, Span(first, last), f"segment-{number}")
        for number, (first, last) in enumerate(pairwise(edges))
        if first < last and files.within(Span(first, last))
    ]
    tail = wanted.within(Span(border, end))
    tail.add_all(in_memory)
    mixed = bool(in_memory.within(Span(0, border)))
    return Location(tuple(parts), tuple(tail.spans)), wanted, mixed


@pytest.mark.slow
@given(locations(), st.one_of(st.none(), st.integers(1, 40)), st.sampled_from(["auto", "remote"]))
def test_every_event_is_read_once_and_in_order(
    stored: tuple[Location, IdSet, bool], parts_min: int | None, access: str
) -> None:
    location, wanted, _ = stored

    planned = partitions(location, parts_min=parts_min, access=access)
    ids = [event_id for parts in planned for event_id in ids_of(parts)]

    # What is asked for over the wire is a range: the realm leaves out what is removed.
    assert ids == sorted(set(ids))
    assert [event_id for event_id in ids if event_id in wanted] == [
        event_id for span in wanted.spans for event_id in range(*span)
    ]
    from_files = [part for parts in planned for part in parts if isinstance(part, FileRows)]
    assert all(event_id in wanted for part in from_files for event_id in ids_of((part,)))


@pytest.mark.slow
@given(locations(), st.integers(1, 40))
def test_there_are_as_many_partitions_as_asked_for(
    stored: tuple[Location, IdSet, bool], parts_min: int
) -> None:
    location, wanted, _ = stored

    planned = partitions(location, parts_min=parts_min)

    rows_max = -(-len(wanted) // parts_min)
    assert len(planned) == (-(-len(wanted) // rows_max) if wanted else 0)
    assert all(len(wanted.within(Span(p[0], p[-1] + 1))) <= rows_max for p in map(ids_of, planned))


def test_files_are_read_and_the_tail_is_asked_for() -> None:
    everything = IdSet([Span(0, 40)])
    location = Location(
        (sealed_part(everything, Span(0, 20), "a"), sealed_part(everything, Span(20, 30), "b")),
        (Span(30, 40),),
    )

    (parts,) = partitions(location, parts_min=1)

    assert [type(part) for part in parts] == [FileRows, FileRows, WireRows]
    assert parts[2] == WireRows(Span(30, 40))


def test_a_file_with_events_in_memory_between_its_own_is_left_to_the_realm() -> None:
    ids = IdSet([Span(0, 20)])
    ids.remove(Span(5, 6))
    location = Location((sealed_part(ids, Span(0, 20), "a"),), (Span(5, 6),))

    assert partitions(location, parts_min=1) == [(WireRows(Span(0, 20)),)]


def test_files_of_a_cluster_are_read_where_it_keeps_them() -> None:
    part = replace(sealed_part(IdSet([Span(0, 20)]), Span(0, 20), ""), name="segments/a.1/b.arrow")
    location = Location((part,), (Span(20, 25),), "s3://bucket/cluster/shard-0")

    ((file, tail),) = partitions(location, parts_min=1)

    assert isinstance(file, FileRows)
    assert (file.path, file.name) == ("", "segments/a.1/b.arrow")
    assert tail == WireRows(Span(20, 25))
    assert partitions(location, parts_min=1, access="remote") == [(WireRows(Span(0, 25)),)]


def test_a_realm_on_its_own_answers_with_the_bytes_it_always_sent() -> None:
    location = Location((), (Span(0, 3),))

    assert msgspec.msgpack.encode(location) == msgspec.msgpack.encode(
        {"sealed": (), "tail": ((0, 3),)}
    )


def test_a_realm_that_cannot_be_mapped_is_asked_for_everything() -> None:
    location = Location((sealed_part(IdSet([Span(0, 20)]), Span(0, 20), ""),), ())

    assert partitions(location, parts_min=1) == [(WireRows(Span(0, 20)),)]


def test_few_events_are_one_task_unless_more_are_asked_for() -> None:
    tail: Any = (Span(0, PARTITION_EVENTS_MIN - 1),)

    assert len(partitions(Location((), tail), parts_min=None)) == 1
    assert len(partitions(Location((), tail), parts_min=7)) == 7


def test_nothing_stored_is_no_partition() -> None:
    assert partitions(Location((), ()), parts_min=4) == []


def test_record_batches_that_do_not_pass_are_left_out() -> None:
    part = sealed_part(IdSet([Span(0, 60)]), Span(0, 60), "segment")
    index = msgspec.msgpack.decode(part.index, type=SegmentIndex)
    batches = tuple(replace(b, summary=b"%d" % b.first_id) for b in index.batches)
    encoded = msgspec.msgpack.encode(replace(index, batches=batches))
    location = Location((replace(part, index=encoded),), (Span(60, 65),))

    (parts,) = partitions(location, parts_min=1, may_match=lambda summary: int(summary) in (20, 40))

    assert ids_of(parts) == [*range(20, 30), *range(40, 50), *range(60, 65)]


@pytest.mark.slow
@given(locations(), st.integers(0, 20_000), st.integers(0, 200))
def test_a_portion_by_bytes_ends_where_about_so_many_are(
    stored: tuple[Location, IdSet, bool], bytes_max: int, event_bytes: int
) -> None:
    location, wanted, _ = stored
    if not wanted:
        return
    sizes = Sizes(location, event_bytes)

    end = sizes.end_within(bytes_max)

    lowest, highest = min(wanted), max(wanted)
    assert lowest < end <= highest + 1
    if bytes_max >= sizes.total:
        assert end == highest + 1
    here = len(wanted.within(Span(lowest, end)))
    assert here == 1 or here * min(100, event_bytes) <= bytes_max + max(100, event_bytes)


def test_events_in_files_count_as_they_are_stored_and_others_as_they_are_on_average() -> None:
    ids = IdSet([Span(0, 20)])
    sizes = Sizes(Location((sealed_part(ids, Span(0, 20), "a"),), (Span(20, 30),)), 50)

    assert sizes.total == 20 * 100 + 10 * 50
    assert [sizes.end_within(size) for size in (0, 100, 1_000, 2_000, 2_250, 9_000)] == [
        1,
        1,
        10,
        20,
        25,
        30,
    ]
