"""Looking at a queue without taking anything (SEM Q4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import overload

from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.browsing import DurableBrowse
from penstock.client.reading.reader import READERS
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import ConnectionLost, InvalidArgument
from penstock_core.vocabulary.identities import ChannelId

PEEK_DEFAULT = 100
PEEK_MAX = 1_000_000

SCAN_EVENTS = 512
"""Events that the realm examines in one step for a selector, however few are asked for: smaller
steps would take a hundred times as long on a long queue."""


class Peeked(Sequence[Event]):
    """Events as they are on the queue, and whether there are more."""

    def __init__(self, batches: Sequence[EventBatch], count: int) -> None:
        events = [event for batch in batches for event in batch]
        self.batches = tuple(batches)
        """The events in columns, and the first of those there are more of."""
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

    def __repr__(self) -> str:
        return f"Peeked({self._events!r}, has_more={self.has_more})"


async def peek(connection: RealmConnection, queue: ChannelId, count: int, selector: str) -> Peeked:
    """Raises ``InvalidArgument``, ``InvalidSelector``."""
    if type(count) is not int or not 1 <= count <= PEEK_MAX:
        raise InvalidArgument(f"peek {count!r}: ask for 1 to {PEEK_MAX} events")
    room = max(count + 1, SCAN_EVENTS) if selector else count + 1
    while True:
        browse = DurableBrowse(connection, queue, READERS, selector=selector, count_max=room)
        with contextlib.suppress(ConnectionLost):  # nothing was taken, so it can be repeated
            return Peeked(await _first(browse, count), count)


async def _first(browse: DurableBrowse, count: int) -> list[EventBatch]:
    found: list[EventBatch] = []
    async with browse:
        while sum(map(len, found)) <= count and (batch := await browse.next_batch()) is not None:
            found.append(batch)
    return found
