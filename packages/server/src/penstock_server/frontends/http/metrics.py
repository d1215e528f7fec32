"""Metrics for Prometheus, computed from the realm's state at each scrape.

No counters exist for metrics alone. So metrics agree with ``penstock channel show``, and a realm
without scrapes has no cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock_core.channel.conservation import MEANINGS
from penstock_core.vocabulary.errors import Unavailable
from penstock_core.vocabulary.ports import KeepsCopies
from penstock_core.vocabulary.timings import Timings
from penstock_server.frontends.front_end import front_ends
from penstock_server.frontends.http.node_metrics import (
    incidents_metric,
    node_metrics,
    relayed_registry,
)
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.subscriptions.realm_view import DurableView

if TYPE_CHECKING:
    from penstock_server.frontends.native.listener import NativeListener

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_STORE: Final = ("name", "kind")
_DURABLE: Final = ("channel", "durable")
_CONNECTION: Final = ("connection", "user")
_CAUSES_OF_ONE_DURABLE: Final = ("redelivery_limit", "rejected")
"""Causes of death that concern a single durable."""
_REMOVAL_CAUSES: Final = tuple(name for name in MEANINGS if name not in ("live", "overdue"))
"""Causes for which events leave a store."""


def registry(
    realm: RunningRealm, native: NativeListener, views: Sized, named_max: int
) -> CollectorRegistry:
    """Return a registry with the metrics of this realm only."""
    # The library's default registry is not used, because it would mix the metrics of several realms
    # in one process.
    result = CollectorRegistry(auto_describe=False)
    result.register(RealmCollector(realm, native, views, named_max=named_max))
    ProcessCollector(registry=result)
    return result


def relayed_exposition(native: NativeListener, name: str) -> bytes:
    """Return the metrics of another cluster node, which relayed the scrape to this one.

    Raises ``Unavailable`` if the node is not known yet.
    """
    for node in native.realm.cluster().nodes:
        if node.node == name:
            return generate_latest(relayed_registry(node, native.figures_of(name)))
    raise Unavailable(f"the owner of the realm does not know node {name} yet; try again")


def exposition(metrics: CollectorRegistry) -> bytes:
    """Return the metrics as text for a scrape."""
    return generate_latest(metrics)


class RealmCollector(Collector):
    """Collects all metrics, with separate metrics for at most ``named_max`` channels and queues,
    as many durables, and as many connections."""

    def __init__(
        self, realm: RunningRealm, native: NativeListener, views: Sized, named_max: int
    ) -> None:
        self._realm = realm
        self._views = views
        self._native = native
        self._named_max = named_max

    def describe(self) -> list[Metric]:
        """Return nothing, because the names of metrics are known only at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_realm()
        yield from self._collect_stores()
        yield from self._collect_dead()
        yield from self._collect_durables()
        yield from self._collect_connections()
        yield from self._collect_journal()
        yield from self._collect_machine()
        yield from self._collect_clients()
        for front_end in front_ends().values():
            yield from front_end.metrics(self._realm)

    def _collect_realm(self) -> Iterator[Metric]:
        realm = self._realm
        view, limits = realm.view, realm.limits.memory
        info = {"name": realm.name, "version": self._native.version, "identity": realm.identity}
        yield InfoMetricFamily("penstock_realm", "The realm.", info)
        failed = realm.has_ended
        yield _gauge("realm_up", "1 while the realm can store events.", 0 if failed else 1)
        yield incidents_metric(realm.incidents.counts(), self._incidents_of_node())
        yield _gauge("realm_publishing_paused", "1 while clients may not publish.", view.is_paused)
        yield _gauge("connections", "Native connections.", len(realm.connections))
        yield _counter("connections_opened", "Connections opened.", realm.connections.opened)
        closed = realm.connections.opened - len(realm.connections)
        yield _counter("connections_closed", "Connections closed.", closed)
        yield from self._collect_relays()
        yield from self._collect_cluster()
        yield from self._collect_outboxes()
        yield _gauge("http_views", "Open live views.", len(self._views))
        yield _gauge("http_leases", "Open leases of HTTP consumers.", len(realm.leases))
        yield _gauge("http_leased_events", "Events under these leases.", realm.leases.events)
        logins = len(realm.access.logins)
        yield _gauge("console_sessions", "Open console sessions.", logins)
        yield _gauge("channels", "Channels.", view.count("channel"))
        yield _gauge("queues", "Queues.", view.count("queue"))
        yield _gauge(
            "publish_waiting_bytes",
            "Bytes of publishes that are not stored yet.",
            self._native.pending_bytes,
        )
        yield _gauge(
            "publish_congested", "1 while publishers must wait.", self._native.is_congested
        )
        memory = GaugeMetricFamily(
            "penstock_memory_bytes",
            "Bytes of events in memory or pages, and of publish keys and states (index), by place.",
            labels=["home"],
        )
        most = GaugeMetricFamily(
            "penstock_memory_limit_bytes",
            "Limit of these bytes; 0 is no limit.",
            labels=["home"],
        )
        for home, used, limit in (
            ("heap", view.memory_bytes, limits.heap_bytes_max),
            ("off_heap", realm.placing.off_heap_bytes, limits.off_heap_bytes_max),
            ("pages", view.paged_bytes, limits.paged_bytes_max),
            ("index", view.index_bytes, limits.index_bytes_max),
        ):
            memory.add_metric([home], used)
            most.add_metric([home], limit)
        yield memory
        yield most

    def _collect_stores(self) -> Iterator[Metric]:
        now_us = self._realm.clock.now_us()
        labels = list(_STORE)
        events = GaugeMetricFamily("penstock_events", "Stored events.", labels=labels)
        size = GaugeMetricFamily("penstock_events_bytes", "Bytes of stored events.", labels=labels)
        oldest = GaugeMetricFamily(
            "penstock_oldest_event_seconds", "Age of the oldest stored event.", labels=labels
        )
        subscribers = GaugeMetricFamily(
            "penstock_subscribers", "Subscriptions without a durable.", labels=labels
        )
        published = CounterMetricFamily("penstock_published", "Events published.", labels=labels)
        departed = CounterMetricFamily(
            "penstock_left", "Events that left the store, by cause.", labels=[*labels, "cause"]
        )
        redelivered = CounterMetricFamily(
            "penstock_redelivered", "Redeliveries of events.", labels=labels
        )
        delivered = CounterMetricFamily(
            "penstock_delivered", "Deliveries since the realm started.", labels=labels
        )
        acknowledged = CounterMetricFamily(
            "penstock_acknowledged", "Acknowledgements since the realm started.", labels=labels
        )
        files = GaugeMetricFamily("penstock_segment_files", "Segment files.", labels=labels)
        unnamed = 0
        for index, store in enumerate(self._realm.view.stores()):
            if index >= self._named_max:
                unnamed += 1
                continue
            named = [store.name, store.kind]
            events.add_metric(named, store.events)
            size.add_metric(named, store.bytes)
            oldest.add_metric(named, (store.oldest_ms(now_us) or 0) / 1_000)
            subscribers.add_metric(named, store.subscribers)
            published.add_metric(named, store.counters.published)
            redelivered.add_metric(named, store.counters.redelivered)
            sent, settled = store.delivered_and_acknowledged
            delivered.add_metric(named, sent)
            acknowledged.add_metric(named, settled)
            files.add_metric(named, store.files)
            # All causes start at zero, so that the first removals show as an increase.
            for cause in _REMOVAL_CAUSES:
                departed.add_metric([*named, cause], getattr(store.counters, cause))
        yield from (events, size, oldest, subscribers, published, departed, redelivered)
        yield from (delivered, acknowledged, files)
        yield _gauge("unnamed_stores", "Channels and queues without separate metrics.", unnamed)
        temporary = list(self._realm.view.temporary_stores())
        yield _gauge(
            "temporary_stores", "Temporary queues and topics, and reply queues.", len(temporary)
        )
        yield _gauge(
            "temporary_events",
            "Events in temporary queues and topics.",
            sum(store.events for store in temporary),
        )
        yield _gauge(
            "temporary_events_bytes",
            "Bytes of events in temporary queues and topics.",
            sum(store.bytes for store in temporary),
        )

    def _collect_dead(self) -> Iterator[Metric]:
        """Yield counters of dead events. They start at zero for every cause that is possible, so
        that rates are correct from the first dead event. Durables beyond the limit are omitted."""
        dead = CounterMetricFamily(
            "penstock_dead",
            "Events copied to dead event stores.",
            labels=[*_STORE, "durable", "cause"],
        )
        durables_by_store: dict[str, list[str]] = {}
        for name, durable in self._durables_with_metrics():
            durables_by_store.setdefault(durable.store_name, []).append(name)
        for index, store in enumerate(self._realm.view.stores()):
            if index >= self._named_max:
                break
            names = durables_by_store.get(store.name, [])
            zeros = dict.fromkeys([("", "expired"), ("", "evicted")], 0)
            zeros |= {(name, cause): 0 for name in names for cause in _CAUSES_OF_ONE_DURABLE}
            died = {key: n for key, n in store.dead_copies.items() if not key[0] or key[0] in names}
            counts = {**(zeros if store.moves_dead else {}), **died}
            for (durable_name, cause), copies in sorted(counts.items()):
                dead.add_metric([store.name, store.kind, durable_name, cause], copies)
        yield dead

    def _collect_durables(self) -> Iterator[Metric]:
        now_us = self._realm.clock.now_us()
        labels = list(_DURABLE)
        outstanding = GaugeMetricFamily(
            "penstock_durable_outstanding_events", "Events not yet acknowledged.", labels=labels
        )
        in_flight = GaugeMetricFamily(
            "penstock_durable_in_flight_events",
            "Events delivered and not yet acknowledged.",
            labels=labels,
        )
        pending = GaugeMetricFamily(
            "penstock_durable_pending_events",
            "Deprecated: use penstock_durable_in_flight_events.",
            labels=labels,
        )
        waiting = GaugeMetricFamily(
            "penstock_durable_waiting_events",
            "Rolled-back events that wait before they are redelivered.",
            labels=labels,
        )
        redelivered = GaugeMetricFamily(
            "penstock_durable_redelivered_events",
            "Outstanding events that have already been delivered.",
            labels=labels,
        )
        oldest = GaugeMetricFamily(
            "penstock_durable_oldest_seconds", "Age of the oldest outstanding event.", labels=labels
        )
        clients = GaugeMetricFamily(
            "penstock_durable_clients", "Subscriptions of the durable.", labels=labels
        )
        delivered = CounterMetricFamily(
            "penstock_durable_delivered", "Deliveries since the realm started.", labels=labels
        )
        acknowledged = CounterMetricFamily(
            "penstock_durable_acknowledged",
            "Acknowledgements since the realm started.",
            labels=labels,
        )
        latency = HistogramMetricFamily(
            "penstock_durable_delivery_seconds",
            "Time from the publish of an event to its first delivery.",
            labels=labels,
        )
        for name, durable in self._durables_with_metrics():
            info, (sent, settled) = durable.info(now_us), durable.delivered_and_acknowledged
            if (
                timings := self._realm.dispatch.latencies.histogram_of(durable.identity)
            ) is not None:
                buckets, total_s = _histogram(timings)
                latency.add_metric([info.channel, name], buckets, total_s)
            named = [info.channel, name]
            outstanding.add_metric(named, info.outstanding)
            in_flight.add_metric(named, info.in_flight)
            pending.add_metric(named, info.pending)
            waiting.add_metric(named, info.waiting)
            redelivered.add_metric(named, info.redelivered)
            oldest.add_metric(named, (info.oldest_outstanding_ms or 0) / 1_000)
            clients.add_metric(named, len(info.clients))
            delivered.add_metric(named, sent)
            acknowledged.add_metric(named, settled)
        yield from (
            outstanding,
            in_flight,
            pending,
            waiting,
            redelivered,
            oldest,
            clients,
            delivered,
            acknowledged,
            latency,
        )

    def _durables_with_metrics(self) -> Iterator[tuple[str, DurableView]]:
        """Yield the durables with separate metrics; the readers of a queue are a durable named
        ``""``."""
        remaining = self._named_max
        for index, store in enumerate(self._realm.view.stores()):
            if index >= self._named_max:
                return
            for name, durable in sorted(store.durables, key=itemgetter(0)):
                if remaining > 0:
                    remaining -= 1
                    yield name, durable

    def _collect_connections(self) -> Iterator[Metric]:
        labels = list(_CONNECTION)
        unsent = GaugeMetricFamily(
            "penstock_connection_unsent_bytes",
            "Bytes that wait because the client does not read them.",
            labels=labels,
        )
        subscriptions = GaugeMetricFamily(
            "penstock_connection_subscriptions", "Subscriptions of a connection.", labels=labels
        )
        for info in self._realm.connections.states()[: self._named_max]:
            unsent.add_metric([str(info.number), info.user], info.unsent_bytes)
            subscriptions.add_metric([str(info.number), info.user], info.subscriptions)
        yield from (unsent, subscriptions)

    def _incidents_of_node(self) -> dict[str, int]:
        """Return the incidents of the node itself, without those of the realm that it serves."""
        figures = self._native.figures_of(self._realm.cluster().node)
        return {} if figures is None else dict(figures.incidents)

    def _collect_relays(self) -> Iterator[Metric]:
        """Yield the connections that other cluster nodes relay to this one."""
        if (gate := self._native.gate) is None:
            return
        relayed = GaugeMetricFamily(
            "penstock_relayed_connections",
            "Connections that other cluster nodes relay to this one, by node.",
            labels=["node"],
        )
        for node, count in sorted(gate.open_by_node().items()):
            relayed.add_metric([node], count)
        yield relayed

    def _collect_cluster(self) -> Iterator[Metric]:
        """Yield the metrics of the cluster, as the owner of the realm sees it."""
        cluster = self._realm.cluster()
        if not cluster.node:
            return
        up = GaugeMetricFamily(
            "penstock_node_up",
            "1 while the cluster node renews its lease, 0 if it is down or has left.",
            labels=["node"],
        )
        owner = GaugeMetricFamily(
            "penstock_shard_owner", "1 for the node that owns the realm.", labels=["node"]
        )
        for node in cluster.nodes:
            up.add_metric([node.node], node.state not in ("down", "left"))
            owner.add_metric([node.node], node.state == "owner")
            if node.node == cluster.node:
                yield from node_metrics(node, self._native.figures_of(node.node))
        yield from (up, owner)
        yield _gauge("shard_epoch", "Epoch of the realm: how often it was claimed.", cluster.epoch)
        yield _gauge(
            "lease_left_seconds",
            "Time for which the owner may serve without renewing its lease.",
            cluster.lease_left_s,
        )
        yield _gauge(
            "engine_waiting_seconds",
            "Time that the current append has waited for the engine; 0 without an append.",
            cluster.engine_waiting_s,
        )
        yield from self._collect_engine()
        yield from self._collect_owner()

    def _collect_outboxes(self) -> Iterator[Metric]:
        """Yield the backlog of joins from a node's local channels to the cluster (SEM N9)."""
        events, size, age = (
            GaugeMetricFamily(f"penstock_outbox_{name}", text, labels=("from", "to"))
            for name, text in (
                ("events", "Events copied for the cluster that it has not stored yet."),
                ("bytes", "Approximate bytes of these events."),
                ("age_seconds", "Age of the oldest of these events."),
            )
        )
        now_us = self._realm.clock.now_us()
        for outbox in self._realm.joins.outboxes.now()[: self._named_max]:
            labels = (outbox.source, outbox.target)
            waited_us = 0 if outbox.oldest_us is None else max(0, now_us - outbox.oldest_us)
            events.add_metric(labels, outbox.waiting)
            size.add_metric(labels, outbox.waiting_bytes)
            age.add_metric(labels, waited_us / 1_000_000)
        yield from (events, size, age)

    def _collect_engine(self) -> Iterator[Metric]:
        """Yield the state of the engine's servers, as the owner sees it."""
        if (counts := self._realm.tenures) is None:
            return
        leader = GaugeMetricFamily(
            "penstock_engine_leader", "1 for the server that takes appends.", labels=["server"]
        )
        if counts.leader:
            leader.add_metric([counts.leader], 1)
        yield leader
        yield _counter(
            "engine_damaged", "Damaged data on the engine's servers.", len(counts.damages)
        )
        majority = GaugeMetricFamily(
            "penstock_engine_room_bytes",
            "Bytes that a majority of the engine's servers may still store.",
        )
        if counts.room is not None:
            majority.add_metric([], counts.room)
        servers = GaugeMetricFamily(
            "penstock_engine_server_room_bytes",
            "Bytes that a server of the engine may still store.",
            labels=["server"],
        )
        for server, free_bytes in sorted(counts.rooms.items()):
            servers.add_metric([server], free_bytes)
        yield from (majority, servers)

    def _collect_owner(self) -> Iterator[Metric]:
        """Yield the answers that the owner has withheld, the age of its unsealed data, its appends
        with an unknown outcome, and its reads of segment files."""
        withheld = CounterMetricFamily(
            "penstock_withheld",
            "Answers and deliveries that had to wait for the lease, by kind.",
            labels=["what"],
        )
        for what, count in self._realm.dispatch.withheld.items():
            withheld.add_metric([what], count)
        yield withheld
        # A realm without a cluster does not load this module.
        from penstock_core.vocabulary.node_figures import SHARD

        unsealed = GaugeMetricFamily(
            "penstock_unsealed_age_seconds",
            "Age of the oldest data that no snapshot includes; 0 if the newest snapshot has all.",
            labels=["shard"],
        )
        unsealed.add_metric([f"{SHARD}"], self._realm.unsealed_s())
        yield unsealed
        if (ambiguous := self._realm.journal_info.ambiguous) is not None:
            appends = CounterMetricFamily(
                "penstock_appends_ambiguous",
                "Appends without an answer at first, by their outcome.",
                labels=["became"],
            )
            for outcome, count in ambiguous.items():
                appends.add_metric([outcome], count)
            yield appends
        if isinstance(self._realm.blobs, KeepsCopies):
            copies = self._realm.blobs.copies
            yield _gauge("blob_cache_bytes", "Bytes of segments on the node's disk.", copies.bytes)
            yield _counter("blob_cache_hits", "Reads of segments from that disk.", copies.hits)
            yield _counter("blob_cache_misses", "Reads that fetched a segment.", copies.misses)

    def _collect_journal(self) -> Iterator[Metric]:
        info = self._realm.journal_info
        yield _gauge("journal_bytes", "Bytes of the journal.", info.size)
        yield _gauge("journal_blocks", "Blocks of the journal.", info.tail - info.floor)
        for name, text, timings in (
            ("journal_sync", "Time to write a block to disk.", info.syncs),
            ("engine_append", "Time for the engine to store a block.", info.appends),
        ):
            if timings is not None:
                buckets, total_s = _histogram(timings)
                yield HistogramMetricFamily(
                    f"penstock_{name}_seconds", text, buckets=buckets, sum_value=total_s
                )

    def _collect_machine(self) -> Iterator[Metric]:
        """Yield figures that need an operator's attention in time: disk space, age of the backup,
        end of the certificate."""
        if self._realm.disk_space is not None:
            free, size = self._realm.disk_space()
            yield _gauge("disk_free_bytes", "Free bytes on the disk of the data directory.", free)
            yield _gauge("disk_bytes", "Size of that disk in bytes.", size)
        if self._realm.backups.capture is not None:
            age_us = self._realm.clock.now_us() - self._realm.backups.newest_us
            text = "Time since the newest backup, or since the start of the realm without one."
            yield _gauge("backup_age_seconds", text, max(0, age_us) / 1_000_000)
        if self._native.tls is not None:
            ends_s = self._native.tls.expires_us / 1_000_000
            yield _gauge(
                "tls_certificate_end_seconds", "Unix time at which the certificate expires.", ends_s
            )

    def _collect_clients(self) -> Iterator[Metric]:
        """Yield the traffic of clients, and the errors they received."""
        connections = self._realm.connections
        received = CounterMetricFamily(
            "penstock_received_bytes", "Bytes received from clients.", labels=["protocol"]
        )
        sent = CounterMetricFamily(
            "penstock_sent_bytes", "Bytes sent to clients.", labels=["protocol"]
        )
        for protocol, traffic in connections.traffic.items():
            received.add_metric([protocol], traffic.received_bytes)
            sent.add_metric([protocol], traffic.sent_bytes)
        refused = CounterMetricFamily(
            "penstock_refused", "Errors sent to clients, by code.", labels=["code"]
        )
        for code, count in sorted(connections.refusals.items()):
            refused.add_metric([code], count)
        yield from (received, sent, refused)


def _histogram(timings: Timings) -> tuple[list[tuple[str, int]], float]:
    """Return the buckets of a histogram with bounds in seconds, and the sum of its values."""
    names = [*(f"{bound / 1_000_000:g}" for bound in timings.bounds_us), "+Inf"]
    return list(zip(names, timings.cumulative(), strict=True)), timings.total_us / 1_000_000


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_{name}", text, value=float(value))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_{name}", text, value=float(value))
