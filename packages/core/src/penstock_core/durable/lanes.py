"""Lanes (SEM D11): a durable with ``order_by`` keeps order among events with the same value of a
property, and serves different values to different clients at the same time.

A lane has one owner from the first of its events that is sent until none of them is in flight. This
is soft state: the shell is asked for the lane of an event once, when somebody has room for it. A
durable that nobody reads, or a restart, costs nothing.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Hashable, Iterable

from penstock_core.durable.seat import Seat
from penstock_core.ids.ids import IdSet
from penstock_core.messages.delivery import AssignLanes

LOOK_EVENTS_MAX = 4_096
"""Events whose lanes are asked for at once."""
LOOKS_MAX = 16
"""Before others on the channel are served again."""
_STALE_MIN = 1_024


class _Lane:
    """The events of one value that are due: those waiting, in order, and those in flight."""

    __slots__ = ("at", "back", "held", "key", "owner", "queue")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.queue: array[int] = array("q")
        """Ids ascending, eight bytes each: a lane may be blocked for long."""
        self.at = 0
        """The first entry of ``queue`` that is still in use."""
        self.back: list[int] = []
        """Given back: a heap."""
        self.held: set[int] | None = None
        self.owner: Seat | None = None

    @property
    def head(self) -> int | None:
        """The next to be served."""
        queued = self.queue[self.at] if self.at < len(self.queue) else None
        if self.back and (queued is None or self.back[0] < queued):
            return self.back[0]
        return queued

    @property
    def waiting(self) -> int:
        return len(self.queue) - self.at + len(self.back)

    def drop_head(self) -> None:
        if self.back and (self.at == len(self.queue) or self.back[0] < self.queue[self.at]):
            heapq.heappop(self.back)
            return
        self.at += 1
        if self.at > 64 and 2 * self.at > len(self.queue):
            del self.queue[: self.at]
            self.at = 0

    def keep(self, ready: IdSet) -> None:
        """Forget the waiting that have left."""
        kept = array("q", (i for i in self.queue[self.at :] if i in ready))
        self.queue, self.at = kept, 0
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
        "through",
        "waiting",
    )

    def __init__(self) -> None:
        self.through = 0
        """Id below which events have been examined."""
        self._lanes: dict[Hashable, _Lane] = {}
        self._in_flight: dict[int, _Lane] = {}
        self._heads: dict[int, _Lane] = {}
        """The first of each lane, and some that were."""
        self._free: list[int] = []
        """Heads of lanes without an owner: a heap, and some that are not any more."""
        self._own: dict[int, list[int]] = {}
        """For each seat, a heap of the first events of the lanes it owns."""
        self.waiting = 0
        """Events that wait, and some that have left."""
        self.asleep = IdSet()
        """Events that wait for their time after a rollback: a lane waits behind its own (SEM
        D18)."""
        self._stale = 0
        """Number of entries in the queues whose events have left."""

    # --- who comes and goes ----------------------------------------------------------------

    def assigned(self, looked: AssignLanes) -> None:
        """Note the lanes of events that were examined."""
        self.through = looked.through
        first = 0
        for key, end in zip(looked.keys, looked.ends, strict=True):
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane(key)
            was_empty = lane.head is None
            lane.queue += looked.ids[first:end]
            first = end
            if was_empty:
                self._show(lane)
        self.waiting += len(looked.ids)

    def settled(self, ids: IdSet, waited: int, ready: IdSet) -> None:
        """Forget events that are settled or gone. ``waited`` of them were ready; ``ready`` are
        those that are ready now."""
        for event_id in self._held_of(ids):
            self._let_go(event_id)
        self._stale += waited
        if self._stale > max(_STALE_MIN, self.waiting // 2):
            self._forget(ready)

    def woken(self, ids: IdSet) -> None:
        """The time of these has come, or they have left: their lanes go on."""
        if not ids:
            return
        self.asleep.discard_all(ids)
        few = len(ids) <= len(self._heads)
        for event_id in list(ids) if few else [each for each in self._heads if each in ids]:
            if (lane := self._heads.get(event_id)) is not None:
                self._show(lane)

    def returned(self, ids: IdSet) -> None:
        """Put events back at the heads of their lanes: no client has them any more."""
        for event_id in self._held_of(ids):
            lane = self._in_flight[event_id]
            heapq.heappush(lane.back, event_id)
            self.waiting += 1
            self._let_go(event_id)
            if lane.held is not None:
                self._show(lane)

    def after(self, ids: IdSet) -> IdSet:
        """The events in flight behind the first of ``ids``, themselves in flight, in each lane."""
        lowest: dict[int, tuple[int, _Lane]] = {}
        for event_id in self._held_of(ids):
            lane = self._in_flight[event_id]
            lowest.setdefault(id(lane), (event_id, lane))
        found = [i for first, lane in lowest.values() for i in lane.held or () if i > first]
        later = IdSet.from_ids(found)
        later.discard_all(ids)
        return later

    def remove_seat(self, seat: Seat) -> None:
        """Remove a seat; all it held has been returned."""
        self._own.pop(seat.subscription, None)

    # --- who is served ---------------------------------------------------------------------

    def shares(
        self, seats: Iterable[Seat], below: int, chunk: int, ready: IdSet
    ) -> list[tuple[Seat, IdSet]]:
        """Share out events among ``seats`` in turn, one at a time: each gets the lowest event that
        it may have, until its credit ends."""
        turns = [(seat, min(seat.credit, chunk)) for seat in seats if seat.credit > 0]
        taken: dict[int, list[int]] = {seat.subscription: [] for seat, _ in turns}
        left = turns
        while left:
            following = []
            for seat, room in left:
                event_id = self._next(seat, below, ready)
                if event_id is None:
                    continue
                self._take(seat, event_id)
                taken[seat.subscription].append(event_id)
                if room > 1:
                    following.append((seat, room - 1))
            left = following
        return [
            (seat, IdSet.from_ids(ids)) for seat, _ in turns if (ids := taken[seat.subscription])
        ]

    def _next(self, seat: Seat, below: int, ready: IdSet) -> int | None:
        own = self._own.get(seat.subscription)
        mine = None if own is None else self._wanted(own, seat, seat.refused, ready)
        free = self._wanted(self._free, None, seat.refused, ready)
        if mine is None or (free is not None and free < mine):
            mine = free
        return None if mine is None or mine >= below else mine

    def _wanted(
        self, heap: list[int], owner: Seat | None, refused: IdSet, ready: IdSet
    ) -> int | None:
        """The lowest next event of a lane that does not begin with a ``refused`` one: those lanes
        are left to other seats."""
        found = self._first(heap, owner, ready)
        aside = []
        while found is not None and found in refused:
            aside.append(heapq.heappop(heap))
            found = self._first(heap, owner, ready)
        for event_id in aside:
            heapq.heappush(heap, event_id)
        return found

    def _first(self, heap: list[int], owner: Seat | None, ready: IdSet) -> int | None:
        """The lowest head of the lanes of ``owner``."""
        while heap:
            event_id = heap[0]
            lane = self._heads.get(event_id)
            if lane is None or lane.owner is not owner or lane.head != event_id:
                heapq.heappop(heap)
                continue
            if event_id in self.asleep:
                heapq.heappop(heap)  # it is shown again when it is woken
                continue
            if event_id in ready:
                return event_id
            heapq.heappop(heap)  # it has left the channel, or was settled while it waited
            while (head := lane.head) is not None and head not in ready:
                self._heads.pop(head, None)
                lane.drop_head()
                self.waiting -= 1
            self._show(lane)
            self._end_if_empty(lane)
        return None

    def _take(self, seat: Seat, event_id: int) -> None:
        lane = self._heads.pop(event_id)
        lane.drop_head()
        self.waiting -= 1
        self._in_flight[event_id] = lane
        if lane.held is None:
            lane.held = set()
        lane.held.add(event_id)
        lane.owner = seat
        self._show(lane)

    # --- inside ----------------------------------------------------------------------------

    def _held_of(self, ids: IdSet) -> list[int]:
        """The part of ``ids`` that are in flight, ascending."""
        if len(ids) <= len(self._in_flight):
            return [event_id for event_id in ids if event_id in self._in_flight]
        return sorted(event_id for event_id in self._in_flight if event_id in ids)

    def _let_go(self, event_id: int) -> None:
        lane = self._in_flight.pop(event_id)
        assert lane.held is not None, "one of them is in flight"
        lane.held.remove(event_id)
        if not lane.held:
            lane.held = lane.owner = None
            self._show(lane)
            self._end_if_empty(lane)

    def _show(self, lane: _Lane) -> None:
        """Let the head be found by those who may have it."""
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

    def _forget(self, ready: IdSet) -> None:
        """Many have left while they waited: make room."""
        self._stale = 0
        self._heads, self._free, self._own = {}, [], {}
        for lane in list(self._lanes.values()):
            lane.keep(ready)
            self._show(lane)
            self._end_if_empty(lane)
        self.waiting = sum(lane.waiting for lane in self._lanes.values())
