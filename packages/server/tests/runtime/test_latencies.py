"""Latencies of deliveries: noted for batches, with the same result as for each event."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.columns.events.batch import stamp
from penstock_core.durable.durable import Durable
from penstock_core.durables.shared import KIND
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.timings import DELIVERY_BOUNDS_US
from penstock_server.runtime.delivery.latencies import DeliveryLatencies
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

NOW_US = 10_000_000_000


def rows_of(published: list[int]) -> OutgoingBatch:
    body = pa.RecordBatch.from_pydict({"data": pa.array([b"x"] * len(published))})
    batch = stamp(body, Span(0, len(published)), np.array(published, dtype=np.int64))
    return OutgoingBatch((Span(0, len(published)),), batch=batch)


@given(
    st.lists(st.integers(0, NOW_US + 5), min_size=1, max_size=30),
    st.sets(st.integers(0, 29)),
)
def test_a_batch_is_counted_as_its_events_would_be(waits: list[int], again: set[int]) -> None:
    billing = Durable("billing", KIND, 0)
    latencies = DeliveryLatencies()
    redelivered = (
        ((1, tuple(Span(wait_us, wait_us + 1) for wait_us in sorted(again))),) if again else ()
    )

    latencies.note(billing, rows_of([NOW_US - wait_us for wait_us in waits]), redelivered, NOW_US)

    counted = [wait_us for number, wait_us in enumerate(waits) if number not in again]
    expected = [0] * (len(DELIVERY_BOUNDS_US) + 1)
    for wait_us in counted:
        expected[bisect_left(DELIVERY_BOUNDS_US, wait_us)] += 1
    histogram = latencies.histogram_of(billing)
    assert histogram is not None
    assert histogram.counts == expected
    assert histogram.total_us == sum(counted)


def test_a_batch_redelivered_as_a_whole_is_not_counted() -> None:
    billing = Durable("billing", KIND, 0)
    latencies = DeliveryLatencies()
    again = OutgoingBatch((Span(0, 3),), batch=pa.record_batch({"event_id": [0, 1, 2]}))

    latencies.note(billing, again, ((1, (Span(0, 3),)),), NOW_US)

    histogram = latencies.histogram_of(billing)
    assert histogram is not None
    assert sum(histogram.counts) == 0


def test_a_batch_that_certainly_fits_a_frame_is_not_serialized_to_measure_it() -> None:
    rows = rows_of([1, 2, 3])

    assert list(rows.frames) == [rows]
    assert rows.made_bytes == 0


def test_an_event_with_a_future_time_has_latency_zero() -> None:
    billing = Durable("billing", KIND, 0)
    latencies = DeliveryLatencies()

    latencies.note(billing, rows_of([NOW_US + 7, NOW_US]), (), NOW_US)

    histogram = latencies.histogram_of(billing)
    assert histogram is not None
    assert (histogram.counts[0], histogram.total_us) == (2, 0)


def test_a_deleted_durable_takes_its_histogram_with_it() -> None:
    latencies = DeliveryLatencies()
    billing = Durable("billing", KIND, 0)
    latencies.note(billing, rows_of([NOW_US]), (), NOW_US)
    namesake = Durable("billing", KIND, 0)

    assert latencies.histogram_of(namesake) is None
    del billing
    assert len(latencies._kept) == 0
