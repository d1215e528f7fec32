"""Metrics for Prometheus, read from the realm's state at each scrape.

There are no counters for metrics alone, so they agree with ``penstock channel show``, and a realm
that nobody scrapes pays nothing.
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
_FOR_ONE: Final = ("redelivery_limit", "rejected")
"""Causes of death that concern one durable."""
_COUNTED: Final = tuple(name for name in MEANINGS if name not in ("live", "overdue"))


def registry(
    realm: RunningRealm, native: NativeListener, views: Sized, named_max: int
) -> CollectorRegistry:
    """A registry with the metrics of this realm only."""
    made = CollectorRegistry(auto_describe=False)
    made.register(RealmCollector(realm, native, views, named_max=named_max))
    ProcessCollector(registry=made)
    return made


def relayed_exposition(native: NativeListener, name: str) -> bytes:
    """The text of a scrape that another node of the cluster relays: that node's own metrics.
    Raises ``Unavailable`` for a node that is not known yet."""
    for each in native.realm.cluster().nodes:
        if each.node == name:
            return generate_latest(relayed_registry(each, native.figures_of(name)))
    raise Unavailable(f"the owner of the realm does not know node {name} yet; try again")


def exposition(metrics: CollectorRegistry) -> bytes:
    """The text of a scrape."""
    return generate_latest(metrics)


class RealmCollector(Collector):
    """All metrics, with names for at most ``named_max`` channels and queues, as many durables, and
    as many connections."""

    def __init__(
        self, realm: RunningRealm, native: NativeListener, views: Sized, named_max: int
    ) -> None:
        self._realm = realm
        self._views = views
        self._native = native
        self._named_max = named_max

    def describe(self) -> list[Metric]:
        """Nothing: the names of metrics are known only at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._of_realm()
        yield from self._of_stores()
        yield from self._of_dead()
        yield from self._of_durables()
        yield from self._of_connections()
        yield from self._of_journal()
        yield from self._of_machine()
        yield from self._of_clients()
        for front_end in front_ends().values():
            yield from front_end.metrics(self._realm)

    def _of_realm(self) -> Iterator[Metric]:
        realm = self._realm
        view, limits = realm.view, realm.limits.memory
        info = {"name": realm.name, "version": self._native.version, "identity": realm.identity}
        yield InfoMetricFamily("penstock_realm", "The realm.", info)
        failed = realm.has_ended
        yield _gauge("realm_up", "1 while the realm stores what it is given.", 0 if failed else 1)
        yield incidents_metric(realm.incidents.counts(), self._of_node())
        yield _gauge("realm_publishing_paused", "1 while clients may not publish.", view.is_paused)
        yield _gauge("connections", "Native connections.", len(realm.connections))
        yield _counter("connections_opened", "Connections opened.", realm.connections.opened)
        gone = realm.connections.opened - len(realm.connections)
        yield _counter("connections_closed", "Connections that have ended.", gone)
        yield from self._of_relays()
        yield from self._of_cluster()
        yield from self._of_outboxes()
        yield _gauge("http_views", "Live views that are open.", len(self._views))
        yield _gauge(
            "http_leases", "Leases of HTTP consumers that have not ended.", len(realm.leases)
        )
        yield _gauge("http_leased_events", "Events under these leases.", realm.leases.events)
        logins = len(realm.access.logins)
        yield _gauge("console_sessions", "Console sessions that are kept.", logins)
        yield _gauge("channels", "Channels.", view.count("channel"))
        yield _gauge("queues", "Queues.", view.count("queue"))
        yield _gauge(
            "publish_waiting_bytes",
            "Bytes of publishes that are not stored yet.",
            self._native.pending_bytes,
        )
        yield _gauge(
            "publish_congested", "1 while publishers have to wait.", self._native.is_congested
        )
        memory = GaugeMetricFamily(
            "penstock_memory_bytes",
            "Bytes of events, and of publish keys and states (index), by what keeps them.",
            labels=["home"],
        )
        most = GaugeMetricFamily(
            "penstock_memory_limit_bytes",
            "Bytes there is room for; 0: no limit.",
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

    def _of_stores(self) -> Iterator[Metric]:
        now_us = self._realm.clock.now_us()
        labels = list(_STORE)
        events = GaugeMetricFamily("penstock_events", "Stored events.", labels=labels)
        size = GaugeMetricFamily("penstock_events_bytes", "Their bytes.", labels=labels)
        oldest = GaugeMetricFamily(
            "penstock_oldest_event_seconds", "Age of the oldest stored event.", labels=labels
        )
        subscribers = GaugeMetricFamily(
            "penstock_subscribers", "Plain subscriptions.", labels=labels
        )
        published = CounterMetricFamily("penstock_published", "Events published.", labels=labels)
        left = CounterMetricFamily(
            "penstock_left", "Events that left, by cause.", labels=[*labels, "cause"]
        )
        redelivered = CounterMetricFamily(
            "penstock_redelivered", "Deliveries after an event's first.", labels=labels
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
            sent, settled = store.flow
            delivered.add_metric(named, sent)
            acknowledged.add_metric(named, settled)
            files.add_metric(named, store.files)
            for cause in _COUNTED:  # starts at zero, so that the first deaths show as an increase
                left.add_metric([*named, cause], getattr(store.counters, cause))
        yield from (events, size, oldest, subscribers, published, left, redelivered)
        yield from (delivered, acknowledged, files)
        yield _gauge("unnamed_stores", "Channels and queues beyond those with a name.", unnamed)
        temporary = list(self._realm.view.temporary_stores())
        yield _gauge(
            "temporary_stores", "Temporary queues and topics, and reply queues.", len(temporary)
        )
        yield _gauge(
            "temporary_events", "Events in them.", sum(store.events for store in temporary)
        )
        yield _gauge(
            "temporary_events_bytes", "Their bytes.", sum(store.bytes for store in temporary)
        )

    def _of_dead(self) -> Iterator[Metric]:
        """Counters of dead events. They start at zero wherever something can die; durables beyond
        the named ones are left out."""
        dead = CounterMetricFamily(
            "penstock_dead",
            "Copies put into dead event stores.",
            labels=[*_STORE, "durable", "cause"],
        )
        named: dict[str, list[str]] = {}
        for name, durable in self._durables():
            named.setdefault(durable.store_name, []).append(name)
        for index, store in enumerate(self._realm.view.stores()):
            if index >= self._named_max:
                break
            own = named.get(store.name, [])
            counted = dict.fromkeys([("", "expired"), ("", "evicted")], 0)
            counted |= {(name, cause): 0 for name in own for cause in _FOR_ONE}
            died = {key: n for key, n in store.died.items() if not key[0] or key[0] in own}
            counted = {**(counted if store.moves_dead else {}), **died}
            for (durable_name, cause), copies in sorted(counted.items()):
                dead.add_metric([store.name, store.kind, durable_name, cause], copies)
        yield dead

    def _of_durables(self) -> Iterator[Metric]:
        now_us = self._realm.clock.now_us()
        labels = list(_DURABLE)
        outstanding = GaugeMetricFamily(
            "penstock_durable_outstanding_events", "Events not acknowledged.", labels=labels
        )
        in_flight = GaugeMetricFamily(
            "penstock_durable_in_flight_events",
            "Events delivered and not acknowledged.",
            labels=labels,
        )
        pending = GaugeMetricFamily(
            "penstock_durable_pending_events",
            "Deprecated: use penstock_durable_in_flight_events.",
            labels=labels,
        )
        waiting = GaugeMetricFamily(
            "penstock_durable_waiting_events",
            "Events that were rolled back and wait for their time.",
            labels=labels,
        )
        redelivered = GaugeMetricFamily(
            "penstock_durable_redelivered_events",
            "Outstanding events that were delivered before.",
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
            "From the publish of an event to its first delivery.",
            labels=labels,
        )
        for name, durable in self._durables():
            info, (sent, settled) = durable.info(now_us), durable.flow
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

    def _durables(self) -> Iterator[tuple[str, DurableView]]:
        """The durables of the named channels; the readers of a queue are one called ``""``."""
        left = self._named_max
        for index, store in enumerate(self._realm.view.stores()):
            if index >= self._named_max:
                return
            for name, durable in sorted(store.durables, key=itemgetter(0)):
                if left > 0:
                    left -= 1
                    yield name, durable

    def _of_connections(self) -> Iterator[Metric]:
        labels = list(_CONNECTION)
        unsent = GaugeMetricFamily(
            "penstock_connection_unsent_bytes",
            "Bytes that wait because the client does not take them.",
            labels=labels,
        )
        subscriptions = GaugeMetricFamily(
            "penstock_connection_subscriptions", "Subscriptions of a connection.", labels=labels
        )
        for info in self._realm.connections.states()[: self._named_max]:
            unsent.add_metric([str(info.number), info.user], info.unsent_bytes)
            subscriptions.add_metric([str(info.number), info.user], info.subscriptions)
        yield from (unsent, subscriptions)

    def _of_node(self) -> dict[str, int]:
        """Incidents of the node beside those of the realm that it serves."""
        figures = self._native.figures_of(self._realm.cluster().node)
        return {} if figures is None else dict(figures.incidents)

    def _of_relays(self) -> Iterator[Metric]:
        """What other nodes of the cluster relay to this one."""
        if (gate := self._native.gate) is None:
            return
        relayed = GaugeMetricFamily(
            "penstock_relayed_connections",
            "Connections that another node of the cluster relays, by that node.",
            labels=["node"],
        )
        for node, count in sorted(gate.open_by_node().items()):
            relayed.add_metric([node], count)
        yield relayed

    def _of_cluster(self) -> Iterator[Metric]:
        """The cluster, as the owner of the realm sees it."""
        found = self._realm.cluster()
        if not found.node:
            return
        up = GaugeMetricFamily(
            "penstock_node_up",
            "1 while a node of the cluster renews; 0: it does not, or nobody is there.",
            labels=["node"],
        )
        owner = GaugeMetricFamily(
            "penstock_shard_owner", "1 for the node that owns the realm.", labels=["node"]
        )
        for each in found.nodes:
            up.add_metric([each.node], each.state not in ("down", "left"))
            owner.add_metric([each.node], each.state == "owner")
            if each.node == found.node:
                yield from node_metrics(each, self._native.figures_of(each.node))
        yield from (up, owner)
        yield _gauge("shard_epoch", "How often the realm was claimed.", found.epoch)
        yield _gauge(
            "lease_left_seconds",
            "How long the owner may serve without renewing.",
            found.lease_left_s,
        )
        yield _gauge(
            "engine_waiting_seconds",
            "How long the append under way has waited for the engine; 0: none waits.",
            found.engine_waiting_s,
        )
        yield from self._of_engine()
        yield from self._of_owner()

    def _of_outboxes(self) -> Iterator[Metric]:
        """What joins out of a node have copied, and the cluster does not have yet (SEM N9)."""
        events, size, age = (
            GaugeMetricFamily(f"penstock_outbox_{name}", text, labels=("from", "to"))
            for name, text in (
                ("events", "Events copied for the cluster that it does not have yet."),
                ("bytes", "About how many bytes these are."),
                ("age_seconds", "How long the oldest of them has waited."),
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

    def _of_engine(self) -> Iterator[Metric]:
        """What the owner has found on the engine's servers."""
        if (counts := self._realm.tenures) is None:
            return
        leader = GaugeMetricFamily(
            "penstock_engine_leader", "1 for the server that takes appends.", labels=["server"]
        )
        if counts.leader:
            leader.add_metric([counts.leader], 1)
        yield leader
        yield _counter(
            "engine_damaged", "Damage found on the engine's servers.", len(counts.damages)
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
        for server, room in sorted(counts.rooms.items()):
            servers.add_metric([server], room)
        yield from (majority, servers)

    def _of_owner(self) -> Iterator[Metric]:
        """What the owner has kept back or could not put away, and what it reads of its files."""
        withheld = CounterMetricFamily(
            "penstock_withheld", "What waited for the lease, by what it was.", labels=["what"]
        )
        for what, count in self._realm.dispatch.withheld.items():
            withheld.add_metric([what], count)
        yield withheld
        from penstock_core.vocabulary.node_figures import SHARD  # no realm on its own loads it

        unsealed = GaugeMetricFamily(
            "penstock_unsealed_age_seconds",
            "For how long no snapshot has included what was stored last; 0: the newest does.",
            labels=["shard"],
        )
        unsealed.add_metric([f"{SHARD}"], self._realm.unsealed_s())
        yield unsealed
        if (ambiguous := self._realm.journal_info.ambiguous) is not None:
            became = CounterMetricFamily(
                "penstock_appends_ambiguous",
                "Appends that had no answer at first, by what became of them.",
                labels=["became"],
            )
            for what, count in ambiguous.items():
                became.add_metric([what], count)
            yield became
        if isinstance(self._realm.blobs, KeepsCopies):
            copies = self._realm.blobs.copies
            yield _gauge("blob_cache_bytes", "Bytes of segments on the node's disk.", copies.bytes)
            yield _counter("blob_cache_hits", "Reads of segments from that disk.", copies.hits)
            yield _counter("blob_cache_misses", "Reads that fetched a segment.", copies.misses)

    def _of_journal(self) -> Iterator[Metric]:
        info = self._realm.journal_info
        yield _gauge("journal_bytes", "Bytes of the journal.", info.size)
        yield _gauge("journal_blocks", "Blocks of the journal.", info.tail - info.floor)
        for name, text, timings in (
            ("journal_sync", "How long it took to put a block on disk.", info.syncs),
            ("engine_append", "How long it took the engine to store a block.", info.appends),
        ):
            if timings is not None:
                buckets, total_s = _histogram(timings)
                yield HistogramMetricFamily(
                    f"penstock_{name}_seconds", text, buckets=buckets, sum_value=total_s
                )

    def _of_machine(self) -> Iterator[Metric]:
        """What runs out: the disk, and the time of the certificate and of the backup."""
        if self._realm.disk_space is not None:
            free, size = self._realm.disk_space()
            yield _gauge("disk_free_bytes", "Free bytes on the disk of the data directory.", free)
            yield _gauge("disk_bytes", "All bytes of that disk.", size)
        if self._realm.backups.capture is not None:
            age_us = self._realm.clock.now_us() - self._realm.backups.newest_us
            told = "Since the newest backup was captured, or the realm started."
            yield _gauge("backup_age_seconds", told, max(0, age_us) / 1_000_000)
        if self._native.tls is not None:
            ends_s = self._native.tls.ends_us / 1_000_000
            yield _gauge("tls_certificate_end_seconds", "When the certificate ends.", ends_s)

    def _of_clients(self) -> Iterator[Metric]:
        """What went over connections, and what clients were refused."""
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
            "penstock_refused", "Errors that clients were told, by code.", labels=["code"]
        )
        for code, count in sorted(connections.refusals.items()):
            refused.add_metric([code], count)
        yield from (received, sent, refused)


def _histogram(timings: Timings) -> tuple[list[tuple[str, int]], float]:
    """The buckets of a histogram in seconds, and the sum of what is in them."""
    names = [*(f"{bound / 1_000_000:g}" for bound in timings.bounds_us), "+Inf"]
    return list(zip(names, timings.cumulative(), strict=True)), timings.total_us / 1_000_000


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_{name}", text, value=float(value))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_{name}", text, value=float(value))
