"""Routes for topics of MQTT: what is retained, by level and by filter, and sessions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock_core.api.reading import ReadEvent
from penstock_core.api.topics import (
    Depth,
    DescribeMqtt,
    EndMqttSession,
    ForgetRetained,
    ListMqttSessions,
    ListTopics,
    MqttSessionInfo,
    OpenRetained,
    ReadRetained,
    SessionFilter,
    TopicLevel,
    TopicsOfChannel,
)
from penstock_core.columns.schema.moments import moment_of
from penstock_server.frontends.http.event_documents import detail_of, document_of, messages_of
from penstock_server.frontends.http.finding import asked_of, cursor_of
from penstock_server.frontends.http.routing import Call, Route
from penstock_server.frontends.http.shapes import (
    LIMIT_DEFAULT,
    PREVIEW_BYTES,
    After,
    Answer,
    DataBytes,
    Done,
    EventAnswer,
    EventDetail,
    Limit,
    Moment,
    NoQuery,
    Page,
    Purged,
    QueryParameters,
)

Topic = Annotated[str, Meta(max_length=4_096)]
Filter = Annotated[
    str, Meta(max_length=4_096, description="A topic filter: + is any level, # all that follow.")
]


class TopicsQuery(QueryParameters, frozen=True):
    prefix: Topic | None = None
    """The topic below which to look; left out: at the first level."""
    depth: Depth = 1
    """Levels that are listed."""
    limit: Limit = LIMIT_DEFAULT
    after: Topic | None = None


class RetainedQuery(QueryParameters, frozen=True):
    filter: Filter = "#"
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=64)] = ""
    data_bytes: DataBytes = PREVIEW_BYTES


class ForgottenQuery(QueryParameters, frozen=True):
    filter: Filter


class EndedQuery(QueryParameters, frozen=True):
    client_id: Annotated[str, Meta(max_length=65_535)]
    user: Annotated[str, Meta(max_length=1_024)] = ""


class MqttQuery(QueryParameters, frozen=True):
    filter: Filter = "#"


class MqttAnswer(Answer, frozen=True):
    channel: str | None
    """The channel of all topics; null: the realm does not serve MQTT."""
    retained: str | None
    """The channel through which retained messages are read; null: the realm does not serve MQTT."""
    channels: tuple[TopicsOfChannel, ...]
    """The channel of all topics, and those that have topics of their own, as far as one may read
    them."""


class MqttSessionAnswer(Answer, frozen=True):
    client_id: str
    user: str
    """``user@host``."""
    version: str | None
    """The version of MQTT that its client speaks; null: it is away."""
    ended: Moment | None
    """When its connection ended; null: it has one."""
    expires: Moment | None
    """When it ends unless its client comes back; null: never, or it has a connection."""
    expiry_s: int | None
    """How long it outlives its connection, in seconds; null: for ever."""
    in_flight: int
    """Messages of QoS 1 and 2 that its client has not acknowledged to the end."""
    waiting: int
    """Messages at its durables that its client has not acknowledged, of the subscriptions here."""
    will_due: Moment | None
    """When its will is published; null: it has none, or a connection."""
    subscription_count: int
    subscriptions: tuple[SessionFilter, ...]
    """The first hundred of its subscriptions."""


async def describe(call: Call[MqttQuery, None]) -> MqttAnswer:
    """Tell whether the realm serves MQTT, which channels have topics, and how the events of a topic
    filter are found in each.

    The selector is for ``channels/{channel}/live`` and ``channels/{channel}/events``.
    """
    told = await call.ask(DescribeMqtt(call.query.filter))
    return MqttAnswer(channel=told.channel, retained=told.retained, channels=told.channels)


async def levels(call: Call[TopicsQuery, None]) -> Page[TopicLevel]:
    """List the topics for which something is retained, level by level, with how many there are.

    The channel is that of all topics, usually ``mqtt``, or another whose only publish key is
    ``topic`` with depth 1. Each level comes before what is below it, by name.
    """
    query = call.query
    _, told = await asked_of(
        call,
        ListTopics,
        lambda now: ListTopics(
            now.channel, query.limit, query.prefix, depth=query.depth, after=query.after
        ),
    )
    return Page(items=list(told.levels), next=told.next)


async def retained(call: Call[RetainedQuery, None]) -> Page[EventAnswer]:
    """Read what is retained for the topics that a filter takes, the oldest first.

    The channel is that of all topics, usually ``mqtt``, or another whose only publish key is
    ``topic`` with depth 1. Topics are found by their levels, so what it costs goes by what the
    filter takes. Messages may be of every channel with topics, so one has to be allowed to read
    all of these.
    """
    query = call.query
    store, told = await asked_of(
        call,
        ReadRetained,
        lambda now: ReadRetained(
            now.channel, query.filter, query.limit, first_id=cursor_of(query.after) or 0
        ),
    )
    messages = messages_of(store)
    return Page(
        items=[document_of(each, messages, query.data_bytes) for each in told.events],
        next=None if told.next_id is None else str(told.next_id),
    )


async def sessions(call: Call[After, None]) -> Page[MqttSessionAnswer]:
    """List the sessions of MQTT by client id, those with a connection and those that outlive it."""
    told = await call.ask(ListMqttSessions(call.query.limit, call.query.after))
    return Page(items=[_session(each) for each in told.sessions], next=told.next)


def _session(told: MqttSessionInfo) -> MqttSessionAnswer:
    return MqttSessionAnswer(
        client_id=told.client_id,
        user=told.user,
        version=told.version,
        ended=None if told.ended_us is None else moment_of(told.ended_us),
        expires=None if told.expires_us is None else moment_of(told.expires_us),
        expiry_s=told.expiry_s,
        in_flight=told.in_flight,
        waiting=sum(each.waiting for each in told.filters),
        will_due=None if told.will_us is None else moment_of(told.will_us),
        subscription_count=told.filter_count,
        subscriptions=told.filters,
    )


async def retained_event(call: Call[NoQuery, None]) -> EventDetail:
    """Show one retained message with all of its data.

    The channel is that of all topics.
    """
    store, opened = await asked_of(call, OpenRetained, lambda now: OpenRetained(now.channel))
    event_id = cursor_of(call.params["event_id"]) or 0
    return detail_of(await call.ask(ReadEvent(opened.channel, event_id)), messages_of(store))


async def forget(call: Call[ForgottenQuery, None]) -> Purged:
    """Forget what is retained for the topics that a filter takes.

    The channel is that of all topics. Clients that are connected are not told.
    """
    _, count = await asked_of(
        call, ForgetRetained, lambda now: ForgetRetained(now.channel, call.query.filter)
    )
    return Purged(count=count, dry_run=False)


async def end_session(call: Call[EndedQuery, None]) -> Done:
    """End a session of MQTT with its connection and what waits for its client.

    The user has to be given where several users have chosen the client id.
    """
    await call.ask(EndMqttSession(call.query.client_id, call.query.user))
    return Done()


ROUTES = (
    Route("getMqtt", "GET", "mqtt", asks=DescribeMqtt, endpoint=describe),
    Route("listMqttSessions", "GET", "mqtt/sessions", asks=ListMqttSessions, endpoint=sessions),
    Route("listTopics", "GET", "channels/{channel}/topics", asks=ListTopics, endpoint=levels),
    Route(
        "getRetainedMessage",
        "GET",
        "channels/{channel}/retained/{event_id}",
        asks=OpenRetained,
        endpoint=retained_event,
    ),
    Route("endMqttSession", "DELETE", "mqtt/sessions", asks=EndMqttSession, endpoint=end_session),
    Route(
        "forgetRetained",
        "DELETE",
        "channels/{channel}/retained",
        asks=ForgetRetained,
        endpoint=forget,
    ),
    Route(
        "listRetainedMessages",
        "GET",
        "channels/{channel}/retained",
        asks=ReadRetained,
        endpoint=retained,
    ),
)
