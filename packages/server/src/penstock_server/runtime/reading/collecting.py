"""Reads the events of one answer, by a browse that ends at the last event, at a limit or after a
timeout."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import pyarrow as pa

from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.subscriptions.realm_limits import PAGE_BYTES_MAX
from penstock_server.runtime.subscriptions.realm_view import StoreView
from penstock_server.runtime.subscriptions.subscriptions import OpenedSubscription

READING_S: Final = 10.0
"""Longest time in seconds for reading one page. A selector that matches few of millions of events
needs several seconds."""


class Collected:
    """An outlet that collects the events of one page, up to ``count_max`` events and
    ``PAGE_BYTES_MAX`` bytes."""

    def __init__(
        self, session: str, selector: Selector | None, count_max: int, *, first_id: int = 0
    ) -> None:
        """Create an empty outlet of a session, for events with ids from ``first_id`` on."""
        self.session = session
        self.selector = selector
        self.count_max = count_max
        self.batches: list[EventBatch] = []
        self.count = 0
        self.last_id = first_id - 1
        """Id of the last event of the page."""
        self.is_full = False
        self.done = asyncio.Event()
        self.error: PenstockError | None = None
        self._bytes = 0

    @property
    def is_writable(self) -> bool:
        return True

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        if self.is_full:  # batches that were in flight when the page became full
            return
        batch = rows.batch.slice(0, self.count_max - self.count)
        counts = {
            event_id: count
            for count, spans in redeliveries
            for first, end in spans
            for event_id in range(first, end)
        }
        self.batches.append(EventBatch(batch, counts, publishers=rows.publishers))
        self._bytes += batch.nbytes
        self.advance(batch)

    def advance(self, batch: pa.RecordBatch) -> None:
        """Count the events of a batch, which may fill the page."""
        self.count += batch.num_rows
        self.last_id = batch.column("event_id")[-1].as_py()
        if self.count >= self.count_max or self._bytes >= PAGE_BYTES_MAX:
            self.is_full = True
            self.done.set()

    def recall(self, spans: Spans) -> None:
        """Do nothing, because a page is sent only when it is complete."""

    def finished(self) -> None:
        self.done.set()

    def closed(self, reason: PenstockError) -> None:
        self.error = reason
        self.done.set()

    def events(self) -> list[Event]:
        """Return the events, in order."""
        return [event for batch in self.batches for event in batch]

    async def wait(self, timeout_s: float) -> None:
        """Wait until the outlet is full, the browse has ended, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.done.wait()


def count_that_fits(store: StoreView | None, limit: int) -> int:
    """Return the number of a channel's events that fit into a page, by their average size."""
    size = 1.0 if store is None else store.event_bytes
    return int(max(1, min(limit, PAGE_BYTES_MAX / size)))


async def collect(
    realm: RunningRealm,
    number: ChannelId,
    outlet: Collected,
    subscribe: Callable[[], Awaitable[OpenedSubscription]],
    *,
    timeout_s: float = READING_S,
) -> int | None:
    """Open a browse of channel ``number``, wait as :meth:`Collected.wait` does, and close it.
    Return the first id of the next page; None if this page is the last.

    Raises the errors of ``subscribe``, and ``NameDoesNotExist`` if the channel is deleted
    meanwhile.
    """
    opened = await subscribe()
    try:
        await outlet.wait(timeout_s)
        if outlet.error is not None:
            raise outlet.error
        if outlet.is_full:
            next_id = outlet.last_id + 1
        else:
            # The browse has ended, or the time is over. The cursor of the browse is also after
            # events that did not match, unlike the last id of the page.
            store = realm.view.store(number)
            cursor = None if store is None else store.cursor(opened.number)
            if cursor is None:
                return None
            next_id = cursor
        return next_id if opened.stop_id is None or next_id < opened.stop_id else None
    finally:
        realm.subscriptions.detach(opened.number)
