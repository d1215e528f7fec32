"""Requests about the realm as a whole."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from penstock_core.api.requests import Request
from penstock_core.vocabulary.counters import Counters


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
    mqtt_channel: str = ""
    """The channel of all topics of MQTT, which the realm makes for itself when it serves MQTT."""


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    """A client's connection, for administrators."""

    id: str
    """Id of the connection, unique until the realm restarts."""
    session: str
    user: str
    """``user@host``."""
    client: str
    """Name and version of the client software, as it says."""
    protocol: str
    """``native`` or ``amqp``."""
    opened_us: int
    idle_ms: int
    """Milliseconds since the client last sent something."""
    subscriptions: int
    requests: int
    """Requests in progress."""
    unsent_bytes: int
    """Bytes that wait because the client does not read them."""
    is_stalled: bool


class ClusterNodeInfo(Struct, frozen=True, kw_only=True):
    """A node of a cluster, as the owner of the realm sees it."""

    node: str
    state: str
    """``owner``, ``stands by``, ``drained``, ``left`` (stopped in order), or ``down``: it has not
    renewed for a lease, or nobody is at its address."""
    version: str
    url: str
    renewed_us: int
    """Time of its clock at its last renewal, in microseconds since 1970; 0: not reported."""
    local_url: str = ""
    """URL of its local channels; empty: it has none."""
    unfit: str = ""
    """Why it could not take the realm over; empty: it could."""


class LocalStoreInfo(Struct, frozen=True, kw_only=True):
    """A channel or queue that one node of a cluster has for itself (SEM N8)."""

    name: str
    kind: str
    node: str
    url: str
    """URL of the node; empty: the node is not known any more."""


class ClusterInfo(Struct, frozen=True, kw_only=True):
    """The cluster that a realm is in; without one, there is no ``node``."""

    node: str = ""
    """The node that owns the realm, and has answered."""
    epoch: int = 0
    """Number of claims of the realm: each takeover and each start increases it."""
    lease_s: float = 0.0
    lease_left_s: float = 0.0
    """Remaining time for which the owner may serve without a renewal."""
    engine_waiting_s: float = 0.0
    """Waiting time of the current append to the engine; 0: none waits."""
    nodes: list[ClusterNodeInfo] = []
    local: list[LocalStoreInfo] = []
    """Local channels and queues of all nodes, by name."""
    local_to: str = ""
    """The node whose local channels this realm has, beside the realm of the whole cluster; it tells
    nothing else of the cluster then."""
    history_us: int = 0
    """When what this realm shows was true, in microseconds since 1970: it is sealed history, shown
    while the cluster has no quorum, and the newest events are not in it (SEM N10); it tells nothing
    else of the cluster then. 0: it is the present."""


class PipelineStep(Struct, frozen=True, kw_only=True):
    name: str
    status: dict[str, Any]
    """The status that its last run wrote: state, at, progress, error, …"""
    state: str
    """``starts``, ``runs``, ``restarts``, ``stopped``, ``done``, ``failed``, or ``broken off``: its
    status says that it runs, but no process does."""
    batch: int | None
    """The last finished micro-batch; null: none has finished."""
    next: dict[str, int]
    """Id of the next event it will read, by channel."""
    lag: dict[str, int | None]
    """Number of ids not yet read, by channel; null: this realm does not have the channel."""


class PipelineInfo(Struct, frozen=True, kw_only=True):
    name: str
    steps: list[PipelineStep]


class DurableRates(Struct, frozen=True, kw_only=True):
    """Counters of a durable."""

    channel: str
    name: str
    outstanding: int
    in_flight: int
    """Delivered and not acknowledged."""
    pending: int
    """Deprecated name of ``in_flight``."""
    redelivered: int
    clients: int
    position: int
    """Id below which all events have been offered or settled."""
    oldest_outstanding_ms: int | None
    delivered: int
    """Deliveries to its clients since the realm started, repeated ones included."""
    acknowledged: int
    """Acknowledged since the realm started; events purged for this durable count, too."""


class ChannelRates(Struct, frozen=True, kw_only=True):
    """Counters of a channel or queue."""

    name: str
    kind: str
    events: int
    bytes: int
    last_event_id: int
    counters: Counters
    delivered: int
    """Deliveries to clients of its durables and to plain subscribers since the realm started.
    Browsing does not count."""
    acknowledged: int
    """Events acknowledged at all of its durables since the realm started."""
    died: int = 0
    """Copies put into its dead event store: an event counts once for each durable that gave it up,
    and once if it left unconsumed. Without such a store: events that left unconsumed."""


class RatesNow(Struct, frozen=True, kw_only=True):
    """The counters at one moment; plot the differences of consecutive ones."""

    at_us: int
    channels: tuple[ChannelRates, ...]
    durables: tuple[DurableRates, ...]
    connections: int
    journal_bytes: int
    memory_bytes: int
    left_out: int = 0
    """Channels that are left out because there are too many."""


class HistoryInfo(Struct, frozen=True, kw_only=True):
    """Figures of the last 24 hours, the oldest first: as many as there have been steps since then,
    or since the realm started. A figure is null where nothing is known."""

    begun_us: int
    """Since when there are figures: they begin anew when the realm starts."""
    first_us: int
    """The end of the first step."""
    step_ms: int
    """Length of a step."""
    is_kept: bool
    """Whether there is room for figures of what was asked for."""
    published: list[float | None]
    """Events in a second; none of a durable."""
    delivered: list[float | None]
    acknowledged: list[float | None]
    outstanding: list[int | None]
    """Events that are not acknowledged at the end of the step, at all durables and queues."""
    delivery_ms: list[float | None]
    """The time that 99 % of the deliveries to durables and queues did not exceed, from the publish
    on; null where nothing was delivered for the first time."""
    sync_ms: list[float | None]
    """The time that 99 % of the syncs of the journal did not exceed; only of the realm."""


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
    """List the pipelines in the folders that the realm was given, with the progress of their
    steps."""


class DescribePipeline(Request[PipelineInfo], frozen=True):
    name: str


class ReadRates(Request[RatesNow], frozen=True):
    """Read the counters of the whole realm, or of one channel or queue, as they are now."""

    channel: str | None = None


class ReadHistory(Request[HistoryInfo], frozen=True):
    """Read what flowed in the last 24 hours in the whole realm, on one channel or queue, or at one
    of its durables."""

    channel: str | None = None
    durable: str | None = None
