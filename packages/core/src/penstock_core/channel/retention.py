"""What leaves a channel without being consumed, and why (SEM T1-T4).

Ages are kept for publishes, not for events: a list of (first id, time), in which publishes are
joined that are closer together than the TTL can distinguish. Events with a TTL of their own are
kept by when it ends, joined in the same way.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from penstock_core.bounds import NEXT_ID_MAX, REDELIVERIES_MAX, TIME_US_MAX, TTL_MS_MAX
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.backoff import check_backoff
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import CapacityReached, InvalidArgument

CAPACITY_MAX = 2_147_483_646
KEY_DEPTH_MAX = 1_000_000
READ_BYTES_MIN = 4_096
READ_BYTES_MAX = 16 << 20
COARSE_US = 100_000
"""Without a TTL, publishes this close together share one age."""
NEVER_US: Final = TIME_US_MAX
"""The time of something that does not happen."""
ARCHIVE_LENGTH_MAX = 2_048
_FEW = 32
"""Ages that are kept in a list; more are in a deque, which gives up its first one at once and takes
a kilobyte even where it is empty."""


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
            f"archive is {definition.archive[:60]!r}; it is a path or URI of up to "
            f"{ARCHIVE_LENGTH_MAX} printable characters"
        )
    check_backoff(definition.backoff)
    check_keys(definition)


def check_keys(definition: Definition) -> None:
    """Raise ``InvalidArgument`` for a publish key that cannot be (SEM K1, C4)."""
    for name, depth in definition.keys.items():
        if not name or name.startswith("$"):
            raise InvalidArgument(f"publish key {name!r}: name a property of your events")
        if not 1 <= depth <= KEY_DEPTH_MAX:
            raise InvalidArgument(f"publish key {name} has depth {depth}; 1 to {KEY_DEPTH_MAX}")


def refuse_when_full(
    name: str,
    definition: Definition,
    stored: int,
    incoming: int,
    *,
    overshoot: bool,
    evicts: bool = True,
) -> None:
    """SEM T4, of the store ``name``. A transaction that began below the limit (``overshoot``)
    may pass it as a whole; what never ``evicts`` is refused on channels that do, too."""
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
    """The oldest events above capacity (SEM T3).

    They leave after the append, for a batch larger than the capacity evicts part of itself.
    """
    excess = len(stored) + len(incoming) - capacity if capacity else 0
    evicted: list[Span] = []
    at = -1
    while excess > 0 and (span := stored.next_span(at, excess)) is not None:
        evicted.append(span)
        excess -= span.size
        at = span.end
    at = -1
    while excess > 0 and (span := incoming.next_span(at, excess)) is not None:
        evicted.append(span)
        excess -= span.size
        at = span.end
    return tuple(evicted)


AgesState = tuple[tuple[tuple[int, int], ...], list[tuple[int, IdSet]]]
"""When events were published, by the first of them; those with a TTL of their own, by its end."""


class Ages:
    """When which events were published, and when those with a TTL of their own end."""

    __slots__ = ("_entries", "_gathered_us", "_lent", "_own", "_own_ids", "ends_us", "is_exact")

    def __init__(self, *, is_exact: bool = False) -> None:
        self.is_exact = is_exact
        """Whether events wait here for a time that was given (SEM X4): no clock changes that."""
        self._entries: list[tuple[int, int]] | deque[tuple[int, int]] = []
        self._own: dict[int, IdSet] = {}
        """Events with a TTL of their own, by when it ends."""
        self.ends_us: list[int] = []
        """When events with a TTL of their own end, a heap."""
        self._own_ids = IdSet()
        self._lent: set[int] = set()
        """The ends of those sets that somebody else reads, and that are not changed."""
        self._gathered_us = 0
        """The end under which those are that have ended at different times and are still stored;
        0: there are none."""

    def appended(self, span: Span, at_us: int, ttl_ms: int) -> bool:
        """Note when ``span`` was published; gives whether earlier ones are so much older that it
        had to be noted."""
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
        """Take events that are younger than ``at_us`` as published then: an earlier start of the
        realm had a clock that was ahead. Their TTL runs from then on (SEM T1)."""
        entries, end, first = self._entries, NEXT_ID_MAX << 1, None
        while entries and entries[-1][1] > at_us:
            first, ahead_us = entries.pop()
            if self._own_ids and not self.is_exact:
                self._end_earlier(Span(first, end), ahead_us - at_us)
            end = first
        if first is not None:
            entries.append((first, at_us))

    def _end_earlier(self, span: Span, by_us: int) -> None:
        """Move the ends of events of ``span`` that have a TTL of their own."""
        ids = IdSet((span,))
        for ends_us, own in sorted(self._own.items()):
            if moved := own.overlap(ids):
                self._changeable(ends_us).discard_all(moved)
                self._end_at(ends_us - by_us, moved.spans)

    def next_us(self, event_id: int) -> int | None:
        """When the first publish behind ``event_id`` that has an age of its own came; None: none
        has."""
        i = bisect_right(self._entries, event_id, key=lambda entry: entry[0])
        return self._entries[i][1] if i < len(self._entries) else None

    def own_ttl(
        self, at_us: int, ttls: tuple[tuple[int, Spans], ...], *, exact: bool = False
    ) -> None:
        """Note events whose own TTL replaces the channel's (SEM T2). Unless ``exact``, events that
        end closer together than their TTL can distinguish end together, with the first of them."""
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
        # Version 0.1.0 stored TTLs without a bound; a later end cannot be written into a snapshot.
        ends_us = min(ends_us, TIME_US_MAX)
        ids = self._own.get(ends_us)
        if ids is None:
            ids = self._own[ends_us] = IdSet()
            heapq.heappush(self.ends_us, ends_us)
        else:
            ids = self._changeable(ends_us)
        if ends_us == self._gathered_us:  # whether these are stored is to be found out
            self._gathered_us = 0
        for span in spans:
            ids.add(span)

    def _changeable(self, ends_us: int) -> IdSet:
        """What ends then, as a set that nobody else reads."""
        if ends_us in self._lent:
            self._lent.remove(ends_us)
            self._own[ends_us] = self._own[ends_us].copy()
        return self._own[ends_us]

    def inserted(self, first: int, at_us: int) -> None:
        """An event older than the newest came to be known: what follows it is younger."""
        entries = self._entries
        i = bisect_right(entries, first, key=lambda entry: entry[0])
        if not (i and entries[i - 1] >= (first, at_us)):
            entries.insert(i, (first, at_us))

    def own_of(self, ids: IdSet) -> tuple[tuple[int, Spans], ...]:
        """The part of ``ids`` that have a TTL of their own, by when it ends."""
        if not self._own_ids.overlap(ids):
            return ()
        found = ((ends_us, own.overlap(ids).spans) for ends_us, own in sorted(self._own.items()))
        return tuple((ends_us, spans) for ends_us, spans in found if spans)

    def restore_own(self, own: tuple[tuple[int, Spans], ...]) -> None:
        """Restore what :meth:`own_of` gave, from a snapshot."""
        for ends_us, spans in own:
            self._end_at(ends_us, spans)
            self._own_ids.add_all(IdSet(spans))

    def due_us(self, ttl_ms: int) -> int:
        """When the next event may expire."""
        by_event = self.ends_us[0] if self.ends_us else NEVER_US
        if not (ttl_ms and self._entries):
            return by_event
        return min(by_event, self._entries[0][1] + ttl_ms * 1_000)

    def expired(self, ttl_ms: int, next_id: int, stored: IdSet, now_us: int) -> IdSet:
        """Stored events that have outlived their TTL at ``now_us``."""
        gone = IdSet()
        if ttl_ms:
            end = self._expired_through(ttl_ms, next_id, now_us)
            lowest = stored.lowest
            if lowest is not None and end > lowest:
                gone = stored.within(Span(lowest, end))
                if self._own_ids:
                    gone.remove_all(self._own_ids)
        due = list(self._due(now_us))
        if due == [self._gathered_us]:
            gone.add_all(self._own[due[0]])
        elif ended := [self._own[ends_us] for ends_us in due]:
            gone.add_all(stored.overlap(ended[0] if len(ended) == 1 else IdSet.union(ended)))
        return gone

    def _expired_through(self, ttl_ms: int, next_id: int, now_us: int) -> int:
        horizon = now_us - ttl_ms * 1_000
        end = -1
        for i, (_, at_us) in enumerate(self._entries):
            if at_us > horizon:
                break
            end = self._entries[i + 1][0] if i + 1 < len(self._entries) else next_id
        return end

    def _due(self, now_us: int) -> Iterator[int]:
        """The ends that have passed. They are at the top of a heap, so no others are examined."""
        places = [0]
        while places:
            place = places.pop()
            if place < len(self.ends_us) and self.ends_us[place] <= now_us:
                yield self.ends_us[place]
                places += (2 * place + 1, 2 * place + 2)

    def gather(self, stored: IdSet, now_us: int) -> None:
        """Take together what has ended by its own TTL and is still stored.

        While it moves somewhere in steps, each step asks for it: what ended at one of many times is
        looked at once, when the next step comes.
        """
        due = list(self._due(now_us))
        if not due or due == [self._gathered_us]:
            return
        for _ in due:
            heapq.heappop(self.ends_us)
        left = IdSet()
        if self._gathered_us in due:
            left = self._changeable(self._gathered_us)
            del self._own[self._gathered_us]
            due.remove(self._gathered_us)
        ended = IdSet.union(map(self._own.pop, due))
        left.add_all(ended.remove_all(stored))
        self._own_ids.discard_all(ended)
        self._gathered_us = 0
        if left:
            self._gathered_us = max(due)
            self._own[self._gathered_us] = left
            heapq.heappush(self.ends_us, self._gathered_us)

    def discard(self, ids: IdSet) -> None:
        """These are not stored any more."""
        if self._gathered_us:
            gathered = self._changeable(self._gathered_us)
            self._own_ids.discard_all(gathered.remove_all(ids))

    def forget(self, lowest: int | None, now_us: int) -> None:
        """Drop ages of events that have left: below the lowest stored, or expired by now."""
        self.forget_below(lowest)
        while self.ends_us and self.ends_us[0] <= now_us:
            ends_us = heapq.heappop(self.ends_us)
            self._own_ids.discard_all(self._own.pop(ends_us))
            if ends_us == self._gathered_us:
                self._gathered_us = 0

    def forget_below(self, lowest: int | None) -> None:
        """Drop ages of events below the lowest stored (None: nothing is); costs nothing when
        there are none."""
        entries = self._entries
        if lowest is None:
            entries.clear()
            return
        while len(entries) > 1 and entries[1][0] <= lowest:
            del entries[0]

    def first_at(self, at_us: int, next_id: int) -> int:
        """An id at or before the first event published at ``at_us`` or later."""
        i = bisect_right(self._entries, at_us, key=lambda entry: entry[1])
        if i == 0:
            return self._entries[0][0] if self._entries else next_id
        return self._entries[i - 1][0]

    def oldest_us(self, event_id: int) -> int | None:
        """When ``event_id`` was published, to the resolution kept."""
        i = bisect_right(self._entries, event_id, key=lambda entry: entry[0])
        return self._entries[i - 1][1] if i else None

    @property
    def own_pieces(self) -> int:
        """A measure of what is kept of events with a TTL of their own: ranges, or bitmaps."""
        return sum([ids.pieces for ids in self._own.values()]) if self._own else 0

    def state(self) -> AgesState:
        """When events were published, and which end when by a TTL of their own. The sets stay as
        they are now: one to which more events come is copied before."""
        if not self._own:
            return tuple(self._entries), []
        self._lent = set(self._own)
        return tuple(self._entries), [(end, self._own[end]) for end in sorted(self.ends_us)]

    def restore(
        self, entries: tuple[tuple[int, int], ...], own: Iterable[tuple[int, IdSet]]
    ) -> None:
        found = [(first, at) for first, at in entries]
        self._entries = found if len(found) <= _FEW else deque(found)
        self._own, self.ends_us, self._own_ids, self._lent = {}, [], IdSet(), set()
        self._gathered_us = 0
        for ends_us, ids in own:
            self._end_at(ends_us, ids.spans)
            self._own_ids.add_all(ids)
