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
from penstock_server.frontends.http.finding import ask_store, cursor_of
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
    str,
    Meta(
        max_length=4_096,
        description="MQTT topic filter: + matches one level, # all remaining levels.",
    ),
]


class TopicsQuery(QueryParameters, frozen=True):
    prefix: Topic | None = None
    """The topic whose sub-levels are listed; by default the first level is listed."""
    depth: Depth = 1
    """Number of levels to list."""
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
    """The channel of all topics; null if the realm does not serve MQTT."""
    retained: str | None
    """The channel from which to read retained messages; null if the realm does not serve MQTT."""
    channels: tuple[TopicsOfChannel, ...]
    """The channel of all topics and the channels with topics that the user may read."""


class MqttSessionAnswer(Answer, frozen=True):
    client_id: str
    user: str
    """``user@host``."""
    version: str | None
    """MQTT version of the client; null if the client is not connected."""
    ended: Moment | None
    """Time when the connection ended; null if the client is connected."""
    expires: Moment | None
    """Time when the session ends unless the client reconnects; null if the client is connected or
    the session does not expire."""
    expiry_s: int | None
    """Seconds that the session outlives its connection; null without a limit."""
    in_flight: int
    """Messages of QoS 1 and 2 that the client has not acknowledged completely."""
    waiting: int
    """Unacknowledged messages at the durables of the listed subscriptions."""
    will_due: Moment | None
    """Time when the will is published; null without a will or if the client is connected."""
    subscription_count: int
    subscriptions: tuple[SessionFilter, ...]
    """The first hundred subscriptions."""


async def describe(call: Call[MqttQuery, None]) -> MqttAnswer:
    """Show whether the realm serves MQTT, and the channels with topics, each with the selector that
    finds the events of a topic filter.

    Use the selector in ``channels/{channel}/live`` and ``channels/{channel}/events``.
    """
    info = await call.ask(DescribeMqtt(call.query.filter))
    return MqttAnswer(channel=info.channel, retained=info.retained, channels=info.channels)


async def levels(call: Call[TopicsQuery, None]) -> Page[TopicLevel]:
    """List the topics with retained messages level by level, with the number of messages.

    The channel is that of all topics, usually ``mqtt``, or another whose only publish key is
    ``topic`` with depth 1. Levels are sorted by name; each precedes its sub-levels.
    """
    query = call.query
    _, answer = await ask_store(
        call,
        ListTopics,
        lambda now: ListTopics(
            now.channel, query.limit, query.prefix, depth=query.depth, after=query.after
        ),
    )
    return Page(items=list(answer.levels), next=answer.next)


async def retained(call: Call[RetainedQuery, None]) -> Page[EventAnswer]:
    """Read the retained messages of the topics that match a filter, oldest first.

    The channel is that of all topics, usually ``mqtt``, or another whose only publish key is
    ``topic`` with depth 1. The cost depends on the number of matching topics, not of all topics.
    Messages may come from every channel with topics, so the user must have the right to read all
    of these channels.
    """
    query = call.query
    store, answer = await ask_store(
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
    """List MQTT sessions by client id, including sessions without a connection."""
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
    """Show one retained message with all its data.

    The channel is that of all topics.
    """
    store, opened = await ask_store(call, OpenRetained, lambda now: OpenRetained(now.channel))
    event_id = cursor_of(call.params["event_id"]) or 0
    return detail_of(await call.ask(ReadEvent(opened.channel, event_id)), messages_of(store))


async def forget(call: Call[ForgottenQuery, None]) -> Purged:
    """Remove the retained messages of the topics that match a filter.

    The channel is that of all topics. Connected clients are not notified.
    """
    _, count = await ask_store(
        call, ForgetRetained, lambda now: ForgetRetained(now.channel, call.query.filter)
    )
    return Purged(count=count, dry_run=False)


async def end_session(call: Call[EndedQuery, None]) -> Done:
    """End an MQTT session with its connection and its waiting messages.

    If several users have sessions with this client id, name the user.
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
