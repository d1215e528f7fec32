"""Small pieces stamped together hold what each holds stamped by itself."""

from __future__ import annotations

import pyarrow as pa

from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.ipc import batch_bytes
from penstock_core.ids.ids import Span
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.store.tail_batch import Meter, TailBatch, gathered, stored_together


def piece(first: int, count: int, at_us: int) -> TailBatch:
    batch = body_of([Event(b"%d" % (first + i), properties={"n": i}) for i in range(count)])
    body = memoryview(batch_bytes(batch))
    return TailBatch(
        Span(first, first + count), at_us, 0, schema=batch.schema, body=body, batch=batch
    )


def test_ids_and_times_are_those_of_each_piece_with_gaps_between_them() -> None:
    pieces = [piece(0, 1, 10), piece(1, 3, 20), piece(9, 2, 30), piece(11, 1, 30)]

    together = stored_together(pieces)

    alone = [each.stored([Span(each.first, each.end)]) for each in pieces]
    assert together.equals(pa.concat_batches(alone), check_metadata=True)
    assert together.column("event_id").to_pylist() == [0, 1, 2, 3, 9, 10, 11]
    assert together.column("published").cast("int64").to_pylist() == [10, 20, 20, 20, 30, 30, 30]


def test_a_single_piece_is_itself() -> None:
    alone = piece(5, 4, 1)

    assert stored_together([alone]).equals(alone.stored([Span(5, 9)]), check_metadata=True)


def test_some_rows_of_several_pieces_are_those_taken_from_each() -> None:
    pieces = [piece(0, 5, 10), piece(5, 9, 20)]
    parts = [
        (pieces[0], Span(1, 2)),
        (pieces[0], Span(3, 5)),
        (pieces[1], Span(5, 6)),
        (pieces[1], Span(13, 14)),
    ]

    together = gathered(parts)

    alone = [each.stored([span]) for each, span in parts]
    assert together.equals(pa.concat_batches(alone), check_metadata=True)
    assert together.column("event_id").to_pylist() == [1, 3, 4, 5, 13]


def test_when_events_were_published_is_known_where_that_is_one_time() -> None:
    store = ChannelStore(Meter())
    for each in (piece(0, 5, 10), piece(5, 4, 20)):
        store.add(each)

    def published(*spans: Span) -> list[int]:
        return [rows.at_us for rows in store.read(spans, Damage())]

    assert published(Span(1, 3)) == [10]
    assert published(Span(5, 9)) == [20]
    assert published(Span(5, 6), Span(7, 9)) == [20]
    assert published(Span(3, 9)) == [0], "not one time"
