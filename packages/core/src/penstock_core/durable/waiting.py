"""Events of a durable that were given back and wait for their time (SEM D18).

One entry for each time and range of ids, in a heap, however many events wait: what is settled,
granted or published meanwhile costs a look at one set of ids, and nothing where none wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.stored_ids import Ids, id_set, written

_STALE_MIN = 1_024


class Waiting:
    """The waiting events, by when they may come again."""

    __slots__ = ("_heap", "ids")

    def __init__(self) -> None:
        self.ids = IdSet()
        """All that wait."""
        self._heap: list[tuple[int, Spans]] = []
        """By time; some of these ids do not wait any more."""

    def __bool__(self) -> bool:
        return bool(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def next_us(self) -> int:
        """When the first of them may come again; 0: none waits."""
        while self._heap and not _some_of(self._heap[0][1], self.ids):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else 0

    @property
    def lowest(self) -> int | None:
        """The id of the first of them."""
        return self.ids.lowest

    def held_up(self, below: int, parked: IdSet) -> int:
        """The id, at most ``below``, under which nothing waits. ``parked`` events come only with
        the next attach, and hold up nobody before."""
        late = self.ids
        if parked:
            late = late.copy()
            late.discard_all(parked)
        return below if late.lowest is None else min(below, late.lowest)

    def add(self, ids: IdSet, until_us: int) -> None:
        """Have ``ids`` wait until then, whatever they waited for before."""
        if self.ids and (again := self.ids.overlap(ids)):
            self._keep(without=again)
        self.ids.add_all(ids)
        heapq.heappush(self._heap, (until_us, ids.spans))
        if len(self._heap) > _STALE_MIN and len(self._heap) > 2 * len(self.ids):
            self._keep()

    def discard(self, ids: IdSet) -> IdSet:
        """Forget those of ``ids``, which are settled or gone; gives which waited."""
        return self.ids.remove_all(ids) if self.ids else IdSet()

    def take_due(self, now_us: int) -> IdSet:
        """Take out the events whose time has come."""
        due = IdSet()
        while self._heap and self._heap[0][0] <= now_us:
            for span in heapq.heappop(self._heap)[1]:
                due.add_all(self.ids.remove(Span(*span)))
        return due

    def come_earlier(self, by_us: int) -> None:
        """Have all events come again ``by_us`` earlier: the clock was ahead by that."""
        self._heap = [(max(1, until_us - by_us), spans) for until_us, spans in self._heap]

    def by_time(self, among: IdSet | None = None) -> list[tuple[int, IdSet]]:
        """What waits (of ``among``) by the time until which it does, the earliest first."""
        found: dict[int, IdSet] = {}
        wanted = self.ids if among is None else self.ids.overlap(among)
        for until_us, spans in self._heap if wanted else ():
            if own := IdSet(spans).overlap(wanted):
                found.setdefault(until_us, IdSet()).add_all(own)
        return sorted(found.items())

    def state(self, lost: IdSet | None = None) -> tuple[tuple[int, Ids], ...]:
        """The form in which a snapshot keeps it, without ``lost``, which no restart finds."""
        kept = []
        for until_us, ids in self.by_time():
            if lost:
                ids.discard_all(lost)
            if ids:
                kept.append((until_us, written(ids)))
        return tuple(kept)

    @classmethod
    def restored(cls, state: Iterable[tuple[int, Ids]]) -> Waiting:
        """What :meth:`state` gave."""
        made = cls()
        for until_us, ids in state:
            made.add(id_set(ids), until_us)
        return made

    def _keep(self, without: IdSet | None = None) -> None:
        """Drop the entries whose ids do not wait any more, and those of ``without``."""
        if without:
            self.ids.remove_all(without)
        self._heap = [(until_us, ids.spans) for until_us, ids in self.by_time()]


def _some_of(spans: Spans, ids: IdSet) -> bool:
    return any(ids.count(Span(*span)) for span in spans)
