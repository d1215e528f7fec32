"""Requests about the realm as a whole."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from penstock_core.api.requests import Request
from penstock_core.display import html_info, safe_html
from penstock_core.vocabulary.counters import Counters


class RealmInfo(Struct, frozen=True, kw_only=True):
    """The description of a realm."""

    name: str
    version: str
    """Version of Penstock that the realm runs."""
    channels: int
    """Number of channels."""
    connections: int
    """Number of connections of clients."""
    journal_bytes: int
    """Size of the journal."""
    memory_bytes: int
    """Bytes of events that are kept in memory only."""
    memory_bytes_max: int
    """Limit of ``memory_bytes``."""
    off_heap_bytes: int = 0
    """Bytes of events on off-heap channels."""
    off_heap_bytes_max: int = 0
    """Limit of ``off_heap_bytes``."""
    paged_bytes: int = 0
    """Bytes of the page files of paged channels."""
    paged_bytes_max: int = 0
    """Limit of ``paged_bytes``."""
    queues: int = 0
    """Number of queues."""
    publishing_paused: bool = False
    mqtt_channel: str = ""
    """The channel of all MQTT topics, which the realm creates when it serves MQTT."""

    @safe_html
    def _repr_html_(self) -> str:
        return html_info(self)


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    """A client's connection, for administrators."""

    id: str
    """Id of the connection, unique until the realm restarts."""
    session: str
    user: str
    """The signed-in user, as ``user@host``."""
    client: str
    """Name and version of the client software, as reported by the client."""
    protocol: str
    """``native`` or ``amqp``."""
    opened_us: int
    idle_ms: int
    """Milliseconds since the client last sent bytes."""
    subscriptions: int
    """Number of open subscriptions."""
    requests: int
    """Number of requests in progress."""
    unsent_bytes: int
    """Bytes that wait because the client does not read them."""
    is_stalled: bool
    """Whether no events are sent now, because too many bytes wait."""


class ClusterNodeInfo(Struct, frozen=True, kw_only=True):
    """A node of a cluster, as the owner of the realm sees it."""

    node: str
    state: str
    """``owner``, ``stands by``, ``drained``, ``left`` (shut down cleanly), or ``down``: the node
    has not renewed its lease in time, or its address does not answer."""
    version: str
    url: str
    renewed_us: int
    """Time of the node's latest lease renewal, by the node's clock, in microseconds since 1970; 0
    if it was not reported."""
    local_url: str = ""
    """URL of the node's local channels; empty if it has none."""
    unfit: str = ""
    """Reason why this node could not take over the realm; empty if it could."""


class LocalStoreInfo(Struct, frozen=True, kw_only=True):
    """A local channel or queue of one node of a cluster (SEM N8)."""

    name: str
    kind: str
    node: str
    url: str
    """URL of the node; empty if the node is no longer known."""


class ClusterInfo(Struct, frozen=True, kw_only=True):
    """The cluster that a realm belongs to; without a cluster, ``node`` is empty."""

    node: str = ""
    """The node that owns the realm; it has answered the request."""
    epoch: int = 0
    """Number of claims of the realm: each takeover and each start increases it."""
    lease_s: float = 0.0
    lease_left_s: float = 0.0
    """Remaining time until the owner must renew its ownership or stop serving, in seconds."""
    engine_waiting_s: float = 0.0
    """Waiting time of the current append to the engine, in seconds; 0 if no append waits."""
    nodes: list[ClusterNodeInfo] = []
    local: list[LocalStoreInfo] = []
    """Local channels and queues of all nodes, by name."""
    local_to: str = ""
    """Name of the node whose local channels this realm consists of; the other fields are then
    empty. Empty for other realms."""
    history_us: int = 0
    """Time of the sealed history that this realm shows because the cluster has no quorum, in
    microseconds since 1970. Newer events are missing, and the other fields are empty (SEM N10). 0
    if the realm shows the present."""


class PipelineStep(Struct, frozen=True, kw_only=True):
    """The progress of one step of a pipeline."""

    name: str
    status: dict[str, Any]
    """The status that the step's last run wrote: state, at, progress, error, …"""
    state: str
    """``starts``, ``runs``, ``restarts``, ``stopped``, ``done``, ``failed``, or ``broken off``: the
    status says that the step runs, but no process runs it."""
    batch: int | None
    """Number of the last finished micro-batch; null if none has finished."""
    next: dict[str, int]
    """Id of the next event that the step will read, by channel."""
    lag: dict[str, int | None]
    """Number of ids not yet read, by channel; null if this realm does not have the channel."""


class PipelineInfo(Struct, frozen=True, kw_only=True):
    """A pipeline with the progress of its steps."""

    name: str
    steps: list[PipelineStep]


class DurableRates(Struct, frozen=True, kw_only=True):
    """Counters of a durable at one moment. The difference between two readings, divided by the time
    between them, is a rate."""

    channel: str
    name: str
    outstanding: int
    """Number of events that are not acknowledged."""
    in_flight: int
    """Number of events delivered and not acknowledged."""
    pending: int
    """Deprecated name of ``in_flight``."""
    redelivered: int
    """Number of outstanding events that have already been delivered."""
    clients: int
    """Number of attached clients."""
    position: int
    """Id below which all events have been offered or settled."""
    oldest_outstanding_ms: int | None
    """Age of the oldest outstanding event in milliseconds; None if no event is outstanding."""
    delivered: int
    """Number of deliveries to the durable's clients since the realm started, including repeated
    ones."""
    acknowledged: int
    """Number of events acknowledged since the realm started, including those purged for this
    durable."""


class ChannelRates(Struct, frozen=True, kw_only=True):
    """Counters of a channel or queue at one moment. The difference between two readings, divided by
    the time between them, is a rate."""

    name: str
    kind: str
    events: int
    bytes: int
    last_event_id: int
    counters: Counters
    delivered: int
    """Number of deliveries to clients of the store's durables and to plain subscribers since the
    realm started. Browsing does not count."""
    acknowledged: int
    """Number of events acknowledged at all durables of the store since the realm started."""
    died: int = 0
    """Number of copies moved to the dead event store of the channel or queue: an event counts once
    for each durable that has buried it, and once if it left unconsumed. If the store has no dead
    event store, the number of events that left unconsumed."""


class RatesNow(Struct, frozen=True, kw_only=True):
    """All counters of a realm at one moment. The difference between two readings, divided by the
    time between them, is a rate."""

    at_us: int
    """Time of the reading, in microseconds since 1970."""
    channels: tuple[ChannelRates, ...]
    durables: tuple[DurableRates, ...]
    connections: int
    journal_bytes: int
    memory_bytes: int
    left_out: int = 0
    """Number of channels that are left out because the realm has too many."""


class HistoryInfo(Struct, frozen=True, kw_only=True):
    """Figures of the last 24 hours, oldest first, one figure for each step. They begin with the
    start of the realm if that is later. null stands for an unknown figure."""

    begun_us: int
    """Time of the first figure, in microseconds since 1970. A restart of the realm resets the
    figures."""
    first_us: int
    """The end of the first step."""
    step_ms: int
    """Length of a step, in milliseconds."""
    is_kept: bool
    """Whether the realm keeps figures of the requested channel or durable; it keeps them for a
    limited number."""
    published: list[float | None]
    """Published events per second; empty for a durable."""
    delivered: list[float | None]
    """Delivered events per second."""
    acknowledged: list[float | None]
    """Acknowledged events per second."""
    outstanding: list[int | None]
    """Number of events that are not acknowledged at the end of the step, at all durables and
    queues."""
    delivery_ms: list[float | None]
    """99th percentile of the time from publish to first delivery at durables and queues, in
    milliseconds; null in steps without first deliveries."""
    sync_ms: list[float | None]
    """99th percentile of the duration of journal syncs, in milliseconds; only for the whole
    realm."""


class DescribeRealm(Request[RealmInfo], frozen=True):
    pass


class PausePublishing(Request[None], frozen=True):
    """Pause publishing, so that publishes and commits of clients are refused, or resume it (SEM
    X5)."""

    paused: bool


class Ping(Request[None], frozen=True):
    pass


class ListConnections(Request[list[ConnectionInfo]], frozen=True):
    """List the connections of clients, oldest first."""


class DescribeCluster(Request[ClusterInfo], frozen=True):
    """Show the cluster that the realm is in: its nodes, and which of them owns the realm."""


class EndConnection(Request[None], frozen=True):
    """End a connection; its client may connect again."""

    id: str


class ListPipelines(Request[list[PipelineInfo]], frozen=True):
    """List the pipelines in the folders that the realm is configured with, and the progress of
    their steps."""


class DescribePipeline(Request[PipelineInfo], frozen=True):
    name: str


class ReadRates(Request[RatesNow], frozen=True):
    """Read the counters of the whole realm, or of one channel or queue, as they are now."""

    channel: str | None = None


class ReadHistory(Request[HistoryInfo], frozen=True):
    """Read the figures of the last 24 hours: of the whole realm, of one channel or queue, or of one
    of its durables."""

    channel: str | None = None
    durable: str | None = None
