"""Times at which a client got the events that it holds (SEM D23).

New events are granted in the order of their ids, so a time is kept for the first id of all events
granted within ``RESOLUTION_US``, and a delivery costs one comparison. Only events that are granted
again, behind events with higher ids, are kept as sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock_core.ids.ids import IdSet, Span, Spans

RESOLUTION_US: Final = 100_000
"""Grants that are closer together than this, in microseconds, share one time."""
_ENTRIES_MIN: Final = 64
"""Entries without events in flight are dropped only above this number, to amortize the cost."""


class GrantTimes:
    """Times of the grants to one seat, in microseconds since 1970."""

    __slots__ = ("_again", "_end", "_entries", "_entries_max", "_newest_until_us")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []
        """Pairs of first id and time, both ascending."""
        self._again: list[tuple[int, IdSet]] = []
        """Times, ascending, each with events that were granted behind events with higher ids."""
        self._end = 0
        """The id behind the highest granted one."""
        self._newest_until_us = 0
        """Time until which new events share the time of the newest entry; 0 without entries."""
        self._entries_max = _ENTRIES_MIN
        """Number of entries at which those without events in flight are dropped."""

    def record(self, spans: Spans, at_us: int, in_flight: IdSet) -> None:
        """Record a grant of ``spans``, which are in ascending order. ``in_flight`` are all events
        of the seat, including these."""
        if not spans:
            return
        first, end = spans[0][0], spans[-1][1]
        if first >= self._end:
            # The usual case, for which every call counts: new events, soon after the last ones.
            self._end = end
            if at_us < self._newest_until_us:
                return
            self._entries.append((first, at_us))
            self._newest_until_us = at_us + RESOLUTION_US
        elif self._again and at_us - self._again[-1][0] < RESOLUTION_US:
            self._again[-1][1].add_all(IdSet(spans))
        else:
            self._again.append((at_us, IdSet(spans)))
        self._end = max(self._end, end)
        if len(self._entries) + len(self._again) > self._entries_max:
            self._drop_settled(in_flight)

    def times_of(self, ids: IdSet) -> Iterator[tuple[int | None, IdSet]]:
        """Yield parts of ``ids``, all in flight at the seat, with the time of their last grant;
        None for events whose grant was not recorded."""
        remaining = ids.copy()
        # An event may have been granted again several times; the last time counts.
        for at_us, again in reversed(self._again):
            if part := remaining.remove_all(again):
                yield at_us, part
        # The newest events are the most likely to be in flight.
        for (first, at_us), end in zip(
            reversed(self._entries), reversed(self._ends()), strict=True
        ):
            if not remaining:
                return
            if part := remaining.remove(Span(first, end)):
                yield at_us, part
        if remaining:
            yield None, remaining

    def _ends(self) -> list[int]:
        """Return the id behind the events of each entry."""
        return [*(first for first, _ in self._entries[1:]), self._end]

    def _drop_settled(self, in_flight: IdSet) -> None:
        """Drop the entries without events in flight, except the newest."""
        newest = self._entries[-1:]
        self._entries = [
            entry
            for entry, end in zip(self._entries[:-1], self._ends(), strict=False)
            if in_flight.count(Span(entry[0], end))
        ] + newest
        # Of the grants of an event only the last is kept.
        remaining = in_flight.copy()
        newest_first = ((at_us, remaining.remove_all(ids)) for at_us, ids in reversed(self._again))
        self._again = [(at_us, ids) for at_us, ids in newest_first if ids][::-1]
        self._entries_max = max(_ENTRIES_MIN, 2 * (len(self._entries) + len(self._again)))
