"""Requests about MQTT topics: retained messages by level and by filter, and sessions.

An event in an answer is one of ``penstock_core.columns.events.event``, which is above the API.
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


class TopicsOfChannel(Struct, frozen=True, kw_only=True):
    """A channel with topics: the one of all topics, or one that has its own (SEM M12)."""

    name: str
    topics: tuple[str, ...]
    """The templates of its own topics; empty: it has all that no other has."""
    selector: str | None
    """The selector for the events that match the filter; null: the filter matches none of its
    topics."""


class MqttInfo(Struct, frozen=True, kw_only=True):
    """What there is of MQTT, as far as the client may read it."""

    channel: str | None
    """The channel of all topics; null: the realm does not serve MQTT."""
    retained: str | None
    """The channel through which retained messages are read; null: the realm does not serve MQTT."""
    channels: tuple[TopicsOfChannel, ...] = ()
    """The channel of all topics, and those that have topics of their own, by name."""


class DescribeMqtt(Request[MqttInfo], frozen=True):
    """Whether the realm serves MQTT, which channels have topics, and how the events of a topic
    filter are found in each."""

    filter: Text = "#"


class TopicLevel(Struct, frozen=True, kw_only=True):
    topic: str
    """The topic as far as this level."""
    name: str
    """The level by itself; it may be empty."""
    retained: int
    """Topics at this level and below for which a message is retained."""
    event_id: int | None
    """The event that is retained for this topic itself; null: none."""
    is_open: bool
    """Whether there are topics below."""


class TopicLevels(Struct, frozen=True, kw_only=True):
    levels: tuple[TopicLevel, ...]
    next: str | None
    """The topic after which the next page begins; null: this is the last page."""


class ListTopics(Request[TopicLevels], frozen=True):
    """The topics for which something is retained, level by level, with how many there are: those
    below a prefix, each before what is below it, by name (SEM M5). The work goes by the topics
    below the prefix."""

    channel: ChannelNumber
    limit: Count
    prefix: Text | None = None
    """The topic below which to look; null: at the first level."""
    depth: Depth = 1
    """Levels that are told."""
    after: Text | None = None
    """Only topics behind this one."""


class RetainedEvents(Struct, frozen=True, kw_only=True):
    """A page of what is retained, the oldest first."""

    events: Sequence[Any]
    next_id: int | None
    """First id of the next page; null: this is the last page."""


class ReadRetained(Request[RetainedEvents], frozen=True):
    """What is retained for the topics that a filter takes, a page of it; the work goes by how many
    topics the filter takes (SEM M5)."""

    channel: ChannelNumber
    filter: Text
    limit: Count
    first_id: EventId = 0


class OpenRetained(Request[ChannelOpened], frozen=True):
    """Open the internal store of retained messages to read it (SEM A6), through the channel of all
    topics. It needs the right to read each channel that the messages may
    have been published to."""

    channel: ChannelNumber


class ForgetRetained(Request[int], frozen=True):
    """Forget what is retained for the topics that a filter takes; gives how many topics. Clients
    that are connected are not told."""

    channel: ChannelNumber
    filter: Text


class SessionFilter(Struct, frozen=True, kw_only=True):
    """A subscription of a session of MQTT."""

    filter: str
    qos: int
    durable: str
    """The durable that has its messages; empty: nothing waits for it while the client is away."""
    waiting: int
    """Messages that its client does not have yet, or has not acknowledged, on all channels."""


class MqttSessionInfo(Struct, frozen=True, kw_only=True):
    """A session of MQTT, with a connection or without."""

    client_id: str
    user: str
    """``user@host``."""
    version: str | None
    """The version of MQTT that its client speaks; null: it is away."""
    ended_us: int | None
    """End of its connection, in microseconds since 1970; null: it is connected."""
    expires_us: int | None
    """Time at which the session ends unless its client reconnects; null: never, or it is
    connected."""
    expiry_s: int | None
    """Seconds that the session outlives its connection; null: no limit."""
    in_flight: int
    """Messages of QoS 1 and 2 that its client has not acknowledged to the end."""
    will_us: int | None
    """Time at which its will is published; null: it has no will, or is connected."""
    filter_count: int
    """Number of its subscriptions."""
    filters: tuple[SessionFilter, ...]
    """The first of its subscriptions."""


class SessionsPage(Struct, frozen=True, kw_only=True):
    """A page of sessions, by client id and user."""

    sessions: tuple[MqttSessionInfo, ...]
    next: str | None
    """The session after which the next page begins; null: this is the last page."""


class ListMqttSessions(Request[SessionsPage], frozen=True):
    """The sessions of MQTT, those with a connection and those that outlive it (SEM M6)."""

    limit: Count
    after: Text = ""


class EndMqttSession(Request[None], frozen=True):
    """End a session of MQTT with its connection and its durables. Its will is published as at the
    end of its expiry."""

    client_id: Text
    user: Text = ""
    """The user of the session; empty: the only session with this client id."""
