"""Sizes of stored events, in runs of ids; they bound the bytes that a step reads or moves.

Only the storage knows the size of each event, but the core decides how many events a step moves. It
keeps the average size of each published batch, and joins neighbouring batches of similar size into
one run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from penstock_core.ids.ids import IdSet, Span

RUNS_MAX = 64
"""Maximum number of runs; when it is reached, neighbouring runs are merged in pairs."""
SIMILAR = 4
"""A batch joins the last run if the average size of its events is at most that of the run, and at
least this fraction of it (1/4)."""


class EventSizes:
    """Upper estimates of the size of events, by runs of ids, ascending."""

    __slots__ = ("_bytes", "_firsts", "least", "most")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        """First event id of each run."""
        self._bytes: list[float] = []
        """Estimated size of an event of each run, in bytes."""
        self.least = self.most = 0.0
        """Bounds, in bytes. A batch whose average event size lies between them belongs to the last
        run."""

    @classmethod
    def from_batches(cls, batches: Iterable[tuple[int, float]]) -> EventSizes:
        """Return the sizes of batches, each with its first id and its bytes per event."""
        sizes = cls()
        for first_id, event_bytes in batches:
            if not sizes.least <= event_bytes <= sizes.most:
                sizes.begin_run(first_id, event_bytes, lowest=0)
        return sizes

    def begin_run(self, first_id: int, event_bytes: float, lowest: int) -> None:
        """Start a run: events from ``first_id`` on have another size. If there are :data:`RUNS_MAX`
        runs, those that end below ``lowest``, the lowest stored id, are dropped."""
        if len(self._firsts) >= RUNS_MAX:
            self._compact(lowest)
        if self._bytes and self.most < event_bytes <= self.most * 1.25:
            # Slowly growing events stay in one run, whose size is that of its largest events.
            self._bytes[-1] = max(self._bytes[-1], event_bytes)
        else:
            self._firsts.append(first_id)
            self._bytes.append(event_bytes)
        self.most = event_bytes
        self.least = event_bytes / SIMILAR

    @property
    def largest(self) -> float:
        """Bytes per event of the run with the largest events; 0.0 without runs."""
        return max(self._bytes, default=0.0)

    def _compact(self, lowest: int) -> None:
        """Drop the runs that end below ``lowest``; merge runs in pairs if many remain."""
        ended_count = max(0, bisect_right(self._firsts, lowest) - 1)
        del self._firsts[:ended_count], self._bytes[:ended_count]
        if len(self._firsts) > RUNS_MAX // 2:
            # With an odd number of runs the last one has no partner.
            pairs = zip(self._bytes[::2], [*self._bytes[1::2], 0.0], strict=False)
            self._bytes = [max(pair) for pair in pairs]
            self._firsts = self._firsts[::2]

    def lowest_within(self, ids: IdSet, events_max: int, bytes_max: float) -> IdSet:
        """Return the lowest of ``ids``: at most ``events_max`` with about ``bytes_max`` bytes in
        total, and at least one. The result may be ``ids`` itself."""
        lowest = ids.lowest
        if lowest is None:
            return ids
        if not self._firsts:
            return ids.lowest_part(max(1, events_max))
        count, bytes_left = 0, bytes_max
        index = max(0, bisect_right(self._firsts, lowest) - 1)
        while index < len(self._firsts) and count < events_max and bytes_left > 0:
            is_last = index + 1 == len(self._firsts)
            first = lowest if count == 0 else self._firsts[index]
            end = (ids.highest or 0) + 1 if is_last else self._firsts[index + 1]
            event_count = ids.count(Span(first, max(first, end)))
            event_bytes = max(1.0, self._bytes[index])
            fitting_count = min(event_count, int(bytes_left / event_bytes))
            count += fitting_count
            # An event that does not fit ends the step, because only the lowest ids may move.
            bytes_left = (
                bytes_left - fitting_count * event_bytes if fitting_count == event_count else 0
            )
            index += 1
        return ids.lowest_part(max(1, min(count, events_max)))
