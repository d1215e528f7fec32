"""Finds the newest matching events of a channel, searching from its end backwards, part by part.

A part is a range of ids, and counts only when it was read to its end. So the answer has exactly the
newest events, and the next page neither misses nor repeats one, whatever is published and purged
meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import Unavailable
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import AnyStart, FromEarliest, FromId
from penstock_server.runtime.reading.collecting import (
    PAGE_BYTES_MAX,
    READING_S,
    Collected,
    collect,
)
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.subscriptions.realm_view import StoreView

LOOKED_AT_MAX: Final = 1_000_000
"""Most stored events that one page examines; the next page continues there."""
FIRST_PART: Final = 1_000
PART_MAX: Final = 50_000
"""Events in the first part with a selector, and the most in later ones: parts grow where little
matches."""
GROWTH: Final = 4
PART_BYTES_MAX: Final = 256 << 20


class NewestEvents(NamedTuple):
    """The newest matching events, oldest first."""

    events: list[Event]
    looked_at: Span
    """Span of ids in which nothing else matches."""
    is_all: bool
    """Whether nothing is stored below ``looked_at``."""


class NewestOutlet(Collected):
    """An outlet that keeps the last events that come, within a number of events and bytes."""

    def __init__(
        self,
        session: str,
        selector: Selector | None,
        count_max: int,
        bytes_max: int,
        part: int,
    ) -> None:
        super().__init__(session, selector, part)
        self._kept_max = count_max
        self._bytes_max = bytes_max
        self._sizes: list[int] = []
        self.has_dropped = False

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Keep the end of a batch; earlier events are dropped where the limit requires it."""
        batch, count = rows.batch, rows.batch.num_rows
        fit = min(self._kept_max, max(1, count * self._bytes_max // max(1, batch.nbytes)))
        if fit < count:
            batch, self.has_dropped = batch.slice(count - fit), True
        self.batches.append(EventBatch(batch, publishers=rows.publishers))
        self._sizes.append(batch.nbytes)
        self.count += batch.num_rows
        while len(self.batches) > 1 and (
            self.count - len(self.batches[0]) >= self._kept_max or self.size > self._bytes_max
        ):
            self.count -= len(self.batches.pop(0))
            self._sizes.pop(0)
            self.has_dropped = True

    @property
    def size(self) -> int:
        """Bytes of the events that are kept."""
        return sum(self._sizes)

    def events(self) -> list[Event]:
        """The events that are kept, in order."""
        found = super().events()
        self.has_dropped |= len(found) > self._kept_max
        return found[-self._kept_max :]


async def newest(
    realm: RunningRealm,
    session: str,
    number: ChannelId,
    selector: str,
    limit: int,
    start: AnyStart,
    end: int | None,
) -> NewestEvents:
    """The last ``limit`` stored events that match, from ``start`` on and below id ``end`` (None: up
    to the last event), as far as one page may search.

    Raises ``InvalidSelector``, ``NameDoesNotExist``, and ``Unavailable`` when the realm is too busy
    to read anything.
    """
    chosen = await realm.dispatch.choosing.parse(selector) if selector else None
    lowest = await _lowest(realm, session, number, start=start)
    store = realm.view.store(number)
    high = 0 if store is None else store.next_id
    high = max(lowest, high if end is None else min(end, high))
    search = _Search(realm, session, number, selector=chosen, limit=limit, span=Span(lowest, high))
    return await search.run()


async def _lowest(realm: RunningRealm, session: str, number: ChannelId, start: AnyStart) -> int:
    """The id at which ``start`` lies now."""
    if isinstance(start, FromEarliest):
        return 0
    if isinstance(start, FromId):
        return start.event_id
    outlet = Collected(session, None, 1)
    opened = await realm.subscriptions.subscribe(number, start, outlet, credit=0, browse=True)
    realm.subscriptions.detach(opened.number)
    return opened.first_id


class _Search:
    def __init__(
        self,
        realm: RunningRealm,
        session: str,
        number: ChannelId,
        selector: Selector | None,
        limit: int,
        span: Span,
    ) -> None:
        self._realm = realm
        self._session = session
        self._number = number
        self._selector = selector
        self._limit = limit
        self._span = span
        self._low = span.end
        """Ids from here on are done."""
        self._events: list[Event] = []
        self._size = 0
        self._looked_at = 0

    async def run(self) -> NewestEvents:
        loop = asyncio.get_running_loop()
        until = loop.time() + READING_S
        part = FIRST_PART if self._selector else self._limit
        is_full = False
        while not is_full and (store := self._with_more()) is not None:
            left = until - loop.time()
            if self._looked_at >= LOOKED_AT_MAX or left <= 0:
                break
            found = await self._part(store, part, left)
            if found is None and self._low == self._span.end:
                raise Unavailable(
                    "the realm is too busy to search stored events; try again in a moment"
                )
            is_full = found is not False
            part = min(part * GROWTH, PART_MAX)
        is_all = self._with_more() is None
        low = self._span.first if is_all else self._low
        return NewestEvents(self._events, Span(low, self._span.end), is_all)

    def _with_more(self) -> StoreView | None:
        """The channel, while it has events that were not examined."""
        store = self._realm.view.store(self._number)
        left = Span(self._span.first, self._low)
        return store if store is not None and store.stored.count(left) else None

    async def _part(self, store: StoreView, count: int, timeout_s: float) -> bool | None:
        """Examine the newest ``count`` of the remaining events. Gives whether the page is full;
        None if there was no time for them."""
        count = int(max(1, min(count, PART_BYTES_MAX / store.event_bytes)))
        first = lowest_of(store.stored, Span(self._span.first, self._low), count)
        wanted = self._limit - len(self._events)
        outlet = NewestOutlet(
            self._session, self._selector, wanted, bytes_max=PAGE_BYTES_MAX - self._size, part=count
        )
        number, last = self._number, self._low - 1
        await collect(
            self._realm,
            number,
            outlet,
            open_=lambda: self._realm.subscriptions.subscribe(
                number, FromId(first), outlet, credit=count, browse=True, last_id=last
            ),
            timeout_s=timeout_s,
        )
        if not outlet.done.is_set():
            return None
        events = outlet.events()
        if self._events and outlet.size > PAGE_BYTES_MAX - self._size:
            return True  # none of these fit: the next page begins with them
        self._looked_at += count
        self._events = events + self._events
        self._size += outlet.size
        is_full = outlet.has_dropped or len(self._events) >= self._limit
        self._low = (events[0].event_id or 0) if outlet.has_dropped else first
        return is_full or self._size >= PAGE_BYTES_MAX


def lowest_of(stored: IdSet, span: Span, count: int) -> int:
    """The id from which on ``span`` has ``count`` stored events, or its first."""
    low, high = span
    if stored.count(span) <= count:
        return low
    while low < high:
        middle = (low + high) // 2
        if stored.count(Span(middle, span.end)) > count:
            low = middle + 1
        else:
            high = middle
    return low
