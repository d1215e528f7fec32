"""Routes that browse, show, watch, publish, request and pop events."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
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
from penstock_core.columns.events.event import Event
from penstock_core.columns.protobuf import Messages
from penstock_core.durable.queue import READERS
from penstock_core.vocabulary.errors import InvalidArgument, NoReply
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId
from penstock_core.vocabulary.temporary import REPLY_QUEUE_PREFIX
from penstock_server.frontends.http import publishing
from penstock_server.frontends.http.binding import bound
from penstock_server.frontends.http.event_documents import (
    columns_of,
    detail_of,
    document_of,
    messages_of,
    with_columns,
)
from penstock_server.frontends.http.event_streams import (
    page_limit,
    stream_kind,
    stream_of_channel,
    stream_of_outstanding,
)
from penstock_server.frontends.http.finding import ask_store, cursor_of, find_store, start_of
from penstock_server.frontends.http.live import open_channel_view
from penstock_server.frontends.http.pattern_live import PatternQuery, open_pattern_view
from penstock_server.frontends.http.routing import Call, Content, Events, EventStream, Route
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

_REQUEST_HEADERS: Final = ("reply_to", "correlation_id", "message_id")
"""Headers that the realm sets in a request."""


async def browse(call: Call[EventsQuery, None]) -> EventsPage | EventStream:
    """Browse stored events in order. This does not consume events or count as a delivery (SEM E6).

    A page ends when it is full, or after examining events for ten seconds, 32 MiB of events, or a
    million events; it may then be short or empty. ``looked_at`` is the range of ids that was
    examined, and ``next`` continues after it.

    With another content type than JSON, by ``Accept`` or ``format``, the answer is a stream of all
    selected events up to the last one at the time of the request (SEM E12).
    """
    query = call.query
    if (kind := stream_kind(call)) is not None:
        return await stream_of_channel(call, kind)
    store, page = await ask_store(call, BrowseEvents, lambda now: _request(now.channel, query))
    messages = messages_of(store)
    return EventsPage(
        items=_items(page.events, messages, query),
        next=None if page.next_id is None else str(page.next_id),
        looked_at=None
        if page.first_id >= page.end_id
        else LookedAt(first_id=page.first_id, last_id=page.end_id - 1),
    )


def _items(
    events: Sequence[Event], messages: Messages | None, query: EventsQuery | OutstandingQuery
) -> list[EventAnswer]:
    """Return the documents of a page. Raises ``InvalidArgument`` for an unknown column."""
    columns = columns_of(query.columns) if events else None
    return [
        with_columns(document_of(event, messages, query.data_bytes), columns) for event in events
    ]


def _request(channel: ChannelId, query: EventsQuery) -> BrowseEvents:
    """Return the realm request for a query."""
    cursor = cursor_of(query.after)
    # The last id is inclusive in the HTTP interface and exclusive in the realm.
    end = None if query.end is None else query.end + 1
    # Pages of the newest events go backwards, so their cursor limits the end of the range.
    if cursor is not None and query.newest:
        end = cursor if end is None else min(cursor, end)
    continues = cursor is not None and not query.newest
    start = FromId(cursor or 0) if continues else start_of(query.start)
    return BrowseEvents(
        channel,
        start,
        page_limit(query.limit),
        selector=query.selector,
        end_id=end,
        newest=query.newest,
    )


async def show(call: Call[NoQuery, None]) -> EventDetail:
    """Show one event with all its data, as text, JSON, hex and decoded message."""
    text = call.params["event_id"]
    store, event = await ask_store(
        call, ReadEvent, lambda now: ReadEvent(now.channel, cursor_of(text) or 0)
    )
    return detail_of(event, messages_of(store))


async def publish(call: Call[PublishQuery, Content]) -> PublishedAnswer:
    """Publish one event or several events atomically; the realm answers when they are stored
    safely.

    The body is one of these:

    - JSON: an event, or ``{"events": [...]}``.
    - NDJSON: one event per line, as ``penstock subscribe --format json`` prints them.
    - An Arrow IPC stream: each column is a property, except ``data``, ``tag``, ``ttl``,
      ``priority``, ``persistent`` and ``deliver_at``.

    The W3C headers ``traceparent`` and ``tracestate`` of the request become properties of those
    events that have neither (SEM E13).
    """
    return await publishing.publish(call, await find_store(call, PublishEvents))


async def request(call: Call[RequestQuery, NewEvent]) -> EventAnswer:
    """Publish a request, wait for its reply, and answer with the reply (SEM R1).

    The body is an event, as for publishing. The reply goes to a temporary queue, whose name the
    consumer of the request finds in the header ``reply_to``. Without a reply in time, the answer
    is 504 with the code ``no-reply``; the request may still be processed later.
    """
    body = call.body
    if reserved := [name for name in _REQUEST_HEADERS if name in body.headers]:
        raise InvalidArgument(f"the realm sets the header {reserved[0]} of a request; leave it out")
    if body.deliver_at is not None:
        raise InvalidArgument("a request cannot be scheduled; leave 'deliver_at' out")
    store = await find_store(call, PublishEvents)
    name = REPLY_QUEUE_PREFIX + secrets.token_hex(16)
    correlation = f"ID:{secrets.token_hex(16)}"
    body.headers.update(reply_to=name, correlation_id=correlation, message_id=correlation)
    event = publishing.event_of_body(body, messages_of(store))
    # The queue comes before the request, because the reply may be sent immediately.
    queue = await call.ask(OpenReplyQueue(name))
    try:
        event_id = await publishing.publish_event(call, store, event)
        wait = PopEvents(queue.channel, 1, call.query.timeout)
        replies = await call.ask_while_there(wait)
    finally:
        # Also after a timeout: a late reply is then refused, instead of staying in the queue.
        await call.ask(CloseReplyQueue(name))
    if not replies:
        raise NoReply(
            f"no reply to request {event_id} on {store.name} arrived within "
            f"{call.query.timeout:g} s"
        )
    return document_of(replies[0], None)


async def live(call: Call[LiveQuery, None]) -> Events:
    """Watch events as they are published, without counting as a subscriber (server-sent events).

    ``event: event`` has an event, ``event: lost`` the ids that a slow viewer has missed, and
    ``event: end`` the reason why the stream ends. Comments keep the connection alive.
    """
    return await open_channel_view(call, await find_store(call, WatchEvents))


async def live_of_pattern(call: Call[PatternQuery, None]) -> Events:
    """Watch the events of all channels of a pattern as they are published, including channels
    created meanwhile (server-sent events).

    ``event: event`` has an event and its ``channel``, ``event: lost`` the ids of a channel that a
    slow viewer has missed, and ``event: end`` the reason why the stream ends. Channels that the
    user may not read are omitted. A channel created while the view is open is shown from its first
    event.
    """
    return await open_pattern_view(call)


async def peek(call: Call[OutstandingQuery, None]) -> Page[EventAnswer] | EventStream:
    """Browse the events of a queue in order, without removing them (SEM Q4).

    With another content type than JSON, by ``Accept`` or ``format``, the answer is a stream of all
    selected events (SEM E12).
    """
    return await outstanding(call, READERS)


async def outstanding(
    call: Call[OutstandingQuery, None], durable: str
) -> Page[EventAnswer] | EventStream:
    """Return a page or stream of outstanding events of a durable or queue, without changing it (SEM
    D16)."""
    query = call.query
    if (kind := stream_kind(call)) is not None:
        return await stream_of_outstanding(call, kind, durable)
    store, page = await ask_store(
        call,
        BrowseOutstanding,
        lambda now: BrowseOutstanding(
            now.channel,
            durable,
            page_limit(query.limit),
            first_id=cursor_of(query.after) or 0,
            selector=query.selector,
        ),
    )
    messages = messages_of(store)
    return Page(
        items=_items(page.events, messages, query),
        next=None if page.next_id is None else str(page.next_id),
    )


async def pop(call: Call[NoQuery, Pop]) -> Popped:
    """Remove events from a queue and return them (SEM Q1); the removal is committed before the
    answer is sent.

    The events are lost if the connection is lost; fetch events under a lease to avoid this.
    """
    body = call.body
    store, events = await ask_store(
        call,
        PopEvents,
        lambda now: PopEvents(now.channel, body.count, body.timeout, selector=body.selector),
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
        text="Explain a selector, or show the position of its error; with a channel, show which "
        "stored events it matches."
        "\n\n"
        "For a selector that does not parse, the answer has ``valid`` false; the status is 200.",
        body=CheckSelector,
        answer=SelectorAnswer,
        only_asks=True,
    ),
)
