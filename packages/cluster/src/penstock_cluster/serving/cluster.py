"""The process of a cluster's node, which serves the realm or stands by to take it over."""

from __future__ import annotations

import asyncio
import secrets
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from penstock_cluster.bootstrap.cluster import (
    advertised_host,
    check_engine,
    check_names,
    cluster_secret,
    ensure_identity,
    identity_of,
    member,
    open_engine,
    open_inspector,
    open_shard,
    owner_tls,
    places_in,
)
from penstock_cluster.bootstrap.node_directory import NodeDirectory
from penstock_cluster.nodes.local_names import ClusterWideNames
from penstock_cluster.nodes.node import ClusterNode
from penstock_cluster.nodes.node_state import (
    cluster_info,
    figures_of,
    node_figures,
    process_figures,
)
from penstock_cluster.nodes.owner_link import OwnerClient
from penstock_cluster.nodes.roles import (
    NodeRoles,
    local_addresses,
    owners_in,
    owning_node,
    serving_node,
    suspend_without_quorum,
    tell_owners,
    unfit_in,
    watch_engine,
)
from penstock_cluster.nodes.standing_by import StandbyListener
from penstock_cluster.owning.arriving import refuse_partial_realm
from penstock_cluster.owning.register_records import MemberRecord
from penstock_cluster.relay import Relays
from penstock_cluster.serving.history import HistoryServer, check_history
from penstock_cluster.serving.local import LocalRealm, check_local
from penstock_core.loggers import logger
from penstock_core.tasks import leave_to_owner, start_task
from penstock_core.version import __version__
from penstock_core.vocabulary.errors import AddressInUse, NoQuorum, PenstockError
from penstock_core.vocabulary.node_figures import SHARD, NodeFigures
from penstock_core.vocabulary.ports import (
    Blobs,
    Clock,
    EngineHealth,
    Journal,
    Registry,
    StorageEngine,
)
from penstock_server.bootstrap import native_listener, notifying, tls, with_certificate
from penstock_server.frontends.front_end import front_ends
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.ports import HeldPorts
from penstock_server.frontends.shared.relayed import RelayGate
from penstock_server.frontends.shared.tls import Tls
from penstock_server.runtime.delivery.owner_lease import OwnerLease
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.serving.lifecycle import (
    collect_rarely,
    first_failure,
    log_limits,
    log_recovery,
    reload,
    reload_certificate,
    run,
    show_first_password,
    wanted_front_ends,
)
from penstock_server.settings import ClusterSettings, Settings

RETRY_S: Final = 2.0
"""Pause between two attempts to open an engine without a majority."""
ANSWER_S: Final = 2.0
"""Seconds beyond the lease after which a request to an owner fails: by then another node may own
the realm."""

_log = logger("penstock.cluster")


async def serve_node(directory: Path, settings: Settings, stopping: asyncio.Event) -> None:
    """Run a node of a cluster until ``stopping`` is set, then hand over its realm. The path of the
    ``directory`` is absolute.

    Raises ``InvalidArgument``, ``AddressInUse``, ``DataDirectoryInUse``; ``Unavailable`` and
    ``Damaged`` if the engine would lose what it acknowledges, or has lost it; ``Deposed`` when
    another process has taken the node's name. An engine without a majority is waited for.
    """
    check_names(settings.cluster)  # checked before anything is created
    check_local(settings.cluster)
    check_history(settings.cluster)
    advertised_host(settings)
    clock, cluster = SystemClock(), settings.cluster
    with NodeDirectory(str(directory), cluster.name, cluster.node) as home:
        settings = with_certificate(directory, settings)
        engine_and_health = await _wait_for_engine(cluster, clock, stopping)
        if engine_and_health is None:
            return
        engine, health = engine_and_health
        ports = HeldPorts()
        try:
            registry = await engine.registry()
            await refuse_partial_realm(registry)
            home.check_realm(await identity_of(registry))
            settings = await _bind_ports(ports, settings)
            log_limits(settings)
            collect_rarely()
            _log.info(
                "cluster.joined",
                node=home.record.node,
                cluster=cluster.name,
                engine=health.kind,
                version=health.version,
                servers=health.servers,
                lease_s=cluster.lease_s,
            )
            secret = await cluster_secret(registry, cluster)
            node = NodeProcess(
                home, settings, engine, registry=registry, secret=secret, clock=clock, ports=ports
            )
            if cluster.local_port is not None:
                await node.open_local()
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, node.reload)
            await node.run(stopping)
        finally:
            await engine.close()
            ports.close()  # last: other nodes consider a process dead when its ports refuse


async def _wait_for_engine(
    cluster: ClusterSettings, clock: Clock, stopping: asyncio.Event
) -> tuple[StorageEngine, EngineHealth] | None:
    """Open and check the engine. Tries again while it has no majority of its servers, as after a
    power cut of all machines. None if ``stopping`` was set first."""
    reason = ""
    while not stopping.is_set():
        opening = start_task(
            _open_checked(cluster, clock), name="engine-open", on_failure=leave_to_owner
        )
        ended = start_task(stopping.wait(), name="engine-open-ends")
        try:
            await asyncio.wait([opening, ended], return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                return opening.result()
        except NoQuorum as error:
            if str(error) != reason:
                reason = str(error)
                _log.warning("engine.waiting", reason=reason)
                notifying.waiting(f"waiting for the engine: {reason}")
        finally:
            opening.cancel()
            ended.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await stopping.wait()
    return None


async def _open_checked(
    cluster: ClusterSettings, clock: Clock
) -> tuple[StorageEngine, EngineHealth]:
    """Open the engine and check it. An engine that fails the check is closed."""
    engine = await open_engine(cluster, clock)
    try:
        return engine, await check_engine(engine, SHARD)
    except BaseException:
        await engine.close()
        raise


async def _warn_of_other_clusters(cluster: ClusterSettings, clock: Clock) -> None:
    """Log the names of other clusters on the engine. Several clusters are allowed, but a mistyped
    ``cluster.name`` begins a second, empty realm, and nothing else would reveal it."""
    inspector = open_inspector(cluster, clock)
    try:
        names = await inspector.clusters()
    except PenstockError:
        return  # the engine does not answer now, or does not let this user list them
    finally:
        await inspector.close()
    if others := [name for name in names if name != cluster.name]:
        _log.warning("engine.other_clusters", cluster=cluster.name, others=others)


async def _bind_ports(ports: HeldPorts, settings: Settings) -> Settings:
    """Listen at the ports of all front ends, and return the settings with the bound ports."""
    for front_end in front_ends().values():
        place = front_end.place(settings)
        if place is None:
            continue
        port: int | None = None
        try:
            port = await ports.hold(place.host, place.port)
        except AddressInUse as error:
            if place.is_required:
                raise
            front_end.log_left_out(str(error))
        settings = front_end.at_port(settings, port)
    return replace(settings, cluster=await _bind_local_ports(ports, settings))


async def _bind_local_ports(ports: HeldPorts, settings: Settings) -> ClusterSettings:
    """Listen at the ports of the node's local channels, and return the settings with these."""
    cluster, host = settings.cluster, settings.listen.host
    if cluster.local_port is None:
        return cluster
    native = await ports.hold(host, cluster.local_port)
    http, amqp, mqtt = cluster.local_http_port, cluster.local_amqp_port, cluster.local_mqtt_port
    if http is not None:
        http = await ports.hold(settings.http.host or host, http)
    if amqp is not None:
        amqp = await ports.hold(host, amqp)
    if mqtt is not None:
        mqtt = await ports.hold(host, mqtt)
    return replace(
        cluster,
        local_port=native,
        local_http_port=http,
        local_amqp_port=amqp,
        local_mqtt_port=mqtt,
    )


class NodeProcess:
    """One start of a node."""

    def __init__(
        self,
        home: NodeDirectory,
        settings: Settings,
        engine: StorageEngine,
        registry: Registry,
        secret: bytes,
        clock: Clock,
        ports: HeldPorts,
    ) -> None:
        self._home = home
        self.settings = settings
        self._engine = engine
        self._registry = registry
        self._secret = secret
        self._clock = clock
        self._ports = ports
        self._tls: Tls | None = tls(settings)
        self.me: MemberRecord = member(
            home.record.node, secrets.token_hex(8), settings, secret=secret
        )
        self._roles = NodeRoles(self._open, self._serve)
        self._relays = Relays(
            lambda: serving_node(self.node),
            secret,
            self.me.node,
            clock=clock,
            relays_max=settings.cluster.relays_max,
        )
        self.node = ClusterNode(
            engine,
            self.me,
            self._roles,
            clock=clock,
            lease_s=settings.cluster.lease_s,
            listens=False,
            figures=self._figures,
        )
        self.serving: tuple[RunningRealm, NativeListener] | None = None
        """Realm and listener of the node while it is the owner; None while it stands by."""
        self._names: ClusterWideNames | None = None
        self._local: LocalRealm | None = None

    async def open_local(self) -> None:
        """Open the realm of the node's local channels."""
        self._local = await LocalRealm.open(
            self._home.path,
            self.settings,
            self.me.node,
            self._registry,
            self._ports,
            self._tls,
            OwnerClient(
                lambda: owning_node(self.node),
                self._secret,
                self.me.node,
                clock=self._clock,
                answer_s=self.settings.cluster.lease_s + ANSWER_S,
                has_quorum=self.node.has_quorum,
                tls=lambda: owner_tls(self.settings),
            ),
        )

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve and stand by until ``stopping`` is set."""
        standby = StandbyListener(
            lambda: serving_node(self.node),
            lambda: owners_in(self.node),
            places_in(self.settings),
            name=self.me.node,
            ports=self._ports,
            tls=self._tls,
            relays=self._relays,
            has_quorum=self.node.has_quorum,
            unfit=lambda: unfit_in(self.node),
            incidents=self.node.incidents,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self.node.run(), name="node")
                standing_by = tasks.create_task(
                    self._roles.stand_by(self.node, standby, self._on_standing_by), name="standby"
                )
                if self._local is not None:
                    tasks.create_task(self._local.run(stopping), name="local")
                history = None
                if (server := self._history()) is not None:
                    history = tasks.create_task(server.run(), name="history")
                warning = start_task(  # a failure is logged, and does not end the node
                    _warn_of_other_clusters(self.settings.cluster, self._clock),
                    name="other-clusters",
                )
                await stopping.wait()
                warning.cancel()
                await self.node.leave()
                await running
                standing_by.cancel()
                if history is not None:
                    history.cancel()
        except* PenstockError as failures:
            raise first_failure(failures) from None

    def _figures(self) -> NodeFigures:
        return node_figures(self.node, self._relays, process_figures())

    def _history(self) -> HistoryServer | None:
        """Return the server of sealed history for times without a quorum; None if it is not
        configured."""
        if self.settings.cluster.history_port is None:
            return None
        return HistoryServer(
            self._home.path,
            self.settings,
            lambda: self._home.record.realm,
            registry=self._registry,
            has_quorum=self.node.has_quorum,
            certificate=self._tls,
            incidents=self.node.incidents,
        )

    def _on_standing_by(self, owner: str) -> None:
        """Log that the node stands by for an owner (empty if none is known), and notify systemd."""
        serves = self.node.claims.members[owner].serves if owner else {}
        url = self.me.serves["native"]
        _log.info(
            "realm.standing_by",
            url=url,
            node=self.me.node,
            owner=owner,
            owner_url=serves.get("native", ""),
        )
        notifying.ready(f"standing by at {url}, {owner or 'no node'} serves")

    async def _open(self, journal: Journal, blobs: Blobs, lease: OwnerLease) -> RunningRealm:
        """Recover the realm for this owner. Raises ``Damaged`` if the engine has lost the realm
        that this node has served before."""
        await refuse_partial_realm(self._registry)  # an import may have begun since the start
        new_identity = self._home.record.realm or secrets.token_hex(16)
        identity = await ensure_identity(self._registry, new_identity)
        self._home.check_realm(identity)
        realm = await open_shard(
            journal,
            blobs,
            lease,
            registry=self._registry,
            settings=self.settings,
            clock=self._clock,
            directory=self._home.path,
            identity=identity,
        )
        names = ClusterWideNames(
            self._registry,
            lease.epoch,
            realm.directory,
            addresses=lambda: local_addresses(self.node),
        )
        try:
            await names.begin()
        except BaseException:
            await realm.release()
            raise
        realm.name_with(names)
        self._names = names
        realm.cluster = lambda: cluster_info(
            self.node, realm, self._clock.steady_us(), local=names.local
        )
        realm.tenures = self.node.tenures
        log_recovery(realm)
        return realm

    async def _serve(self, realm: RunningRealm, lease: OwnerLease, stopping: asyncio.Event) -> None:
        """Serve the realm to clients until ``stopping`` is set. Raises the error that ends it."""
        assert self._names is not None, "`_open` is called before `_serve`"
        settings = self.settings
        show_first_password(realm, as_json=settings.log.format == "json")
        listener = native_listener(realm, settings, __version__, certificate=self._tls)
        listener.ports = self._ports
        # Clients drop a connection after three silent heartbeats, the length of a lease.
        listener.heartbeat_s = settings.cluster.lease_s / 3
        listener.owners = lambda: owners_in(self.node)
        listener.gate = RelayGate(self._secret, self.me.nonce, self._clock)
        listener.figures_of = lambda name: figures_of(self.node, name, self._figures)
        self.serving = realm, listener
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(suspend_without_quorum(lease, listener)),
                    tasks.create_task(tell_owners(self.node, listener)),
                    tasks.create_task(self._names.run(realm.incidents)),
                    tasks.create_task(
                        watch_engine(self._engine, self.node.tenures, realm.incidents)
                    ),
                ]
                await run(
                    realm,
                    listener,
                    settings,
                    stopping=stopping,
                    front_ends=wanted_front_ends(settings),
                )
                for task in background:
                    task.cancel()
        except* PenstockError as failures:
            raise first_failure(failures) from None
        finally:
            self.serving = None

    def reload(self) -> None:
        """Read certificates and the keys of tokens again."""
        if self.serving is not None:
            reload(*self.serving)
        elif self._tls is not None:
            reload_certificate(self._tls)
        if self._local is not None:
            self._local.reload()
