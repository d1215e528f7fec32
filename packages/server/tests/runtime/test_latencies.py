"""How long deliveries took: noted for batches, as if each event had been looked at."""

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
    redelivered = ((1, tuple(Span(each, each + 1) for each in sorted(again))),) if again else ()

    latencies.note(billing, rows_of([NOW_US - each for each in waits]), redelivered, NOW_US)

    counted = [each for number, each in enumerate(waits) if number not in again]
    expected = [0] * (len(DELIVERY_BOUNDS_US) + 1)
    for each in counted:
        expected[bisect_left(DELIVERY_BOUNDS_US, each)] += 1
    found = latencies.histogram_of(billing)
    assert found is not None
    assert found.counts == expected
    assert found.total_us == sum(counted)


def test_a_batch_that_comes_again_as_a_whole_is_not_looked_at() -> None:
    billing = Durable("billing", KIND, 0)
    latencies = DeliveryLatencies()
    again = OutgoingBatch((Span(0, 3),), batch=pa.record_batch({"event_id": [0, 1, 2]}))

    latencies.note(billing, again, ((1, (Span(0, 3),)),), NOW_US)

    found = latencies.histogram_of(billing)
    assert found is not None
    assert sum(found.counts) == 0


def test_what_is_surely_one_frame_is_not_made_bytes_to_know_it() -> None:
    rows = rows_of([1, 2, 3])

    assert list(rows.frames) == [rows]
    assert rows.made_bytes == 0


def test_an_event_from_the_future_took_no_time() -> None:
    billing = Durable("billing", KIND, 0)
    latencies = DeliveryLatencies()

    latencies.note(billing, rows_of([NOW_US + 7, NOW_US]), (), NOW_US)

    found = latencies.histogram_of(billing)
    assert found is not None
    assert (found.counts[0], found.total_us) == (2, 0)


def test_a_durable_that_is_gone_takes_its_figures_along() -> None:
    latencies = DeliveryLatencies()
    billing = Durable("billing", KIND, 0)
    latencies.note(billing, rows_of([NOW_US]), (), NOW_US)
    other = Durable("billing", KIND, 0)

    assert latencies.histogram_of(other) is None
    del billing
    assert len(latencies._kept) == 0
