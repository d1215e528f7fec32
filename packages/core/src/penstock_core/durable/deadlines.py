"""Deadlines for the acknowledgement of events that clients hold (SEM D19).

Times are rounded up to a grain, a hundredth of the timeout. A durable therefore has about a hundred
distinct deadlines at a time, however many events are in flight, and an acknowledgement in time
costs one set operation.
"""

from __future__ import annotations

import heapq
from typing import Final

from penstock_core.ids.ids import IdSet

GRAINS: Final = 100
"""Number of parts into which a timeout is divided."""


class Deadlines:
    """Events in flight with a deadline, by deadline."""

    __slots__ = ("_by_time", "_ended", "_times", "ids")

    def __init__(self) -> None:
        self.ids = IdSet()
        """All events with a deadline."""
        self._by_time: dict[int, IdSet] = {}
        """Ids by deadline, each at most once; some are not in flight any more."""
        self._times: list[int] = []
        """Heap of the deadlines."""
        self._ended = IdSet()
        """Ids in ``_by_time`` that are not in flight any more."""

    def __bool__(self) -> bool:
        return bool(self.ids)

    def hand(self, ids: IdSet, now_us: int, timeout_us: int) -> int:
        """Set the deadline of events granted now, which is ``timeout_us`` from now, rounded up.
        Return the deadline in microseconds."""
        # Events that are granted again may still have an entry for their former deadline.
        self._take_out(self._ended.remove_all(ids) if self._ended else IdSet())
        until_us = _rounded(now_us + timeout_us, timeout_us // GRAINS)
        self._add(ids, until_us)
        return until_us

    def extend(self, ids: IdSet, now_us: int, longer_us: int) -> None:
        """Move the deadlines of events in flight to ``longer_us`` from now, unless they are
        later."""
        until_us = _rounded(now_us + longer_us, longer_us // GRAINS)
        # Later deadlines stay, so that an extension never shortens the time of an event.
        sooner = IdSet()
        for at_us, ids_at in self._by_time.items():
            if at_us < until_us:
                sooner.add_all(ids_at.overlap(ids))
        sooner = sooner.overlap(self.ids)
        self._take_out(sooner)
        self._add(sooner, until_us)

    def discard(self, ids: IdSet) -> None:
        """Drop events that are not in flight any more."""
        if self.ids:
            self._ended.add_all(self.ids.remove_all(ids))

    def due(self, now_us: int) -> IdSet:
        """Return the events in flight whose deadline is over, without changing anything."""
        overdue = IdSet()
        # The heap is not sorted, but it has only about a hundred entries.
        for at_us in self._times:
            if at_us <= now_us:
                overdue.add_all(self._by_time[at_us].overlap(self.ids))
        return overdue

    def by_time(self, among: IdSet) -> list[tuple[int, IdSet]]:
        """Return the events of ``among`` that have a deadline, by their deadline, earliest
        first."""
        timed = self.ids.overlap(among)
        times = sorted(self._times) if timed else ()
        by_time = ((at_us, self._by_time[at_us].overlap(timed)) for at_us in times)
        return [(at_us, ids) for at_us, ids in by_time if ids]

    @property
    def next_us(self) -> int:
        """The earliest deadline of an event in flight, in microseconds; 0 if no event in flight has
        one."""
        # Events that are settled in time leave their deadline in the heap; it is dropped here.
        while self._times and not self._by_time[self._times[0]].overlap(self.ids):
            self._drop_first()
        return self._times[0] if self._times else 0

    def _add(self, ids: IdSet, until_us: int) -> None:
        """Set the deadline of events."""
        if not ids:
            return
        ids_at = self._by_time.get(until_us)
        if ids_at is None:
            ids_at = self._by_time[until_us] = IdSet()
            heapq.heappush(self._times, until_us)
        ids_at.add_all(ids)
        self.ids.add_all(ids)

    def _take_out(self, ids: IdSet) -> None:
        """Remove the entries of events from all deadlines."""
        for ids_at in self._by_time.values() if ids else ():
            ids_at.discard_all(ids)

    def _drop_first(self) -> None:
        """Remove the earliest deadline, none of whose events is in flight."""
        dropped = self._by_time.pop(heapq.heappop(self._times))
        self.ids.discard_all(dropped)
        self._ended.discard_all(dropped)


def _rounded(at_us: int, grain_us: int) -> int:
    """Return a time rounded up to a multiple of ``grain_us``."""
    grain_us = max(1, grain_us)
    return -(-at_us // grain_us) * grain_us
