"""Events: browse them, look at one, watch them come, publish."""

from __future__ import annotations

from penstock.core.errors import NameDoesNotExist
from penstock.core.ids import IdSet, Span
from penstock.core.queue import READERS
from penstock.core.starts import AnyStart, FromId
from penstock.core.state import ChannelState
from penstock.frontends.http import publishing
from penstock.frontends.http.collecting import Collected, collect, count_that_fits
from penstock.frontends.http.event_documents import detail_of, document_of, messages_of, picked
from penstock.frontends.http.finding import channel_of, cursor_of, found, start_of
from penstock.frontends.http.live import snoop
from penstock.frontends.http.routing import Call, Content, Events, Route
from penstock.frontends.http.shapes import (
    EventAnswer,
    EventDetail,
    EventsQuery,
    LiveQuery,
    NoQuery,
    OutstandingQuery,
    Page,
    PublishedAnswer,
    PublishQuery,
)
from penstock.runtime.departed import missing

NEWEST_LOOKED_AT = 10_000


async def browse(call: Call[EventsQuery, None]) -> Page[EventAnswer]:
    """Browse stored events, in order; it takes nothing and counts nowhere (SEM E6)."""
    store, query, realm = await found(call), call.query, call.realm
    channel = channel_of(realm, store.number)
    first: AnyStart
    if query.newest and channel is not None:
        looked_at = NEWEST_LOOKED_AT if query.selector else query.limit
        first = FromId(_newest(channel.state, looked_at))
        outlet = Collected(query.selector, looked_at)
    else:
        cursor = cursor_of(query.after)
        first = start_of(query.start) if cursor is None else FromId(cursor)
        outlet = Collected(query.selector, count_that_fits(channel, query.limit))
    next_id = await collect(
        realm,
        store.number,
        outlet,
        lambda: realm.subscriptions.subscribe(
            store.number, first, outlet, credit=outlet.count_max, browse=True, last_id=query.end
        ),
    )
    messages = messages_of(store)
    events = outlet.events()[-query.limit :] if query.newest else outlet.events()
    return Page(
        items=[
            picked(document_of(each, messages, query.data_bytes), query.columns) for each in events
        ],
        next=None if next_id is None or query.newest else str(next_id),
    )


def _newest(state: ChannelState, count: int) -> int:
    """The id from which on there are ``count`` stored events, or all there are."""
    stored: IdSet = state.stored
    low, high = stored.lowest or 0, state.next_id
    if stored.count(Span(low, high)) <= count:
        return low
    while low < high:
        middle = (low + high) // 2
        if stored.count(Span(middle, state.next_id)) > count:
            low = middle + 1
        else:
            high = middle
    return low


async def show(call: Call[NoQuery, None]) -> EventDetail:
    """One event with all of its data: as text, JSON, hex, and the message it carries."""
    store, realm = await found(call), call.realm
    event_id = cursor_of(call.params["event_id"]) or 0
    outlet = Collected("", 1)
    await collect(
        realm,
        store.number,
        outlet,
        lambda: realm.subscriptions.subscribe(
            store.number, FromId(event_id), outlet, credit=1, browse=True, last_id=event_id
        ),
    )
    events = outlet.events()
    if not events:
        gone = await missing(realm.shard, store.number, Span(event_id, event_id + 1))
        why = ", ".join(each.cause for each in gone) or "never"
        raise NameDoesNotExist(f"{store.kind} {store.name} has no event {event_id} ({why})")
    return detail_of(events[0], messages_of(store))


async def publish(call: Call[PublishQuery, Content]) -> PublishedAnswer:
    """Publish one event or many, in one step; answered when they are safe.

    JSON: an event, or ``{"events": [...]}``. NDJSON: an event a line, as ``penstock subscribe
    --format json`` prints them. An Arrow IPC stream: each column a property, except ``data``,
    ``tag``, ``ttl``, ``priority``, ``persistent``, ``deliver_at``.
    """
    return await publishing.publish(call, await found(call))


async def live(call: Call[LiveQuery, None]) -> Events:
    """Watch events as they are published; nobody notices (server-sent events).

    A line ``event: event`` has an event; ``event: lost`` tells which ids a slow viewer has not
    been shown; ``event: end`` says why it is over. Comments keep the connection alive.
    """
    return await snoop(call, await found(call))


async def peek(call: Call[OutstandingQuery, None]) -> Page[EventAnswer]:
    """Look at what a queue holds, in order, without taking anything (SEM Q4)."""
    return await outstanding(call, READERS)


async def outstanding(call: Call[OutstandingQuery, None], durable: str) -> Page[EventAnswer]:
    """What is outstanding at a durable, or on a queue; changes nothing (SEM D16)."""
    store, query, realm = await found(call), call.query, call.realm
    cursor = cursor_of(query.after) or 0
    fits = count_that_fits(channel_of(realm, store.number), query.limit)
    outlet = Collected(query.selector, fits, first_id=cursor)
    next_id = await collect(
        realm,
        store.number,
        outlet,
        lambda: realm.subscriptions.browse_durable(
            store.number, durable, outlet, fits, first_id=cursor
        ),
    )
    messages = messages_of(store)
    return Page(
        items=[document_of(each, messages, query.data_bytes) for each in outlet.events()],
        next=None if next_id is None else str(next_id),
    )


ROUTES = (
    Route("GET", "channels/{channel}/events", "channel.subscribe", browse),
    Route("POST", "channels/{channel}/events", "channel.publish", publish, 201),
    Route("GET", "channels/{channel}/events/{event_id}", "channel.subscribe", show),
    Route("GET", "channels/{channel}/live", "channel.subscribe", live),
    Route("GET", "queues/{queue}/events", "queue.peek", peek),
    Route("POST", "queues/{queue}/events", "queue.push", publish, 201),
    Route("GET", "queues/{queue}/events/{event_id}", "queue.peek", show),
    Route("GET", "queues/{queue}/live", "queue.peek", live),
)
