"""Columns of events with a delivery time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.delivery_time import (
    all_wait,
    due_times_us,
    split_by_waiting,
    waiting_rows,
    waiting_times_ms,
)
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_at(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def test_waiting_times_are_rounded_up_and_never_nothing() -> None:
    batch = body_of(
        [
            Event(deliver_at=moment_at(2_000)),
            Event(deliver_at=moment_at(1_001)),
            Event(deliver_at=moment_at(5_000)),
            Event(deliver_at=moment_at(5_001)),
            Event(deliver_at=moment_at(0)),
            Event(),
            Event(deliver_at=moment_at(4_001)),
        ]
    )

    assert waiting_times_ms(batch, 1_000) == (
        (1, (Span(0, 2), Span(4, 6))),
        (4, (Span(2, 3), Span(6, 7))),
        (5, (Span(3, 4),)),
    )
    assert waiting_times_ms(body_of([Event(b"a"), Event(b"b")]), 0) == ((1, (Span(0, 2),)),)


def test_delayed_events_are_counted_and_detected_as_a_batch() -> None:
    mixed = body_of([Event(deliver_at=moment_at(1)), Event(), Event(deliver_at=moment_at(2))])
    waiting = body_of([Event(deliver_at=moment_at(3))])
    at_once = body_of([Event()])

    assert [waiting_rows(batch) for batch in (mixed, waiting, at_once)] == [2, 1, 0]
    assert all_wait([waiting, waiting])
    assert not all_wait([waiting, mixed])
    assert not all_wait([at_once])
    assert due_times_us(waiting).tolist() == [3]


def test_a_table_is_split_into_events_that_wait_and_others() -> None:
    events = [
        Event(b"a", deliver_at=moment_at(1)),
        Event(b"b"),
        Event(b"c", deliver_at=moment_at(2)),
    ]
    mixed = pa.Table.from_batches([body_of(events)])

    waiting, rest = split_by_waiting(mixed)

    assert waiting.column("data").to_pylist() == [b"a", b"c"]
    assert rest.column("data").to_pylist() == [b"b"]
    assert "deliver_at" not in rest.column_names
    assert split_by_waiting(waiting) == [waiting]
    assert split_by_waiting(rest) == [rest]
    (plain,) = split_by_waiting(mixed.slice(1, 1))
    assert plain == rest
