"""Reading the first events of a queue without removing them (SEM Q4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import overload

from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.browsing import DurableBrowse
from penstock.client.reading.reader import READERS
from penstock_core.columns.events.batch import EventBatch, html_events
from penstock_core.columns.events.event import Event
from penstock_core.display import ITEMS_SHOWN, ROWS_SHOWN, safe_html, safe_repr
from penstock_core.vocabulary.errors import ConnectionLost, InvalidArgument
from penstock_core.vocabulary.identities import ChannelId

PEEK_DEFAULT = 100
"""Default number of events of a peek."""
PEEK_MAX = 1_000_000
"""Maximum number of events of a peek."""

SCAN_EVENTS = 512
"""Smallest number of events that the realm examines in one step for a selector: smaller steps would
take a hundred times as long on a long queue."""


class Peeked(Sequence[Event]):
    """The first events of a queue, as a sequence, and whether the queue has more."""

    def __init__(self, batches: Sequence[EventBatch], count: int) -> None:
        events = [event for batch in batches for event in batch]
        self.batches = tuple(batches)
        """The events in batches with Arrow columns. They may include an event after those of the
        sequence."""
        self._events = events[:count]
        self.has_more = len(events) > count
        """Whether the queue has more events that match."""

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self._events[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    @safe_repr
    def __repr__(self) -> str:
        events = "".join(f"{event!r}, " for event in self._events[:ITEMS_SHOWN])
        more = "..., " if len(self) > ITEMS_SHOWN else ""
        return f"Peeked({len(self)} events: {events}{more}has_more={self.has_more})"

    @safe_html
    def _repr_html_(self) -> str:
        """Return a table of the first events for notebooks."""
        caption = f"Peeked: {len(self)} events, has_more={self.has_more}"
        return html_events(caption, self._events[:ROWS_SHOWN])


async def peek(connection: RealmConnection, queue: ChannelId, count: int, selector: str) -> Peeked:
    """Return the first events of a queue. Raises ``InvalidArgument``, ``InvalidSelector``."""
    if type(count) is not int or not 1 <= count <= PEEK_MAX:
        raise InvalidArgument(f"peek count is {count!r}; give a whole number from 1 to {PEEK_MAX}")
    room = max(count + 1, SCAN_EVENTS) if selector else count + 1
    while True:
        browse = DurableBrowse(connection, queue, READERS, selector=selector, count_max=room)
        with contextlib.suppress(ConnectionLost):  # peeking changes nothing, so repeat it
            return Peeked(await _first(browse, count), count)


async def _first(browse: DurableBrowse, count: int) -> list[EventBatch]:
    """Return the batches with the first ``count`` events, and with one event more if the queue has
    more."""
    batches: list[EventBatch] = []
    async with browse:
        # One event more than ``count`` shows whether the queue has more.
        while sum(map(len, batches)) <= count and (batch := await browse.next_batch()) is not None:
            batches.append(batch)
    return batches
