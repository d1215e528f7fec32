"""Routes for events: browse, show, watch, publish."""

from __future__ import annotations

from penstock.api.channels import DescribeMissing
from penstock.columns.events.event import Event
from penstock.core.durable.queue import READERS
from penstock.core.ids.ids import Span
from penstock.core.vocabulary.errors import NameDoesNotExist
from penstock.core.vocabulary.start_positions import AnyStart, FromId
from penstock.frontends.http import publishing
from penstock.frontends.http.collecting import Collected, collect, count_that_fits
from penstock.frontends.http.event_documents import detail_of, document_of, messages_of, picked
from penstock.frontends.http.finding import Store, cursor_of, found, start_of
from penstock.frontends.http.live import snoop
from penstock.frontends.http.newest import newest
from penstock.frontends.http.routing import Call, Content, Events, Route
from penstock.frontends.http.shapes import (
    EventAnswer,
    EventDetail,
    EventsPage,
    EventsQuery,
    LiveQuery,
    LookedAt,
    NoQuery,
    OutstandingQuery,
    Page,
    PublishedAnswer,
    PublishQuery,
)
from penstock.runtime.subscriptions.subscriptions import Opened


async def browse(call: Call[EventsQuery, None]) -> EventsPage:
    """Browse stored events, in order. Nothing is taken, and nothing is counted (SEM E6).

    A page ends when it is full, or after ten seconds, 32 MiB, or a million events examined; it may
    then be short, or empty. ``looked_at`` says which ids are done, and ``next`` continues after
    them.
    """
    store, query = await found(call), call.query
    cursor = cursor_of(query.after)
    own = _newest if query.newest else _from
    events, looked_at, next_id = await own(call, store, cursor)
    messages = messages_of(store)
    return EventsPage(
        items=[
            picked(document_of(each, messages, query.data_bytes), query.columns) for each in events
        ],
        next=None if next_id is None else str(next_id),
        looked_at=None
        if looked_at.first >= looked_at.end
        else LookedAt(first_id=looked_at.first, last_id=looked_at.end - 1),
    )


Browsed = tuple[list[Event], Span, int | None]
"""Events, the span of ids that was examined, and the cursor of the next page."""


async def _from(call: Call[EventsQuery, None], store: Store, cursor: int | None) -> Browsed:
    query, realm = call.query, call.realm
    channel = realm.view.store(store.number)
    first: AnyStart = start_of(query.start) if cursor is None else FromId(cursor)
    outlet = Collected(query.selector, count_that_fits(channel, query.limit))
    opened: list[Opened] = []

    async def open_() -> Opened:
        opened.append(
            await realm.subscriptions.subscribe(
                store.number, first, outlet, credit=outlet.count_max, browse=True, last_id=query.end
            )
        )
        return opened[0]

    next_id = await collect(realm, store.number, outlet, open_)
    end = (opened[0].stop_id or 0) if next_id is None else next_id
    return outlet.events(), Span(opened[0].first_id, end), next_id


async def _newest(call: Call[EventsQuery, None], store: Store, cursor: int | None) -> Browsed:
    query = call.query
    ends = [
        end for end in (cursor, None if query.end is None else query.end + 1) if end is not None
    ]
    told = await newest(
        call.realm,
        store.number,
        query.selector,
        query.limit,
        start_of(query.start),
        min(ends, default=None),
    )
    return told.events, told.looked_at, None if told.is_all else told.looked_at.first


async def show(call: Call[NoQuery, None]) -> EventDetail:
    """Show one event with all of its data: as text, JSON, hex, and as the message it carries."""
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
        gone = await call.answer(DescribeMissing(store.number, event_id, event_id + 1))
        why = ", ".join(each.cause for each in gone) or "never"
        raise NameDoesNotExist(f"{store.kind} {store.name} has no event {event_id} ({why})")
    return detail_of(events[0], messages_of(store))


async def publish(call: Call[PublishQuery, Content]) -> PublishedAnswer:
    """Publish one event or many, in one step; the answer comes when they are safe.

    JSON: an event, or ``{"events": [...]}``. NDJSON: one event in each line, as ``penstock
    subscribe --format json`` prints them. An Arrow IPC stream: each column is a property, except
    ``data``, ``tag``, ``ttl``, ``priority``, ``persistent``, ``deliver_at``.
    """
    return await publishing.publish(call, await found(call))


async def live(call: Call[LiveQuery, None]) -> Events:
    """Watch events as they are published, without being counted as a subscriber (server-sent
    events).

    ``event: event`` has an event; ``event: lost`` tells which ids a slow viewer has missed;
    ``event: end`` says why the stream ends. Comments keep the connection alive.
    """
    return await snoop(call, await found(call))


async def peek(call: Call[OutstandingQuery, None]) -> Page[EventAnswer]:
    """Browse the events of a queue, in order, without taking any (SEM Q4)."""
    return await outstanding(call, READERS)


async def outstanding(call: Call[OutstandingQuery, None], durable: str) -> Page[EventAnswer]:
    """The outstanding events of a durable or queue; this changes nothing (SEM D16)."""
    store, query, realm = await found(call), call.query, call.realm
    cursor = cursor_of(query.after) or 0
    fits = count_that_fits(realm.view.store(store.number), query.limit)
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
    Route("browseEvents", "GET", "channels/{channel}/events", "channel.subscribe", browse),
    Route("publishEvents", "POST", "channels/{channel}/events", "channel.publish", publish, 201),
    Route(
        "getChannelEvent", "GET", "channels/{channel}/events/{event_id}", "channel.subscribe", show
    ),
    Route("watchChannel", "GET", "channels/{channel}/live", "channel.subscribe", live),
    Route("peekEvents", "GET", "queues/{queue}/events", "queue.peek", peek),
    Route("pushEvents", "POST", "queues/{queue}/events", "queue.push", publish, 201),
    Route("getQueueEvent", "GET", "queues/{queue}/events/{event_id}", "queue.peek", show),
    Route("watchQueue", "GET", "queues/{queue}/live", "queue.peek", live),
)
