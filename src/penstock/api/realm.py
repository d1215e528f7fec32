"""The realm as a whole."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from penstock.api.requests import Request
from penstock.core.vocabulary.counters import Counters


class RealmInfo(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    channels: int
    connections: int
    journal_bytes: int
    memory_bytes: int
    memory_bytes_max: int
    off_heap_bytes: int = 0
    off_heap_bytes_max: int = 0
    paged_bytes: int = 0
    paged_bytes_max: int = 0
    queues: int = 0
    publishing_paused: bool = False


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    """A connection of a client, as an administrator sees it."""

    id: str
    """Unique until the realm restarts."""
    session: str
    user: str
    """``user@host``."""
    client: str
    """Name and version of its software, as it says."""
    protocol: str
    """``native`` or ``amqp``."""
    opened_us: int
    idle_ms: int
    """Since it was last heard."""
    subscriptions: int
    requests: int
    """Being worked on."""
    unsent_bytes: int
    """Bytes that wait because the client does not read them."""
    is_stalled: bool


class PipelineStep(Struct, frozen=True, kw_only=True):
    name: str
    status: dict[str, Any]
    """What its last run has said of itself: state, at, progress, error, …"""
    state: str
    """``starts``, ``runs``, ``restarts``, ``stopped``, ``done``, ``failed``, or ``broken off``: it
    said that it runs, and nobody runs it."""
    batch: int | None
    """The last micro-batch that was done; null: none was."""
    next: dict[str, int]
    """By channel, the id of the next event it will read."""
    lag: dict[str, int | None]
    """By channel, how many ids it is behind; null: this realm has no channel of that name."""


class PipelineInfo(Struct, frozen=True, kw_only=True):
    name: str
    steps: list[PipelineStep]


class DurableRates(Struct, frozen=True, kw_only=True):
    """Counters of a durable."""

    channel: str
    name: str
    outstanding: int
    in_flight: int
    """Delivered, and not acknowledged."""
    pending: int
    """Deprecated name of ``in_flight``."""
    redelivered: int
    clients: int
    position: int
    """Events below it have been offered or settled."""
    oldest_outstanding_ms: int | None
    delivered: int
    """To its clients since the realm started, each time it was delivered again too."""
    acknowledged: int
    """Since the realm started, also events purged for this durable alone."""


class ChannelRates(Struct, frozen=True, kw_only=True):
    """Counters of a channel or queue."""

    name: str
    kind: str
    events: int
    bytes: int
    last_event_id: int
    counters: Counters
    delivered: int
    """To the clients of its durables and to subscribers without one, since the realm started; who
    browses does not count."""
    acknowledged: int
    """At all of its durables, since the realm started."""


class RatesNow(Struct, frozen=True, kw_only=True):
    """Counters at one moment: what a plot needs are differences of two of them."""

    at_us: int
    channels: tuple[ChannelRates, ...]
    durables: tuple[DurableRates, ...]
    connections: int
    journal_bytes: int
    memory_bytes: int
    left_out: int = 0
    """Channels beyond the most that are told of."""


class DescribeRealm(Request[RealmInfo], frozen=True):
    pass


class PausePublishing(Request[None], frozen=True):
    """Refuse publishes and commits of clients, or take them again (SEM X5)."""

    paused: bool


class Ping(Request[None], frozen=True):
    pass


class ListConnections(Request[list[ConnectionInfo]], frozen=True):
    """The connections of clients, the oldest first."""


class EndConnection(Request[None], frozen=True):
    """End a connection; its client may connect again."""

    id: str


class ListPipelines(Request[list[PipelineInfo]], frozen=True):
    """The pipelines whose folders the realm was told of, and how far their steps are."""


class DescribePipeline(Request[PipelineInfo], frozen=True):
    name: str


class ReadRates(Request[RatesNow], frozen=True):
    """The counters of everything as they are now, or of one channel or queue."""

    channel: str | None = None
