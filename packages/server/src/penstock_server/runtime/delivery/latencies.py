"""Latencies from publish to first delivery, as a histogram for each durable.

Latencies are counted for whole batches: all events of a published batch have the same time, and the
times of any other batch are classified in one vectorized step. So no Python code runs per event.
The histograms are soft state: they begin when the realm starts and end with their durable.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from penstock_core.columns.events.batch import ids_of, times_of, within
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.timings import DELIVERY_BOUNDS_US, Timings
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

_BOUNDS: Final = np.array(DELIVERY_BOUNDS_US, dtype=np.int64)


class DeliveryLatencies:
    """The histograms of all durables with deliveries since the realm started."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Durable, Timings] = WeakKeyDictionary()

    def histogram_of(self, durable: object) -> Timings | None:
        """Return the histogram of a durable; None if it had no delivery since the realm started."""
        return self._kept.get(durable) if isinstance(durable, Durable) else None

    def note(
        self,
        durable: Durable,
        rows: OutgoingBatch,
        redelivered: tuple[tuple[int, Spans], ...],
        now_us: int,
    ) -> None:
        """Count the latencies of events that are sent to a client of a durable now. Redelivered
        events are left out, because the time since their publish is not the time to their first
        delivery."""
        timings = self._kept.get(durable)
        if timings is None:
            timings = self._kept[durable] = Timings(DELIVERY_BOUNDS_US)
        fresh = _fresh(rows, redelivered) if redelivered else None
        if rows.at_us and fresh is None:
            # The latency is cut at 0, because after a restart the clock may show an earlier time
            # than at the publish.
            timings.note_many(max(0, now_us - rows.at_us), rows.count)
            return
        if fresh == ():
            return
        published = times_of(rows.batch)
        if fresh is not None:
            published = published[within(ids_of(rows.batch), fresh)]
        first_us = published[0]
        if (published == first_us).all():  # common: a small window of events of one publish
            timings.note_many(max(0, now_us - int(first_us)), len(published))
            return
        waits = np.maximum(now_us - published, 0)
        classes = np.searchsorted(_BOUNDS, waits, side="left")
        counts = np.bincount(classes, minlength=len(_BOUNDS) + 1)
        timings.add(counts.tolist(), int(waits.sum()))


def _fresh(
    rows: OutgoingBatch, redelivered: tuple[tuple[int, Spans], ...]
) -> tuple[Span, ...] | None:
    """Return the ids of ``rows`` that are delivered for the first time; None means all."""
    redelivered_ids = IdSet(sorted(Span(*span) for _, spans in redelivered for span in spans))
    if not redelivered_ids.overlap(IdSet(rows.spans)):
        return None
    first_time = IdSet(rows.spans)
    first_time.discard_all(redelivered_ids)
    return tuple(first_time.spans)
