"""Reads many events of a channel a page at a time: all events, or those with given ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema import compute as pc
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId
from penstock_server.runtime.reading.collecting import Collected, collect, count_that_fits
from penstock_server.runtime.realm import RunningRealm

PAGE: Final = 1_000
"""Largest number of events that are read at once."""
NEAR: Final = 100
"""Ids with smaller gaps than this are read together, because reading the events in the gap takes
about as long as beginning another read."""


async def pages_of(realm: RunningRealm, channel: ChannelId) -> AsyncIterator[list[Event]]:
    """Yield pages of the events that a channel has now, with their publishers. Raises
    ``NameDoesNotExist``."""
    async for page in _batches_between(realm, channel, 0, last_id=_last_id(realm, channel)):
        yield [event for batch in page for event in batch]


async def batches_of(
    realm: RunningRealm,
    channel: ChannelId,
    first_id: int = 0,
    page_max: int | None = None,
) -> AsyncIterator[list[pa.RecordBatch]]:
    """Yield pages of a channel's events as columns, from ``first_id`` on and at most ``page_max``
    events each. Raises ``NameDoesNotExist``."""
    last_id = _last_id(realm, channel)
    async for page in _batches_between(
        realm, channel, first_id, last_id=last_id, page_max=page_max
    ):
        yield [batch.to_arrow() for batch in page]


def _last_id(realm: RunningRealm, channel: ChannelId) -> int:
    """Return the last id of a channel. Raises ``NameDoesNotExist``."""
    store = realm.view.store(channel)
    if store is None:
        raise NameDoesNotExist(f"channel number {channel} was deleted during the request")
    return store.next_id - 1


async def batches_at(
    realm: RunningRealm, channel: ChannelId, event_ids: Sequence[int], page_max: int | None = None
) -> AsyncIterator[list[pa.RecordBatch]]:
    """Yield pages of the stored events with these ascending ids. Ids near to each other are read
    together, and the events between them are filtered out."""
    for first, last in stretches_of(event_ids):
        run_ids = pa.array(event_ids[first:last], pa.int64())
        low_id, high_id = event_ids[first], event_ids[last - 1]
        async for page in _batches_between(
            realm, channel, low_id, last_id=high_id, page_max=page_max
        ):
            batches = [batch.to_arrow() for batch in page]
            yield [batch.filter(pc.is_in(batch.column("event_id"), run_ids)) for batch in batches]


def stretches_of(event_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the indexes (start, end) of stretches of ascending ids without a gap of :data:`NEAR` or
    more."""
    start = 0
    for index in range(1, len(event_ids) + 1):
        if index == len(event_ids) or event_ids[index] - event_ids[index - 1] >= NEAR:
            yield start, index
            start = index


async def _batches_between(
    realm: RunningRealm,
    channel: ChannelId,
    first_id: int,
    last_id: int,
    page_max: int | None = None,
) -> AsyncIterator[list[EventBatch]]:
    """Yield pages of the events with ids from ``first_id`` up to and including ``last_id``."""
    # Each page is a browse, so that a slow reader keeps no subscription open between pages.
    next_id: int | None = first_id
    while next_id is not None and next_id <= last_id:
        size = count_that_fits(
            realm.view.store(channel), min(page_max or PAGE, last_id - next_id + 1)
        )
        outlet = Collected("mqtt", None, size)
        subscribe = partial(
            realm.subscriptions.subscribe,
            channel,
            FromId(next_id),
            outlet,
            credit=size,
            browse=True,
            last_id=last_id,
        )
        next_id = await collect(realm, channel, outlet, subscribe=subscribe)
        yield outlet.batches
