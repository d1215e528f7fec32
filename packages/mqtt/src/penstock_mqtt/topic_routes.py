"""Routes for MQTT: retained messages by level and by filter, and sessions."""

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
    """The topic whose sub-levels are listed; by default the first level is listed."""
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
    """The channel of all topics and the channels with topics, if the caller may read them."""


class MqttSessionAnswer(Answer, frozen=True):
    client_id: str
    user: str
    """``user@host``."""
    version: str | None
    """MQTT version of its client; null: the client is not connected."""
    ended: Moment | None
    """Time when its connection ended; null: it is connected."""
    expires: Moment | None
    """Time when it ends unless its client reconnects; null: never, or it is connected."""
    expiry_s: int | None
    """Seconds that it outlives its connection; null: no limit."""
    in_flight: int
    """Messages of QoS 1 and 2 that its client has not acknowledged completely."""
    waiting: int
    """Unacknowledged messages at the durables of the listed subscriptions."""
    will_due: Moment | None
    """Time when its will is published; null: it has no will or is connected."""
    subscription_count: int
    subscriptions: tuple[SessionFilter, ...]
    """The first hundred of its subscriptions."""


async def describe(call: Call[MqttQuery, None]) -> MqttAnswer:
    """Tell whether the realm serves MQTT, which channels have topics, and how the events of a topic
    filter are found in each.

    The selector is for ``channels/{channel}/live`` and ``channels/{channel}/events``.
    """
    info = await call.ask(DescribeMqtt(call.query.filter))
    return MqttAnswer(channel=info.channel, retained=info.retained, channels=info.channels)


async def levels(call: Call[TopicsQuery, None]) -> Page[TopicLevel]:
    """List the topics for which something is retained, level by level, with how many there are.

    The channel is that of all topics, usually ``mqtt``, or another whose only publish key is
    ``topic`` with depth 1. Each level comes before what is below it, by name.
    """
    query = call.query
    _, answer = await asked_of(
        call,
        ListTopics,
        lambda now: ListTopics(
            now.channel, query.limit, query.prefix, depth=query.depth, after=query.after
        ),
    )
    return Page(items=list(answer.levels), next=answer.next)


async def retained(call: Call[RetainedQuery, None]) -> Page[EventAnswer]:
    """Read what is retained for the topics that a filter takes, the oldest first.

    The channel is that of all topics, usually ``mqtt``, or another whose only publish key is
    ``topic`` with depth 1. Topics are found by their levels, so what it costs goes by what the
    filter takes. Messages may be of every channel with topics, so one has to be allowed to read
    all of these.
    """
    query = call.query
    store, answer = await asked_of(
        call,
        ReadRetained,
        lambda now: ReadRetained(
            now.channel, query.filter, query.limit, first_id=cursor_of(query.after) or 0
        ),
    )
    messages = messages_of(store)
    return Page(
        items=[document_of(event, messages, query.data_bytes) for event in answer.events],
        next=None if answer.next_id is None else str(answer.next_id),
    )


async def sessions(call: Call[After, None]) -> Page[MqttSessionAnswer]:
    """List the sessions of MQTT by client id, those with a connection and those that outlive it."""
    answer = await call.ask(ListMqttSessions(call.query.limit, call.query.after))
    return Page(items=[_session(session) for session in answer.sessions], next=answer.next)


def _session(session: MqttSessionInfo) -> MqttSessionAnswer:
    return MqttSessionAnswer(
        client_id=session.client_id,
        user=session.user,
        version=session.version,
        ended=None if session.ended_us is None else moment_of(session.ended_us),
        expires=None if session.expires_us is None else moment_of(session.expires_us),
        expiry_s=session.expiry_s,
        in_flight=session.in_flight,
        waiting=sum(subscription.waiting for subscription in session.filters),
        will_due=None if session.will_us is None else moment_of(session.will_us),
        subscription_count=session.filter_count,
        subscriptions=session.filters,
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
