"""Routes for events: browse, show, watch, publish, request, take."""

from __future__ import annotations

import secrets
from typing import Final

from penstock_core.api.patterns import WatchChannels
from penstock_core.api.publishing import PublishEvents
from penstock_core.api.reading import (
    BrowseEvents,
    BrowseOutstanding,
    ExplainSelector,
    PopEvents,
    ReadEvent,
    SelectorAnswer,
    WatchEvents,
)
from penstock_core.api.requesting import CloseReplyQueue, OpenReplyQueue
from penstock_core.durable.queue import READERS
from penstock_core.vocabulary.errors import InvalidArgument, NoReply
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId
from penstock_core.vocabulary.temporary import REPLY_QUEUE_PREFIX
from penstock_server.frontends.http import publishing
from penstock_server.frontends.http.binding import bound
from penstock_server.frontends.http.event_documents import (
    detail_of,
    document_of,
    messages_of,
    picked,
)
from penstock_server.frontends.http.finding import asked_of, cursor_of, found, start_of
from penstock_server.frontends.http.live import snoop
from penstock_server.frontends.http.pattern_live import PatternQuery, open_pattern_view
from penstock_server.frontends.http.routing import Call, Content, Events, Route
from penstock_server.frontends.http.shapes import (
    CheckSelector,
    EventAnswer,
    EventDetail,
    EventsPage,
    EventsQuery,
    LiveQuery,
    LookedAt,
    NewEvent,
    NoQuery,
    OutstandingQuery,
    Page,
    Pop,
    Popped,
    PublishedAnswer,
    PublishQuery,
    RequestQuery,
)

_SET_HERE: Final = ("reply_to", "correlation_id", "message_id")
"""Headers that a request sets itself."""


async def browse(call: Call[EventsQuery, None]) -> EventsPage:
    """Browse stored events, in order. Nothing is taken, and nothing is counted (SEM E6).

    A page ends when it is full, or after ten seconds, 32 MiB, or a million events examined; it may
    then be short, or empty. ``looked_at`` says which ids are done, and ``next`` continues after
    them.
    """
    query = call.query
    store, told = await asked_of(call, BrowseEvents, lambda now: _asked(now.channel, query))
    messages = messages_of(store)
    return EventsPage(
        items=[
            picked(document_of(each, messages, query.data_bytes), query.columns)
            for each in told.events
        ],
        next=None if told.next_id is None else str(told.next_id),
        looked_at=None
        if told.first_id >= told.end_id
        else LookedAt(first_id=told.first_id, last_id=told.end_id - 1),
    )


def _asked(channel: ChannelId, query: EventsQuery) -> BrowseEvents:
    """What the query asks of a channel."""
    cursor = cursor_of(query.after)
    end = None if query.end is None else query.end + 1
    if cursor is not None and query.newest:
        end = cursor if end is None else min(cursor, end)
    goes_on = cursor is not None and not query.newest
    start = FromId(cursor or 0) if goes_on else start_of(query.start)
    return BrowseEvents(
        channel, start, query.limit, selector=query.selector, end_id=end, newest=query.newest
    )


async def show(call: Call[NoQuery, None]) -> EventDetail:
    """Show one event with all of its data: as text, JSON, hex, and as the message it carries."""
    text = call.params["event_id"]
    store, event = await asked_of(
        call, ReadEvent, lambda now: ReadEvent(now.channel, cursor_of(text) or 0)
    )
    return detail_of(event, messages_of(store))


async def publish(call: Call[PublishQuery, Content]) -> PublishedAnswer:
    """Publish one event or many, in one step; the answer comes when they are safe.

    JSON: an event, or ``{"events": [...]}``. NDJSON: one event in each line, as ``penstock
    subscribe --format json`` prints them. An Arrow IPC stream: each column is a property, except
    ``data``, ``tag``, ``ttl``, ``priority``, ``persistent``, ``deliver_at``.
    """
    return await publishing.publish(call, await found(call, PublishEvents))


async def request(call: Call[RequestQuery, NewEvent]) -> EventAnswer:
    """Publish a request, wait for its reply, and answer with that (SEM R1).

    The body is an event, as for publishing. The reply comes to a temporary queue of this call;
    whoever receives the request finds its name in the header ``reply_to``. Without a reply in time
    the answer is 504 with the code ``no-reply``; the request may be done all the same.
    """
    given = call.body
    if own := [name for name in _SET_HERE if name in given.headers]:
        raise InvalidArgument(f"a request sets the header {own[0]} itself; leave it out")
    if given.deliver_at is not None:
        raise InvalidArgument("a request cannot wait for its time; leave 'deliver_at' out")
    store = await found(call, PublishEvents)
    name = REPLY_QUEUE_PREFIX + secrets.token_hex(16)
    correlation = f"ID:{secrets.token_hex(16)}"
    given.headers.update(reply_to=name, correlation_id=correlation, message_id=correlation)
    event = publishing.event_of_body(given, messages_of(store))
    queue = await call.ask(OpenReplyQueue(name))
    try:
        event_id = await publishing.publish_event(call, store, event)
        wait = PopEvents(queue.channel, 1, call.query.timeout)
        replies = await call.ask_while_there(wait)
    finally:
        await call.ask(CloseReplyQueue(name))
    if not replies:
        raise NoReply(
            f"no reply to request {event_id} on {store.name} came within {call.query.timeout:g} s"
        )
    return document_of(replies[0], None)


async def live(call: Call[LiveQuery, None]) -> Events:
    """Watch events as they are published, without being counted as a subscriber (server-sent
    events).

    ``event: event`` has an event; ``event: lost`` tells which ids a slow viewer has missed;
    ``event: end`` says why the stream ends. Comments keep the connection alive.
    """
    return await snoop(call, await found(call, WatchEvents))


async def live_of_pattern(call: Call[PatternQuery, None]) -> Events:
    """Watch the events of all channels of a pattern as they are published, also of channels that
    are made meanwhile (server-sent events).

    ``event: event`` has an event and its ``channel``; ``event: lost`` tells which ids of a channel
    a slow viewer has missed; ``event: end`` says why the stream ends. Channels that one may not
    read are left out. A channel made meanwhile is shown from its first event.
    """
    return await open_pattern_view(call)


async def peek(call: Call[OutstandingQuery, None]) -> Page[EventAnswer]:
    """Browse the events of a queue, in order, without taking any (SEM Q4)."""
    return await outstanding(call, READERS)


async def outstanding(call: Call[OutstandingQuery, None], durable: str) -> Page[EventAnswer]:
    """The outstanding events of a durable or queue; this changes nothing (SEM D16)."""
    query = call.query
    store, told = await asked_of(
        call,
        BrowseOutstanding,
        lambda now: BrowseOutstanding(
            now.channel,
            durable,
            query.limit,
            first_id=cursor_of(query.after) or 0,
            selector=query.selector,
        ),
    )
    messages = messages_of(store)
    return Page(
        items=[document_of(each, messages, query.data_bytes) for each in told.events],
        next=None if told.next_id is None else str(told.next_id),
    )


async def pop(call: Call[NoQuery, Pop]) -> Popped:
    """Take events off a queue for good (SEM Q1): they are committed before the answer is sent.

    If the connection is lost, so are they; use a transactional reader to be sure.
    """
    wanted = call.body
    store, events = await asked_of(
        call,
        PopEvents,
        lambda now: PopEvents(now.channel, wanted.count, wanted.timeout, selector=wanted.selector),
    )
    messages = messages_of(store)
    return Popped(items=[document_of(event, messages) for event in events])


ROUTES = (
    Route("browseEvents", "GET", "channels/{channel}/events", asks=BrowseEvents, endpoint=browse),
    Route(
        "publishEvents",
        "POST",
        "channels/{channel}/events",
        asks=PublishEvents,
        endpoint=publish,
        status=201,
    ),
    Route(
        "getChannelEvent",
        "GET",
        "channels/{channel}/events/{event_id}",
        asks=ReadEvent,
        endpoint=show,
    ),
    Route("watchPattern", "GET", "live", asks=WatchChannels, endpoint=live_of_pattern),
    Route("watchChannel", "GET", "channels/{channel}/live", asks=WatchEvents, endpoint=live),
    Route("peekEvents", "GET", "queues/{queue}/events", asks=BrowseOutstanding, endpoint=peek),
    Route(
        "pushEvents",
        "POST",
        "queues/{queue}/events",
        asks=PublishEvents,
        endpoint=publish,
        status=201,
    ),
    Route(
        "getQueueEvent", "GET", "queues/{queue}/events/{event_id}", asks=ReadEvent, endpoint=show
    ),
    Route("watchQueue", "GET", "queues/{queue}/live", asks=WatchEvents, endpoint=live),
    Route(
        "requestOnChannel",
        "POST",
        "channels/{channel}/requests",
        asks=PublishEvents,
        endpoint=request,
    ),
    Route(
        "requestOnQueue", "POST", "queues/{queue}/requests", asks=PublishEvents, endpoint=request
    ),
    Route("popEvents", "POST", "queues/{queue}/pop", asks=PopEvents, endpoint=pop),
    bound(
        "checkSelector",
        "POST",
        "selectors/check",
        asks=ExplainSelector,
        text="Explain a selector, or say where it is wrong; with a channel, show what it chooses "
        "there."
        "\n\n"
        "A selector that does not parse is answered with ``valid`` false, and is not an "
        "error.",
        body=CheckSelector,
        answer=SelectorAnswer,
        only_asks=True,
    ),
)
