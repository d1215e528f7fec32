"""Until when clients have to acknowledge what they hold (SEM D19).

Times are rounded up to a grain, a hundredth of the timeout, so that a durable has about a hundred
of them at once, however many events are in hands, and what is acknowledged in time costs a look at
one set of ids.
"""

from __future__ import annotations

import heapq
from typing import Final

from penstock_core.ids.ids import IdSet

GRAINS: Final = 100
"""Into how many parts a timeout is divided."""


class Deadlines:
    """The events in hands that have to be acknowledged in time, by when."""

    __slots__ = ("_by_time", "_left", "_times", "ids")

    def __init__(self) -> None:
        self.ids = IdSet()
        """All of them."""
        self._by_time: dict[int, IdSet] = {}
        """Each id at most once; some are in nobody's hands any more."""
        self._times: list[int] = []
        """A heap."""
        self._left = IdSet()
        """What is in nobody's hands any more."""

    def __bool__(self) -> bool:
        return bool(self.ids)

    def hand(self, ids: IdSet, now_us: int, timeout_us: int) -> int:
        """A client has ``ids`` from now on, for so long; gives until when."""
        self._take_out(self._left.remove_all(ids) if self._left else IdSet())
        until_us = _rounded(now_us + timeout_us, timeout_us // GRAINS)
        self._add(ids, until_us)
        return until_us

    def extend(self, ids: IdSet, now_us: int, longer_us: int) -> None:
        """Give the clients so much time from now on for those of ``ids`` that are in hands; none
        gets less than it had."""
        until_us = _rounded(now_us + longer_us, longer_us // GRAINS)
        sooner = IdSet()
        for at_us, there in self._by_time.items():
            if at_us < until_us:
                sooner.add_all(there.overlap(ids))
        sooner = sooner.overlap(self.ids)
        self._take_out(sooner)
        self._add(sooner, until_us)

    def discard(self, ids: IdSet) -> None:
        """Forget events that are in nobody's hands any more, however that came."""
        if self.ids:
            self._left.add_all(self.ids.remove_all(ids))

    def due(self, now_us: int) -> IdSet:
        """Which in hands have had their time; changes nothing."""
        found = IdSet()
        for at_us in self._times:
            if at_us <= now_us:
                found.add_all(self._by_time[at_us].overlap(self.ids))
        return found

    @property
    def next_us(self) -> int:
        """When the first client has to have acknowledged something; 0: none has to."""
        while self._times and not self._by_time[self._times[0]].overlap(self.ids):
            self._drop_first()
        return self._times[0] if self._times else 0

    def _add(self, ids: IdSet, until_us: int) -> None:
        if not ids:
            return
        there = self._by_time.get(until_us)
        if there is None:
            there = self._by_time[until_us] = IdSet()
            heapq.heappush(self._times, until_us)
        there.add_all(ids)
        self.ids.add_all(ids)

    def _take_out(self, ids: IdSet) -> None:
        for there in self._by_time.values() if ids else ():
            there.discard_all(ids)

    def _drop_first(self) -> None:
        gone = self._by_time.pop(heapq.heappop(self._times))
        self.ids.discard_all(gone)
        self._left.discard_all(gone)


def _rounded(at_us: int, grain_us: int) -> int:
    grain_us = max(1, grain_us)
    return -(-at_us // grain_us) * grain_us
