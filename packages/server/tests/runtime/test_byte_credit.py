"""The events that fit into the byte credit of a client."""

from __future__ import annotations

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.ids.ids import Span
from penstock_server.runtime.delivery.byte_credit import Room, split_spans
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch, spans_in


def rows(*sizes: int) -> OutgoingBatch:
    batch = stamp(body_of_columns([b"x" * size for size in sizes]), Span(10, 10 + len(sizes)), 1)
    return OutgoingBatch(spans_in(batch), batch=batch)


def test_all_rows_fit_if_there_is_room() -> None:
    all_rows = rows(100, 100)

    assert Room(10_000).fitting(all_rows) is all_rows


def test_the_longest_beginning_that_fits_is_sent() -> None:
    room = Room(10_000)
    fits = room.fitting(rows(*[1_000] * 50))

    assert fits is not None
    assert fits.spans == (Span(10, 10 + fits.count),)
    assert 8 <= fits.count <= 10
    room.sent(len(fits.body))
    assert room.in_flight <= 11_000  # the frame around the events is little


def test_an_event_larger_than_the_limit_is_sent_once_half_of_it_is_free() -> None:
    room, large = Room(10_000), rows(50_000, 50_000)
    first = room.fitting(large)
    assert first is not None
    assert first.count == 1
    room.sent(len(first.body))

    assert room.is_full
    assert room.fitting(large) is None
    room.consumed(len(first.body) - 5_001)
    assert room.fitting(rows(50_000)) is None
    room.consumed(1)
    assert room.fitting(rows(50_000)) is not None
    room.consumed(1 << 40)
    assert room.in_flight == 0


def test_spans_are_split_at_the_first_withheld_id() -> None:
    spans = (Span(0, 3), Span(5, 9))

    assert split_spans(spans, 6) == ((Span(0, 3), Span(5, 6)), (Span(6, 9),))
    assert split_spans(spans, 4) == ((Span(0, 3),), (Span(5, 9),))
