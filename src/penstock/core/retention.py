"""What leaves a channel without being consumed, and why (SEM T1-T4).

Ages are kept per publish, not per event: a list of (first id, time), coalesced while publishes
are closer together than the TTL can tell.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from penstock.core.errors import CapacityReached, InvalidArgument
from penstock.core.ids import IdSet, Span
from penstock.core.messages import Definition, Spans

CAPACITY_MAX = 2_147_483_646
TTL_MS_MAX = 1 << 50
COARSE_US = 100_000
"""Without a TTL, publishes this close together share one age."""


def check_limits(definition: Definition) -> None:
    """Raise ``InvalidArgument`` for a TTL, capacity or start id out of bounds."""
    bounds = (
        ("ttl", definition.ttl, TTL_MS_MAX),
        ("capacity", definition.capacity, CAPACITY_MAX),
        ("start_event_id", definition.start_event_id, 1 << 62),
        ("storage.events_per_spindle", definition.storage.events_per_spindle, CAPACITY_MAX),
    )
    for name, value, highest in bounds:
        if not 0 <= value <= highest:
            raise InvalidArgument(f"{name} is {value}; it may be 0 to {highest}")


def refuse_when_full(
    definition: Definition, stored: int, incoming: int, *, overshoot: bool
) -> None:
    """SEM T4. A transaction (``overshoot``) may pass the limit it began below."""
    if not (definition.storage.honour_capacity and definition.capacity):
        return
    over = stored >= definition.capacity if overshoot else stored + incoming > definition.capacity
    if over:
        raise CapacityReached(
            f"{stored} of {definition.capacity} events are stored, {incoming} more offered; "
            "wait until some are consumed or expire, or raise the capacity"
        )


def make_room(capacity: int, stored: IdSet, incoming: Span) -> Spans:
    """The oldest events above capacity (SEM T3).

    They leave after the append, for a batch larger than the capacity evicts part of itself.
    """
    excess = len(stored) + incoming.size - capacity if capacity else 0
    evicted: list[Span] = []
    at = -1
    while excess > 0 and (span := stored.next_span(at, excess)) is not None:
        evicted.append(span)
        excess -= span.size
        at = span.end
    if excess > 0:
        evicted.append(Span(incoming.first, incoming.first + excess))
    return tuple(evicted)


class Ages:
    """When which events were published, and when those with a TTL of their own end."""

    __slots__ = ("_entries", "_own", "_own_ids")

    def __init__(self) -> None:
        self._entries: deque[tuple[int, int]] = deque()
        self._own: list[tuple[int, Spans]] = []
        self._own_ids = IdSet()

    def appended(self, span: Span, at_us: int, ttl_ms: int) -> None:
        resolution = ttl_ms if ttl_ms else COARSE_US  # a thousandth of the TTL, in us
        if not self._entries or at_us - self._entries[-1][1] >= resolution:
            self._entries.append((span.first, at_us))

    def own_ttl(self, at_us: int, ttls: tuple[tuple[int, Spans], ...]) -> None:
        """Events whose own TTL replaces the channel's (SEM T2)."""
        for ttl_ms, spans in ttls:
            if ttl_ms <= 0:
                continue
            heapq.heappush(self._own, (at_us + ttl_ms * 1_000, spans))
            for span in spans:
                self._own_ids.add(span)

    def due_us(self, ttl_ms: int) -> int | None:
        """When the next event may expire."""
        by_channel = self._entries[0][1] + ttl_ms * 1_000 if ttl_ms and self._entries else None
        by_event = self._own[0][0] if self._own else None
        if by_channel is None or by_event is None:
            return by_channel if by_event is None else by_event
        return min(by_channel, by_event)

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
        for expires_us, spans in self._own_due(now_us):
            assert expires_us <= now_us, "only what is due"
            for span in spans:
                gone.add_all(stored.within(span))
        return gone

    def _expired_through(self, ttl_ms: int, next_id: int, now_us: int) -> int:
        horizon = now_us - ttl_ms * 1_000
        end = -1
        for i, (_, at_us) in enumerate(self._entries):
            if at_us > horizon:
                break
            end = self._entries[i + 1][0] if i + 1 < len(self._entries) else next_id
        return end

    def _own_due(self, now_us: int) -> Iterator[tuple[int, Spans]]:
        if self._own and self._own[0][0] <= now_us:
            yield from (entry for entry in self._own if entry[0] <= now_us)

    def forget(self, lowest: int, now_us: int) -> None:
        """Drop ages of events that have left: below ``lowest``, or expired by now."""
        entries = self._entries
        while len(entries) > 1 and entries[1][0] <= lowest:
            entries.popleft()
        while self._own and self._own[0][0] <= now_us:
            _, spans = heapq.heappop(self._own)
            for span in spans:
                self._own_ids.remove(span)

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

    def state(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, Spans], ...]]:
        return tuple(self._entries), tuple(self._own)

    def restore(
        self, entries: tuple[tuple[int, int], ...], own: tuple[tuple[int, Spans], ...]
    ) -> None:
        self._entries = deque((first, at) for first, at in entries)
        self._own = [(at, tuple(Span(*s) for s in spans)) for at, spans in own]
        heapq.heapify(self._own)
        self._own_ids = IdSet(span for _, spans in self._own for span in spans)
