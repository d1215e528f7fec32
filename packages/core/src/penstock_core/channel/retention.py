"""Events that leave a channel unconsumed, by age or capacity (SEM T1-T4).

Ages are kept for publishes instead of events, in a list of pairs of first id and time. Publishes
that are closer together than a thousandth of the TTL share one entry. Events with an event TTL are
kept in sets by the end of that TTL; ends that are close together share one set.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from penstock_core.bounds import NEXT_ID_MAX, REDELIVERIES_MAX, TIME_US_MAX, TTL_MS_MAX
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.backoff import check_backoff
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import CapacityReached, InvalidArgument

CAPACITY_MAX = 2_147_483_646
"""Largest capacity of a store, in events."""
KEY_DEPTH_MAX = 1_000_000
"""Largest number of events that stay for each value of a publish key."""
READ_BYTES_MIN = 4_096
"""Smallest read buffer of a store, in bytes."""
READ_BYTES_MAX = 16 << 20
"""Largest read buffer of a store, in bytes."""
COARSE_US = 100_000
"""Publishes on a channel without TTL share one age if they are closer together than this."""
NEVER_US: Final = TIME_US_MAX
"""Stands for the time of an action that is not due at any time."""
ARCHIVE_LENGTH_MAX = 2_048
"""Maximum number of characters of the attribute ``archive``."""
_FEW = 32
"""Up to this many ages are kept in a list; more are kept in a deque, whose popleft is O(1) but
which takes 1 KB even when empty."""


def check_limits(definition: Definition) -> None:
    """Raise ``InvalidArgument`` for a TTL, capacity or start id out of bounds."""
    bounds = (
        ("ttl", definition.ttl, TTL_MS_MAX),
        ("capacity", definition.capacity, CAPACITY_MAX),
        ("start_event_id", definition.start_event_id, NEXT_ID_MAX),
        ("max_deliveries", definition.max_deliveries, REDELIVERIES_MAX),
        ("storage.events_per_spindle", definition.storage.events_per_spindle, CAPACITY_MAX),
        ("storage.sync_batch_time", definition.storage.sync_batch_time, 60_000),
        ("storage.sync_max_batch_size", definition.storage.sync_max_batch_size, 1 << 30),
        ("storage.priority", definition.storage.priority, 9),
    )
    for name, value, highest in bounds:
        if not 0 <= value <= highest:
            raise InvalidArgument(f"{name} is {value}; allowed are 0 to {highest}")
    if not READ_BYTES_MIN <= definition.storage.read_buffer_size <= READ_BYTES_MAX:
        raise InvalidArgument(
            f"storage.read_buffer_size is {definition.storage.read_buffer_size}; allowed are "
            f"{READ_BYTES_MIN} to "
            f"{READ_BYTES_MAX}"
        )
    if len(definition.archive) > ARCHIVE_LENGTH_MAX or not definition.archive.isprintable():
        raise InvalidArgument(
            f"archive is {definition.archive[:60]!r}; it must be a path or URI of up to "
            f"{ARCHIVE_LENGTH_MAX} printable characters"
        )
    check_backoff(definition.backoff)
    check_keys(definition)


def check_deliveries(definition: Definition) -> None:
    """Raise ``InvalidArgument`` for rules of redelivery on a channel, and for a limit of deliveries
    without a store for the events beyond it (SEM C4)."""
    if definition.max_deliveries and definition.kind != "queue":
        raise InvalidArgument(
            "max_deliveries is an attribute of queues and durables, not of a channel"
        )
    if definition.backoff is not None and definition.kind != "queue":
        raise InvalidArgument("backoff is an attribute of queues and durables, not of a channel")
    if definition.max_deliveries and not definition.dead_event_store:
        raise InvalidArgument(
            "max_deliveries needs a dead_event_store for the events that are rolled back too often"
        )


def check_keys(definition: Definition) -> None:
    """Raise ``InvalidArgument`` for an invalid publish key (SEM K1, C4)."""
    for name, depth in definition.keys.items():
        if not name or name.startswith("$"):
            raise InvalidArgument(
                f"{name!r} cannot be a publish key; use the name of an event property, which does "
                "not start with '$'"
            )
        if not 1 <= depth <= KEY_DEPTH_MAX:
            raise InvalidArgument(
                f"publish key {name} has depth {depth}; allowed are 1 to {KEY_DEPTH_MAX}"
            )


def refuse_when_full(
    name: str,
    definition: Definition,
    stored: int,
    incoming: int,
    *,
    overshoot: bool,
    evicts: bool = True,
) -> None:
    """Raise ``CapacityReached`` if the store ``name`` refuses events above its capacity (SEM T4).

    A transaction that began below the limit (``overshoot``) may exceed it as a whole. A publish
    that must not evict (``evicts`` is false) is also refused on evicting channels.
    """
    honours = definition.storage.honour_capacity or not evicts
    if overshoot or not (honours and definition.capacity):
        return
    if stored + incoming > definition.capacity:
        raise CapacityReached(
            f"{name} has no room: {stored} of {definition.capacity} events are stored and "
            f"{incoming} more were offered; wait until some are consumed or expire, or raise the "
            f"capacity"
        )


def make_room(capacity: int, stored: IdSet, incoming: IdSet) -> Spans:
    """Return the oldest events above the capacity (SEM T3), of ``stored`` and, if these are not
    enough, of ``incoming``.

    These events leave after the append, because a batch larger than the capacity evicts part of
    itself.
    """
    excess = len(stored) + len(incoming) - capacity if capacity else 0
    evicted: list[Span] = []
    start = -1
    while excess > 0 and (span := stored.next_span(start, excess)) is not None:
        evicted.append(span)
        excess -= span.size
        start = span.end
    start = -1
    while excess > 0 and (span := incoming.next_span(start, excess)) is not None:
        evicted.append(span)
        excess -= span.size
        start = span.end
    return tuple(evicted)


AgesState = tuple[tuple[tuple[int, int], ...], list[tuple[int, IdSet]]]
"""Pairs of first id and publish time, and pairs of the end of an event TTL and its events."""


class Ages:
    """Publish times of events, and the ends of event TTLs."""

    __slots__ = ("_entries", "_lent", "_merged_us", "_own", "_own_ids", "ends_us", "is_exact")

    def __init__(self, *, is_exact: bool = False) -> None:
        self.is_exact = is_exact
        """Whether events wait for a time that their publisher has set (SEM X4). A correction of the
        clock does not change that time."""
        self._entries: list[tuple[int, int]] | deque[tuple[int, int]] = []
        """Pairs of first id and publish time in microseconds, both ascending."""
        self._own: dict[int, IdSet] = {}
        """Events with an event TTL, by the end of the TTL in microseconds."""
        self.ends_us: list[int] = []
        """Heap of the ends of event TTLs."""
        self._own_ids = IdSet()
        """All events with an event TTL."""
        self._lent: set[int] = set()
        """Keys in ``_own`` of sets that a snapshot is reading; copy such a set before changing
        it."""
        self._merged_us = 0
        """The key in ``_own`` of the set of events whose TTL ended at various times and that are
        still stored; 0 if no such set exists."""

    def add_published(self, span: Span, at_us: int, ttl_ms: int) -> bool:
        """Record when ``span`` was published; return whether it needed a new entry."""
        resolution = ttl_ms if ttl_ms else COARSE_US  # a thousandth of the TTL, in us
        age_us = at_us - self._entries[-1][1] if self._entries else resolution
        if age_us >= resolution:
            if len(self._entries) == _FEW:
                self._entries = deque(self._entries)
            self._entries.append((span.first, at_us))
            return True
        if age_us < 0:
            self.lower(at_us)
        return False

    def lower(self, at_us: int) -> None:
        """Set publish times later than ``at_us`` to ``at_us``, because the clock was ahead in an
        earlier run of the realm. The TTL of these events counts from ``at_us`` (SEM T1)."""
        entries, end, first = self._entries, NEXT_ID_MAX << 1, None
        # Publish times ascend, so the wrong ones are at the end.
        while entries and entries[-1][1] > at_us:
            first, ahead_us = entries.pop()
            if self._own_ids and not self.is_exact:
                self._end_earlier(Span(first, end), ahead_us - at_us)
            end = first
        if first is not None:
            entries.append((first, at_us))

    def _end_earlier(self, span: Span, by_us: int) -> None:
        """Make the event TTLs of events of ``span`` end earlier, by ``by_us``."""
        ids = IdSet((span,))
        for ends_us, ids_of_end in sorted(self._own.items()):
            if moved := ids_of_end.overlap(ids):
                self._changeable_set(ends_us).discard_all(moved)
                self._end_at(ends_us - by_us, moved.spans)

    def next_us(self, event_id: int) -> int | None:
        """Return the publish time of the first entry with a higher id than ``event_id``, or None
        if no entry has one."""
        i = bisect_right(self._entries, event_id, key=lambda entry: entry[0])
        return self._entries[i][1] if i < len(self._entries) else None

    def own_ttl(
        self, at_us: int, ttls: tuple[tuple[int, Spans], ...], *, exact: bool = False
    ) -> None:
        """Record events whose event TTL replaces the channel's (SEM T2). Unless ``exact``, ends
        closer together than the TTL can distinguish are moved to the earliest of them."""
        for ttl_ms, spans in ttls:
            if ttl_ms <= 0:
                continue
            ends_us = at_us + ttl_ms * 1_000
            if not exact:  # down to a power of two of at most a thousandth of the TTL
                coarse = ttl_ms.bit_length() - 1
                ends_us = ends_us >> coarse << coarse
            self._end_at(ends_us, spans)
        ending = [span for ttl_ms, spans in ttls if ttl_ms > 0 for span in spans]
        self._own_ids.add_all(IdSet(sorted(ending)))

    def _end_at(self, ends_us: int, spans: Spans) -> None:
        """Add events whose TTL ends at ``ends_us``."""
        # Version 0.1.0 stored TTLs without a bound; a later end cannot be written into a snapshot.
        ends_us = min(ends_us, TIME_US_MAX)
        ids = self._own.get(ends_us)
        if ids is None:
            ids = self._own[ends_us] = IdSet()
            heapq.heappush(self.ends_us, ends_us)
        else:
            ids = self._changeable_set(ends_us)
        if ends_us == self._merged_us:  # the new ids may have left already
            self._merged_us = 0
        for span in spans:
            ids.add(span)

    def _changeable_set(self, ends_us: int) -> IdSet:
        """Return the set of events whose TTL ends at ``ends_us``, copied first if a snapshot reads
        it."""
        if ends_us in self._lent:
            self._lent.remove(ends_us)
            self._own[ends_us] = self._own[ends_us].copy()
        return self._own[ends_us]

    def add_inserted(self, first: int, at_us: int) -> None:
        """Record the publish time of an event that has a lower id than the newest event. Events
        with higher ids are younger."""
        entries = self._entries
        i = bisect_right(entries, first, key=lambda entry: entry[0])
        if not (i and entries[i - 1] >= (first, at_us)):
            entries.insert(i, (first, at_us))

    def own_of(self, ids: IdSet) -> tuple[tuple[int, Spans], ...]:
        """Return the events of ``ids`` with an event TTL, by the end of the TTL in
        microseconds."""
        if not self._own_ids.overlap(ids):
            return ()
        by_end = (
            (ends_us, ids_of_end.overlap(ids).spans)
            for ends_us, ids_of_end in sorted(self._own.items())
        )
        return tuple((ends_us, spans) for ends_us, spans in by_end if spans)

    def restore_own(self, own: tuple[tuple[int, Spans], ...]) -> None:
        """Restore the result of :meth:`own_of`."""
        for ends_us, spans in own:
            self._end_at(ends_us, spans)
            self._own_ids.add_all(IdSet(spans))

    def due_us(self, ttl_ms: int) -> int:
        """Return the time at which the next event may expire."""
        by_event = self.ends_us[0] if self.ends_us else NEVER_US
        if not (ttl_ms and self._entries):
            return by_event
        return min(by_event, self._entries[0][1] + ttl_ms * 1_000)

    def expired(self, ttl_ms: int, next_id: int, stored: IdSet, now_us: int) -> IdSet:
        """Return the stored events whose TTL is over at ``now_us``."""
        expired = IdSet()
        if ttl_ms:
            end = self._expired_end(ttl_ms, next_id, now_us)
            lowest = stored.lowest
            if lowest is not None and end > lowest:
                expired = stored.within(Span(lowest, end))
                if self._own_ids:
                    # An event TTL replaces the TTL of the channel (SEM T2).
                    expired.remove_all(self._own_ids)
        due = list(self._due(now_us))
        # The merged set has stored events only, so it need not be compared with them.
        if due == [self._merged_us]:
            expired.add_all(self._own[due[0]])
        elif ended := [self._own[ends_us] for ends_us in due]:
            expired.add_all(stored.overlap(ended[0] if len(ended) == 1 else IdSet.union(ended)))
        return expired

    def _expired_end(self, ttl_ms: int, next_id: int, now_us: int) -> int:
        """Return the id below which all events are older than the TTL of the channel; -1 if none
        is."""
        horizon = now_us - ttl_ms * 1_000
        end = -1
        for i, (_, at_us) in enumerate(self._entries):
            if at_us > horizon:
                break
            end = self._entries[i + 1][0] if i + 1 < len(self._entries) else next_id
        return end

    def _due(self, now_us: int) -> Iterator[int]:
        """Yield the ends of event TTLs that have passed."""
        # These ends form the top of the heap, so a walk from its root examines few others.
        indexes = [0]
        while indexes:
            index = indexes.pop()
            if index < len(self.ends_us) and self.ends_us[index] <= now_us:
                yield self.ends_us[index]
                indexes += (2 * index + 1, 2 * index + 2)

    def gather(self, stored: IdSet, now_us: int) -> None:
        """Combine the events whose event TTL is over and that are still stored into one set.

        Each step that moves them to the dead event store reads this set. Without it, each step
        would examine every end again.
        """
        due = list(self._due(now_us))
        if not due or due == [self._merged_us]:
            return
        for _ in due:
            heapq.heappop(self.ends_us)
        remaining = IdSet()
        if self._merged_us in due:
            remaining = self._changeable_set(self._merged_us)
            del self._own[self._merged_us]
            due.remove(self._merged_us)
        ended = IdSet.union(map(self._own.pop, due))
        remaining.add_all(ended.remove_all(stored))
        self._own_ids.discard_all(ended)
        self._merged_us = 0
        if remaining:
            self._merged_us = max(due)
            self._own[self._merged_us] = remaining
            heapq.heappush(self.ends_us, self._merged_us)

    def discard(self, ids: IdSet) -> None:
        """Remove the ids of events that are no longer stored from the set that :meth:`gather`
        combined."""
        # Other sets keep ids that have left; they are compared with the stored ids when they end.
        if self._merged_us:
            gathered = self._changeable_set(self._merged_us)
            self._own_ids.discard_all(gathered.remove_all(ids))

    def forget(self, lowest: int | None, now_us: int) -> None:
        """Drop ages of events that have left: those below the lowest stored id, or expired."""
        self.forget_below(lowest)
        while self.ends_us and self.ends_us[0] <= now_us:
            ends_us = heapq.heappop(self.ends_us)
            self._own_ids.discard_all(self._own.pop(ends_us))
            if ends_us == self._merged_us:
                self._merged_us = 0

    def forget_below(self, lowest: int | None) -> None:
        """Drop ages of events below ``lowest``, the lowest stored id; all ages if it is None,
        because no event is stored."""
        entries = self._entries
        if lowest is None:
            entries.clear()
            return
        # The last entry at or below the lowest id stays: it has the age of that event.
        while len(entries) > 1 and entries[1][0] <= lowest:
            del entries[0]

    def first_at(self, at_us: int, next_id: int) -> int:
        """Return an id at or before the first event published at ``at_us`` or later."""
        i = bisect_right(self._entries, at_us, key=lambda entry: entry[1])
        if i == 0:
            return self._entries[0][0] if self._entries else next_id
        return self._entries[i - 1][0]

    def oldest_us(self, event_id: int) -> int | None:
        """Return when ``event_id`` was published, in microseconds since 1970, at the resolution of
        the ages; None if it is below all ages."""
        i = bisect_right(self._entries, event_id, key=lambda entry: entry[0])
        return self._entries[i - 1][1] if i else None

    def within(self, span: Span, count_max: int) -> list[tuple[int, int]]:
        """Return the first id and the publish time of up to ``count_max`` entries that concern ids
        of ``span``, in order."""
        first = bisect_right(self._entries, span.first, key=lambda entry: entry[0])
        entries = islice(self._entries, max(0, first - 1), max(0, first - 1) + count_max)
        return [entry for entry in entries if entry[0] < span.end]

    @property
    def own_pieces(self) -> int:
        """Number of ranges or bitmaps in the sets of events with an event TTL."""
        return sum([ids.pieces for ids in self._own.values()]) if self._own else 0

    def state(self) -> AgesState:
        """Return the ages for a snapshot. The sets stay unchanged, because :meth:`_changeable_set`
        copies them before the next change."""
        if not self._own:
            return tuple(self._entries), []
        self._lent = set(self._own)
        return tuple(self._entries), [(end, self._own[end]) for end in sorted(self.ends_us)]

    def restore(
        self, entries: tuple[tuple[int, int], ...], own: Iterable[tuple[int, IdSet]]
    ) -> None:
        ages = [(first, published_us) for first, published_us in entries]
        self._entries = ages if len(ages) <= _FEW else deque(ages)
        self._own, self.ends_us, self._own_ids, self._lent = {}, [], IdSet(), set()
        self._merged_us = 0
        for ends_us, ids in own:
            self._end_at(ends_us, ids.spans)
            self._own_ids.add_all(ids)
