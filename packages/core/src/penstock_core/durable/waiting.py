"""Events of a durable that are delayed after a rollback (SEM D18).

A heap has one entry for each group of events that are delayed together until one time, however many
events wait. While events wait, settling, granting or publishing costs one more set operation. The
ranges are also kept by id, so that the delays of a page of events are found without a walk over all
delays.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.stored_ids import Ids, id_set, stored_form

_STALE_MIN = 1_024
"""The heap is rebuilt only above this number of entries, to amortize the cost."""


class Waiting:
    """Delayed events, by the end of their delay."""

    __slots__ = ("_heap", "_lasts", "_ranges", "_stale", "ids")

    def __init__(self) -> None:
        self.ids = IdSet()
        """All delayed events."""
        self._heap: list[tuple[int, Spans]] = []
        """Heap by end of delay; some of its ids do not wait any more. An id is in one entry."""
        self._ranges: dict[int, tuple[int, int]] = {}
        """First id and end of delay of each range of the heap, by the last id of the range."""
        self._lasts = IdSet()
        """The keys of ``_ranges``."""
        self._stale = IdSet()
        """The ids of the heap that do not wait any more."""

    def __bool__(self) -> bool:
        return bool(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def next_us(self) -> int:
        """The earliest end of a delay, in microseconds since 1970; 0 if no event waits."""
        while self._heap and not _has_some(self._heap[0][1], self.ids):
            self._pop_first()
        return self._heap[0][0] if self._heap else 0

    @property
    def lowest(self) -> int | None:
        """The lowest delayed id."""
        return self.ids.lowest

    def held_up(self, below: int, parked: IdSet) -> int:
        """Return the lowest id of a delayed event, but at most ``below``. ``parked`` events wait
        for the next attach, so they do not hold up others."""
        delayed = self.ids
        if parked:
            delayed = delayed.copy()
            delayed.discard_all(parked)
        return below if delayed.lowest is None else min(below, delayed.lowest)

    def add(self, ids: IdSet, until_us: int) -> None:
        """Delay ``ids`` until ``until_us``; this replaces earlier delays."""
        # An entry of an earlier delay would end the new delay too soon, so the heap is rebuilt. The
        # earlier delay may also be over: an event that was settled is outstanding again after a
        # seek.
        again = self.ids.overlap(ids) if self.ids else None
        if again or (self._stale and self._stale.overlap(ids)):
            self._rebuild_heap(without=again)
        self.ids.add_all(ids)
        self._push(until_us, ids.spans)
        if len(self._heap) > _STALE_MIN and len(self._heap) > 2 * len(self.ids):
            self._rebuild_heap()

    def discard(self, ids: IdSet) -> IdSet:
        """Drop events that are settled or have left; return those that waited."""
        if not self.ids:
            return IdSet()
        discarded = self.ids.remove_all(ids)
        self._stale.add_all(discarded)
        return discarded

    def take_due(self, now_us: int) -> IdSet:
        """Remove and return the events whose delay is over."""
        due = IdSet()
        while self._heap and self._heap[0][0] <= now_us:
            # Ids that do not wait any more were settled or have left.
            due.add_all(self.ids.remove_all(self._pop_first()))
        return due

    def come_earlier(self, by_us: int) -> None:
        """Shorten all delays by ``by_us``, because the clock was ahead by that time."""
        heap, self._heap = self._heap, []
        for until_us, spans in heap:
            self._push(max(1, until_us - by_us), spans)

    def by_time(self, among: IdSet | None = None) -> list[tuple[int, IdSet]]:
        """Return the delayed events (of ``among``) by the end of their delay, earliest first."""
        ids_by_time: dict[int, IdSet] = {}
        wanted = self.ids if among is None else self.ids.overlap(among)
        for span, until_us in self._ranges_around(wanted):
            if ids := wanted.within(span):
                ids_by_time.setdefault(until_us, IdSet()).add_all(ids)
        return sorted(ids_by_time.items())

    def state(self, lost: IdSet | None = None) -> tuple[tuple[int, Ids], ...]:
        """Return the delays for a snapshot, without ``lost`` events, which do not survive a
        restart."""
        delays = []
        for until_us, ids in self.by_time():
            if lost:
                ids.discard_all(lost)
            if ids:
                delays.append((until_us, stored_form(ids)))
        return tuple(delays)

    @classmethod
    def restored(cls, state: Iterable[tuple[int, Ids]]) -> Waiting:
        """Return the delays that :meth:`state` has written."""
        waiting = cls()
        for until_us, ids in state:
            waiting.add(id_set(ids), until_us)
        return waiting

    def _ranges_around(self, ids: IdSet) -> Iterator[tuple[Span, int]]:
        """Yield the ranges between the lowest and the highest of ``ids`` with the ends of their
        delays, by id."""
        lowest, highest = ids.lowest, ids.highest
        if lowest is None or highest is None:
            return
        lasts = self._lasts.within(Span(lowest, highest))
        if (last_range := self._lasts.next_span(highest, 1)) is not None:
            lasts.add(last_range)
        for last in lasts:
            first, until_us = self._ranges[last]
            yield Span(first, last + 1), until_us

    def _push(self, until_us: int, spans: Spans) -> None:
        """Add an entry to the heap, and its ranges."""
        heapq.heappush(self._heap, (until_us, spans))
        self._ranges.update([(end - 1, (first, until_us)) for first, end in spans])
        self._lasts.add_all(_lasts_of(spans))

    def _pop_first(self) -> IdSet:
        """Remove the entry with the earliest end, and its ranges; return its ids."""
        spans = heapq.heappop(self._heap)[1]
        for _, end in spans:
            del self._ranges[end - 1]
        self._lasts.discard_all(_lasts_of(spans))
        ids = IdSet(spans)
        if self._stale:
            self._stale.discard_all(ids)
        return ids

    def _rebuild_heap(self, without: IdSet | None = None) -> None:
        """Rebuild the heap without the ids that do not wait any more, and without the ids
        ``without``."""
        if without:
            self.ids.remove_all(without)
        by_time = self.by_time()
        self._heap, self._ranges = [], {}
        self._lasts, self._stale = IdSet(), IdSet()
        for until_us, ids in by_time:
            self._push(until_us, ids.spans)


def _lasts_of(spans: Spans) -> IdSet:
    """Return the last ids of ``spans``."""
    return IdSet.from_ids([end - 1 for _, end in spans])


def _has_some(spans: Spans, ids: IdSet) -> bool:
    return any(ids.count(Span(*span)) for span in spans)
