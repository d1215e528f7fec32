"""Lanes (SEM D11): a durable with ``order_by`` keeps order among events with the same value of a
property, and serves different values to different clients at the same time.

A lane has one owner from its first event sent until none of its events is in flight. Lanes are soft
state: the shell finds the lane of an event once, when some client has credit for it. A durable
without clients, or a restart, costs nothing.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Hashable, Iterable

from penstock_core.durable.seat import Seat
from penstock_core.ids.ids import IdSet
from penstock_core.messages.delivery import AssignLanes

LANE_SEARCH_EVENTS_MAX = 4_096
"""Maximum number of events whose lanes the shell finds at once."""
LANE_SEARCHES_MAX = 16
"""Maximum number of searches for lanes (of ``LANE_SEARCH_EVENTS_MAX`` events each) for one durable
before other clients of the channel are served."""
_STALE_MIN = 1_024
"""Entries of events that have left are removed only above this number, to amortize the cost."""


class _Lane:
    """The examined events with one value of the property: waiting events in order, and events in
    flight."""

    __slots__ = ("at", "back", "held", "key", "owner", "queue")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.queue: array[int] = array("q")
        """Ids, ascending, eight bytes each because a blocked lane may become long."""
        self.at = 0
        """The first entry of ``queue`` that is still in use."""
        self.back: list[int] = []
        """Heap of returned events, which usually have lower ids than the queue."""
        self.held: set[int] | None = None
        """Ids in flight; None if the lane has none, because most lanes have none and an empty set
        costs memory."""
        self.owner: Seat | None = None
        """The seat that holds the events in flight."""

    @property
    def head(self) -> int | None:
        """Id of the next event to be served; None if no event waits."""
        queued = self.queue[self.at] if self.at < len(self.queue) else None
        if self.back and (queued is None or self.back[0] < queued):
            return self.back[0]
        return queued

    @property
    def waiting(self) -> int:
        return len(self.queue) - self.at + len(self.back)

    def drop_head(self) -> None:
        """Remove the head, from the returned events or from the queue."""
        if self.back and (self.at == len(self.queue) or self.back[0] < self.queue[self.at]):
            heapq.heappop(self.back)
            return
        self.at += 1
        # Used entries are removed once they are more than half, so that the cost for each event is
        # small.
        if self.at > 64 and 2 * self.at > len(self.queue):
            del self.queue[: self.at]
            self.at = 0

    def keep(self, ready: IdSet) -> None:
        """Drop waiting events that are not in ``ready`` any more."""
        remaining = array("q", (i for i in self.queue[self.at :] if i in ready))
        self.queue, self.at = remaining, 0
        self.back = sorted(i for i in self.back if i in ready)


class Lanes:
    """The lane of each examined event, and the owner of each lane."""

    __slots__ = (
        "_free",
        "_heads",
        "_in_flight",
        "_lanes",
        "_own",
        "_stale",
        "asleep",
        "examined_end",
        "waiting",
    )

    def __init__(self) -> None:
        self.examined_end = 0
        """Id below which all events have been examined."""
        self._lanes: dict[Hashable, _Lane] = {}
        self._in_flight: dict[int, _Lane] = {}
        self._heads: dict[int, _Lane] = {}
        """Lanes by the id of their head; some entries are out of date."""
        self._free: list[int] = []
        """Heap of the heads of lanes without owner; some entries are out of date."""
        self._own: dict[int, list[int]] = {}
        """Heaps of the heads of owned lanes, by seat."""
        self.waiting = 0
        """Number of waiting events, including some that have left."""
        self.asleep = IdSet()
        """Events that are delayed after a rollback. A lane whose head is delayed is not served
        (SEM D18)."""
        self._stale = 0
        """Number of queue entries whose events have left."""

    # --- changes of events and seats -------------------------------------------------------

    def assign(self, command: AssignLanes) -> None:
        """Add examined events to their lanes."""
        self.examined_end = command.examined_end
        first = 0
        for key, end in zip(command.keys, command.ends, strict=True):
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane(key)
            was_empty = lane.head is None
            lane.queue += command.ids[first:end]
            first = end
            if was_empty:
                self._add_head(lane)
        self.waiting += len(command.ids)

    def settled(self, ids: IdSet, waited: int, ready: IdSet) -> None:
        """Drop events that are settled or have left. ``waited`` is the number of them that were
        ready; ``ready`` are the events that are ready now."""
        for event_id in self._held_of(ids):
            self._end_flight(event_id)
        # Entries of settled events stay in queues and heaps until they are half of all entries: to
        # remove each at once would visit a whole queue.
        self._stale += waited
        if self._stale > max(_STALE_MIN, self.waiting // 2):
            self._drop_stale(ready)

    def wake(self, ids: IdSet) -> None:
        """Continue the lanes of events whose delay is over or that have left."""
        if not ids:
            return
        self.asleep.discard_all(ids)
        # The loop visits the smaller of the two sets.
        visits_ids = len(ids) <= len(self._heads)
        for event_id in list(ids) if visits_ids else [head for head in self._heads if head in ids]:
            if (lane := self._heads.get(event_id)) is not None:
                self._add_head(lane)

    def put_back(self, ids: IdSet) -> None:
        """Return events that no client holds any more to the heads of their lanes."""
        for event_id in self._held_of(ids):
            lane = self._in_flight[event_id]
            heapq.heappush(lane.back, event_id)
            self.waiting += 1
            self._end_flight(event_id)
            if lane.held is not None:  # otherwise `_end_flight` has added the head
                self._add_head(lane)

    def after(self, ids: IdSet) -> IdSet:
        """Return the events in flight that are in the same lane as one of ``ids`` and behind it.
        ``ids`` are in flight themselves and are left out."""
        lowest: dict[int, tuple[int, _Lane]] = {}
        for event_id in self._held_of(ids):
            lane = self._in_flight[event_id]
            lowest.setdefault(id(lane), (event_id, lane))
        later_ids = [i for first, lane in lowest.values() for i in lane.held or () if i > first]
        later_events = IdSet.from_ids(later_ids)
        later_events.discard_all(ids)
        return later_events

    def remove_seat(self, seat: Seat) -> None:
        """Remove a seat, whose events have already been returned."""
        self._own.pop(seat.subscription, None)

    # --- granting --------------------------------------------------------------------------

    def shares(
        self, seats: Iterable[Seat], below: int, chunk: int, ready: IdSet
    ) -> list[tuple[Seat, IdSet]]:
        """Share out events among ``seats`` in turn, one at a time. Each seat gets the lowest event
        that it may have, until its credit is used up."""
        turns = [(seat, min(seat.credit, chunk)) for seat in seats if seat.credit > 0]
        granted: dict[int, list[int]] = {seat.subscription: [] for seat, _ in turns}
        turns_left = turns
        while turns_left:
            following = []
            for seat, credit_left in turns_left:
                event_id = self._next(seat, below, ready)
                if event_id is None:
                    continue
                self._take(seat, event_id)
                granted[seat.subscription].append(event_id)
                if credit_left > 1:
                    following.append((seat, credit_left - 1))
            turns_left = following
        return [
            (seat, IdSet.from_ids(ids)) for seat, _ in turns if (ids := granted[seat.subscription])
        ]

    def _next(self, seat: Seat, below: int, ready: IdSet) -> int | None:
        """Return the lowest head under ``below`` of the seat's own lanes and of the free lanes;
        None if the seat can get no event."""
        own_heads = self._own.get(seat.subscription)
        lowest = (
            None
            if own_heads is None
            else self._lowest_not_refused(own_heads, seat, seat.refused, ready)
        )
        free_head = self._lowest_not_refused(self._free, None, seat.refused, ready)
        if lowest is None or (free_head is not None and free_head < lowest):
            lowest = free_head
        return None if lowest is None or lowest >= below else lowest

    def _lowest_not_refused(
        self, heap: list[int], owner: Seat | None, refused: IdSet, ready: IdSet
    ) -> int | None:
        """Return the lowest head of the lanes that do not begin with a ``refused`` event; other
        seats serve those lanes."""
        head = self._first(heap, owner, ready)
        # Refused heads are above others in the heap, so they leave it for a moment.
        aside = []
        while head is not None and head in refused:
            aside.append(heapq.heappop(heap))
            head = self._first(heap, owner, ready)
        for event_id in aside:
            heapq.heappush(heap, event_id)
        return head

    def _first(self, heap: list[int], owner: Seat | None, ready: IdSet) -> int | None:
        """Return the lowest head of the lanes of ``owner``, and drop entries that are out of
        date."""
        while heap:
            event_id = heap[0]
            lane = self._heads.get(event_id)
            if lane is None or lane.owner is not owner or lane.head != event_id:
                heapq.heappop(heap)
                continue
            if event_id in self.asleep:
                heapq.heappop(heap)  # it is added again when its delay is over
                continue
            if event_id in ready:
                return event_id
            heapq.heappop(heap)  # it has left the channel, or was settled while it waited
            while (head := lane.head) is not None and head not in ready:
                self._heads.pop(head, None)
                lane.drop_head()
                self.waiting -= 1
            self._add_head(lane)
            self._end_if_empty(lane)
        return None

    def _take(self, seat: Seat, event_id: int) -> None:
        """Move the head of a lane to its events in flight at ``seat``, which becomes its owner."""
        lane = self._heads.pop(event_id)
        lane.drop_head()
        self.waiting -= 1
        self._in_flight[event_id] = lane
        if lane.held is None:
            lane.held = set()
        lane.held.add(event_id)
        lane.owner = seat
        self._add_head(lane)

    # --- internal --------------------------------------------------------------------------

    def _held_of(self, ids: IdSet) -> list[int]:
        """Return the part of ``ids`` that is in flight, ascending."""
        if len(ids) <= len(self._in_flight):
            return [event_id for event_id in ids if event_id in self._in_flight]
        return sorted(event_id for event_id in self._in_flight if event_id in ids)

    def _end_flight(self, event_id: int) -> None:
        """Remove an event from those in flight; a lane without any others has no owner any more."""
        lane = self._in_flight.pop(event_id)
        assert lane.held is not None, "the event is in flight"
        lane.held.remove(event_id)
        if not lane.held:
            lane.held = lane.owner = None
            self._add_head(lane)
            self._end_if_empty(lane)

    def _add_head(self, lane: _Lane) -> None:
        """Add the head of a lane to the heap of its owner, or to that of free lanes."""
        head = lane.head
        if head is None:
            return
        self._heads[head] = lane
        owner = lane.owner
        heap = self._free if owner is None else self._own.setdefault(owner.subscription, [])
        heapq.heappush(heap, head)

    def _end_if_empty(self, lane: _Lane) -> None:
        if lane.held is None and lane.head is None:
            self._lanes.pop(lane.key, None)

    def _drop_stale(self, ready: IdSet) -> None:
        """Rebuild all heaps without the events that have left while they waited."""
        self._stale = 0
        self._heads, self._free, self._own = {}, [], {}
        for lane in list(self._lanes.values()):
            lane.keep(ready)
            self._add_head(lane)
            self._end_if_empty(lane)
        self.waiting = sum(lane.waiting for lane in self._lanes.values())
