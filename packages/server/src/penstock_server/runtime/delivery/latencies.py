"""How long events took from their publish to their first delivery, for each durable.

What is noted is noted for a batch: a batch as it was published has one time, and of any other the
column of times is looked at as a whole. So the cost does not grow with the number of events. It is
soft state: it begins with the realm's start and ends with its durable.
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
    """The histograms of the durables that have been delivered something."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Durable, Timings] = WeakKeyDictionary()

    def histogram_of(self, durable: object) -> Timings | None:
        """The histogram of a durable; None: nothing was delivered since the realm started."""
        return self._kept.get(durable) if isinstance(durable, Durable) else None

    def note(
        self,
        durable: Durable,
        rows: OutgoingBatch,
        redelivered: tuple[tuple[int, Spans], ...],
        now_us: int,
    ) -> None:
        """Events go to a client of a durable. Those that come again are left out: when they were
        published says nothing of how long this delivery took."""
        timings = self._kept.get(durable)
        if timings is None:
            timings = self._kept[durable] = Timings(DELIVERY_BOUNDS_US)
        fresh = _fresh(rows, redelivered) if redelivered else None
        if rows.at_us and fresh is None:
            timings.note_many(max(0, now_us - rows.at_us), rows.count)
            return
        if fresh == ():
            return
        published = times_of(rows.batch)
        if fresh is not None:
            published = published[within(ids_of(rows.batch), fresh)]
        first_us = published[0]
        if (published == first_us).all():  # a small window is of one publish
            timings.note_many(max(0, now_us - int(first_us)), len(published))
            return
        waits = np.maximum(now_us - published, 0)
        classes = np.searchsorted(_BOUNDS, waits, side="left")
        counts = np.bincount(classes, minlength=len(_BOUNDS) + 1)
        timings.add(counts.tolist(), int(waits.sum()))


def _fresh(
    rows: OutgoingBatch, redelivered: tuple[tuple[int, Spans], ...]
) -> tuple[Span, ...] | None:
    """The ids of ``rows`` that come for the first time; None: all of them."""
    again = IdSet(sorted(Span(*span) for _, spans in redelivered for span in spans))
    if not again.overlap(IdSet(rows.spans)):
        return None
    left = IdSet(rows.spans)
    left.discard_all(again)
    return tuple(left.spans)
