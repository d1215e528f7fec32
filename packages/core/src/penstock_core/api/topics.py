"""Requests about MQTT topics: retained messages by level and by filter, and sessions.

Events in answers are objects of ``penstock_core.columns.events.event``, a layer above the API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Request
from penstock_core.bounds import Count, EventId, Text
from penstock_core.vocabulary.identities import ChannelNumber

Depth = Annotated[int, Meta(ge=1, le=16)]
"""A number of topic levels in a request."""


class TopicsOfChannel(Struct, frozen=True, kw_only=True):
    """A channel with topics: the channel of all topics, or one with templates (SEM M12)."""

    name: str
    topics: tuple[str, ...]
    """The channel's topic templates; empty for the channel of all topics, which gets the messages
    of topics that no other channel has."""
    selector: str | None
    """The selector for the events that match the filter; null if the filter matches none of the
    channel's topics."""


class MqttInfo(Struct, frozen=True, kw_only=True):
    """The MQTT channels of the realm, as far as the client may read them."""

    channel: str | None
    """The channel of all topics; null if the realm does not serve MQTT."""
    retained: str | None
    """The channel through which retained messages are read; null if the realm does not serve
    MQTT."""
    channels: tuple[TopicsOfChannel, ...] = ()
    """The channel of all topics, and channels with topic templates, by name."""


class DescribeMqtt(Request[MqttInfo], frozen=True):
    """Describe MQTT: whether the realm serves it, the channels with topics, and the selector for
    the events of a topic filter on each."""

    filter: Text = "#"


class TopicLevel(Struct, frozen=True, kw_only=True):
    """A level in the tree of topics with retained messages."""

    topic: str
    """The topic from its first level to this level."""
    name: str
    """The text of this level, which may be empty."""
    retained: int
    """Number of topics at this level and below with a retained message."""
    event_id: int | None
    """Id of the retained event of this topic itself; null if it has none."""
    is_open: bool
    """Whether the level has topics below it."""


class TopicLevels(Struct, frozen=True, kw_only=True):
    """A page of topic levels, in order."""

    levels: tuple[TopicLevel, ...]
    next: str | None
    """The topic after which the next page begins; null if this is the last page."""


class ListTopics(Request[TopicLevels], frozen=True):
    """List the topics with retained messages below a prefix, level by level, with the number of
    retained messages below each (SEM M5). The order is by name, a topic before those below it. The
    cost grows with the number of topics below the prefix."""

    channel: ChannelNumber
    limit: Count
    prefix: Text | None = None
    """The topic whose lower levels are listed; null to list from the first level."""
    depth: Depth = 1
    """Number of levels to list."""
    after: Text | None = None
    """The topic after which the page begins; null for the first page."""


class RetainedEvents(Struct, frozen=True, kw_only=True):
    """A page of retained messages, the oldest first."""

    events: Sequence[Any]
    next_id: int | None
    """First id of the next page; null if this is the last page."""


class ReadRetained(Request[RetainedEvents], frozen=True):
    """Read a page of the retained messages whose topics match a filter. The cost grows with the
    number of matching topics (SEM M5)."""

    channel: ChannelNumber
    filter: Text
    limit: Count
    first_id: EventId = 0


class OpenRetained(Request[ChannelOpened], frozen=True):
    """Open the internal store of retained messages to read it (SEM A6), through the channel of all
    topics. This request needs the right to read each channel to which the messages may have been
    published."""

    channel: ChannelNumber


class ForgetRetained(Request[int], frozen=True):
    """Delete the retained messages whose topics match a filter; the answer is the number of topics.
    Connected clients are not notified."""

    channel: ChannelNumber
    filter: Text


class SessionFilter(Struct, frozen=True, kw_only=True):
    """A subscription of an MQTT session."""

    filter: str
    qos: int
    durable: str
    """The durable that keeps the subscription's messages; empty if no messages are kept while the
    client is disconnected."""
    waiting: int
    """Number of messages not yet received or acknowledged by the client, on all channels."""


class MqttSessionInfo(Struct, frozen=True, kw_only=True):
    """An MQTT session, connected or not."""

    client_id: str
    user: str
    """The user of the session, as ``user@host``."""
    version: str | None
    """The MQTT version of the client; null while the client is disconnected."""
    ended_us: int | None
    """End of the last connection, in microseconds since 1970; null while the client is
    connected."""
    expires_us: int | None
    """Time at which the session ends unless the client reconnects; null if it does not end, or
    while the client is connected."""
    expiry_s: int | None
    """Seconds that the session survives after its connection ends; null means no limit."""
    in_flight: int
    """Number of messages of QoS 1 and 2 whose acknowledgement by the client is not complete."""
    will_us: int | None
    """Time at which the will is published; null without a will, and while the client is
    connected."""
    filter_count: int
    """Number of subscriptions of the session."""
    filters: tuple[SessionFilter, ...]
    """The first subscriptions of the session."""


class SessionsPage(Struct, frozen=True, kw_only=True):
    """A page of sessions, by client id and user."""

    sessions: tuple[MqttSessionInfo, ...]
    next: str | None
    """The session after which the next page begins; null if this is the last page."""


class ListMqttSessions(Request[SessionsPage], frozen=True):
    """List the MQTT sessions, connected and disconnected ones (SEM M6)."""

    limit: Count
    after: Text = ""


class EndMqttSession(Request[None], frozen=True):
    """End an MQTT session with its connection and its durables. Its will is published as if the
    session had expired."""

    client_id: Text
    user: Text = ""
    """The user of the session; empty if only one session has this client id."""
