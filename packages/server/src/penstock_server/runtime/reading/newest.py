"""Finds the newest matching events of a channel: a search from its end backwards, part by part.

A part is a range of ids. Only parts that were read completely are used, so the answer has exactly
the newest events. The next page neither misses nor repeats an event, even if events are published
and purged during the search.
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
    READING_S,
    Collected,
    collect,
)
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.subscriptions.realm_view import StoreView

GROWTH: Final = 4
"""Factor by which each further part of a search is larger, until the page is full."""
PART_BYTES_MAX: Final = 256 << 20
"""Largest size of a part in bytes, estimated by the average size of an event."""


class NewestEvents(NamedTuple):
    """The newest matching events, oldest first."""

    events: list[Event]
    examined: Span
    """The span of the ids that were examined. All its matching events are in ``events``."""
    is_all: bool
    """Whether no event below ``examined`` is stored."""


class NewestOutlet(Collected):
    """An outlet that keeps the last events that it gets, up to ``count_max`` events and
    ``bytes_max`` bytes. ``part`` is the number of events that the browse may deliver to it."""

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
        """Whether earlier events were dropped because of these limits."""

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Add the end of a batch, and drop earlier events that exceed the limits."""
        batch, count = rows.batch, rows.batch.num_rows
        # At least one event is kept even if it is too large, so that the search can continue.
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
        """Bytes of the kept events."""
        return sum(self._sizes)

    def events(self) -> list[Event]:
        """Return the kept events, in order."""
        events = super().events()
        self.has_dropped |= len(events) > self._kept_max
        return events[-self._kept_max :]


async def newest(
    realm: RunningRealm,
    session: str,
    number: ChannelId,
    selector: str,
    limit: int,
    start: AnyStart,
    end: int | None,
) -> NewestEvents:
    """Return the last ``limit`` matching events from ``start`` on and below the id ``end``, within
    the limits of one page. If ``end`` is None, the search begins at the last event.

    Raises ``InvalidSelector``, ``NameDoesNotExist``, and ``Unavailable`` if the realm is too busy
    to read any events.
    """
    parsed = await realm.dispatch.choosing.parse(selector) if selector else None
    lowest = await _lowest(realm, session, number, start=start)
    store = realm.view.store(number)
    high = 0 if store is None else store.next_id
    high = max(lowest, high if end is None else min(end, high))
    search = _Search(realm, session, number, selector=parsed, limit=limit, span=Span(lowest, high))
    return await search.run()


async def _lowest(realm: RunningRealm, session: str, number: ChannelId, start: AnyStart) -> int:
    """Return the id of the start position."""
    if isinstance(start, FromEarliest):
        return 0
    if isinstance(start, FromId):
        return start.event_id
    outlet = Collected(session, None, 1)
    opened = await realm.subscriptions.subscribe(number, start, outlet, credit=0, browse=True)
    realm.subscriptions.detach(opened.number)  # only its start position was needed
    return opened.first_id


class _Search:
    """A search for the newest matching events of a channel, part by part."""

    def __init__(
        self,
        realm: RunningRealm,
        session: str,
        number: ChannelId,
        selector: Selector | None,
        limit: int,
        span: Span,
    ) -> None:
        self._realm, self._limits = realm, realm.limits.search
        self._session = session
        self._number = number
        self._selector = selector
        self._limit = limit
        self._span = span
        self._low = span.end
        """Ids from here on have been examined."""
        self._events: list[Event] = []
        self._size = 0
        self._examined = 0
        """Number of examined events."""

    async def run(self) -> NewestEvents:
        loop = asyncio.get_running_loop()
        until = loop.time() + READING_S
        # Without a selector every event matches, so the first part already fills the page.
        part = self._limits.first_part if self._selector else self._limit
        is_full = False
        while not is_full and (store := self._store_with_more()) is not None:
            remaining_s = until - loop.time()
            if self._examined >= self._limits.examined_max or remaining_s <= 0:
                break
            fills_page = await self._search_part(store, part, remaining_s)
            if fills_page is None and self._low == self._span.end:
                raise Unavailable(
                    "the realm is too busy to search stored events; try again in a moment"
                )
            # None (out of time) also ends the page.
            is_full = fills_page is not False
            part = min(part * GROWTH, self._limits.part_max)
        is_all = self._store_with_more() is None
        # No event is stored below, so the ids down to the start count as examined.
        low = self._span.first if is_all else self._low
        return NewestEvents(self._events, Span(low, self._span.end), is_all)

    def _store_with_more(self) -> StoreView | None:
        """Return the channel, if it has events that were not examined yet."""
        store = self._realm.view.store(self._number)
        remaining = Span(self._span.first, self._low)
        return store if store is not None and store.stored.count(remaining) else None

    async def _search_part(self, store: StoreView, count: int, timeout_s: float) -> bool | None:
        """Examine the newest ``count`` events that are not examined yet. Return True if the page is
        full, False if it is not, and None if the time was not enough."""
        count = int(max(1, min(count, PART_BYTES_MAX / store.event_bytes)))
        first = lowest_of(store.stored, Span(self._span.first, self._low), count)
        missing_count = self._limit - len(self._events)
        page_bytes_max = self._limits.page_bytes_max
        outlet = NewestOutlet(
            self._session,
            self._selector,
            missing_count,
            bytes_max=page_bytes_max - self._size,
            part=count,
        )
        number, last = self._number, self._low - 1
        await collect(
            self._realm,
            number,
            outlet,
            subscribe=lambda: self._realm.subscriptions.subscribe(
                number, FromId(first), outlet, credit=count, browse=True, last_id=last
            ),
            timeout_s=timeout_s,
        )
        if not outlet.done.is_set():
            return None
        events = outlet.events()
        if self._events and outlet.size > page_bytes_max - self._size:
            return True  # the events of this part do not fit: the next page begins with them
        self._examined += count
        self._events = events + self._events
        self._size += outlet.size
        is_full = outlet.has_dropped or len(self._events) >= self._limit
        self._low = (events[0].event_id or 0) if outlet.has_dropped else first
        return is_full or self._size >= page_bytes_max


def lowest_of(stored: IdSet, span: Span, count: int) -> int:
    """Return the lowest id such that ``span`` has ``count`` stored events from there on, or the
    first id of the span if it has fewer."""
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
