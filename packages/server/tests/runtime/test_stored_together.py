"""Small batches stamped together equal those stamped one by one."""

from __future__ import annotations

import pyarrow as pa

from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.ipc import batch_bytes
from penstock_core.ids.ids import Span
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.store.tail_batch import Meter, TailBatch, gathered, stored_together


def published_batch(first: int, count: int, at_us: int) -> TailBatch:
    batch = body_of([Event(b"%d" % (first + i), properties={"n": i}) for i in range(count)])
    body = memoryview(batch_bytes(batch))
    return TailBatch(
        Span(first, first + count), at_us, 0, schema=batch.schema, body=body, batch=batch
    )


def test_joined_batches_keep_their_ids_times_and_gaps() -> None:
    pieces = [
        published_batch(0, 1, 10),
        published_batch(1, 3, 20),
        published_batch(9, 2, 30),
        published_batch(11, 1, 30),
    ]

    together = stored_together(pieces)

    alone = [tail_batch.stored([Span(tail_batch.first, tail_batch.end)]) for tail_batch in pieces]
    assert together.equals(pa.concat_batches(alone), check_metadata=True)
    assert together.column("event_id").to_pylist() == [0, 1, 2, 3, 9, 10, 11]
    assert together.column("published").cast("int64").to_pylist() == [10, 20, 20, 20, 30, 30, 30]


def test_a_single_batch_is_unchanged() -> None:
    alone = published_batch(5, 4, 1)

    assert stored_together([alone]).equals(alone.stored([Span(5, 9)]), check_metadata=True)


def test_gathered_rows_equal_those_taken_from_each_batch() -> None:
    pieces = [published_batch(0, 5, 10), published_batch(5, 9, 20)]
    parts = [
        (pieces[0], Span(1, 2)),
        (pieces[0], Span(3, 5)),
        (pieces[1], Span(5, 6)),
        (pieces[1], Span(13, 14)),
    ]

    together = gathered(parts)

    alone = [tail_batch.stored([span]) for tail_batch, span in parts]
    assert together.equals(pa.concat_batches(alone), check_metadata=True)
    assert together.column("event_id").to_pylist() == [1, 3, 4, 5, 13]


def test_the_time_of_publishing_is_known_if_all_events_share_it() -> None:
    store = ChannelStore(Meter())
    for tail_batch in (published_batch(0, 5, 10), published_batch(5, 4, 20)):
        store.add(tail_batch)

    def published(*spans: Span) -> list[int]:
        return [rows.at_us for rows in store.read(spans, Damage())]

    assert published(Span(1, 3)) == [10]
    assert published(Span(5, 9)) == [20]
    assert published(Span(5, 6), Span(7, 9)) == [20]
    assert published(Span(3, 9)) == [0], "not one time"
