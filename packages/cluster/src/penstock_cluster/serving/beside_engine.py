"""``penstock cluster node``: a node that runs its own server of the storage engine."""

from __future__ import annotations

import signal
import ssl
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from penstock_cluster.bootstrap.cluster import check_names, read_secret
from penstock_cluster.bootstrap.engine_directory import EngineDirectory, leader_at
from penstock_cluster.bootstrap.engine_files import EngineTls, engine_password
from penstock_cluster.bootstrap.engine_peers import (
    USER,
    Peer,
    PeerAnswer,
    ask_peer,
    own_peer,
    url_host,
)
from penstock_cluster.bootstrap.engine_server import EngineProcess
from penstock_cluster.bootstrap.storage_engines import engine_tls
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_core.wire.addresses import is_loopback
from penstock_server.frontends.native.listener import check_exposed
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.serving import serve
from penstock_server.settings import ClusterSettings, Settings

POLL_S: Final = 0.25
"""Pause between two queries of the engine's leader at the start, in seconds."""
RETRY_S: Final = 2.0
"""Pause before the node is started again, in seconds."""
PROBE_FIRST_US: Final = 2_000_000
"""Time without a majority before the other machines are probed, in microseconds."""
PROBE_EVERY_US: Final = 5_000_000
"""Pause between two probes of the other machines while the engine has no majority."""

_log = logger("penstock.cluster")


class EnginePlan(NamedTuple):
    """The part of an engine that a node runs."""

    peers: Sequence[Peer]
    own_peer: Peer
    host: str
    """Address at which the server listens."""
    secret: bytes

    @property
    def has_tls(self) -> bool:
        return not self.own_peer.is_local


def plan_of(peers: Sequence[Peer], name: str, listen: str | None, secret_file: str) -> EnginePlan:
    """Return the part of the engine that a node with this name runs. Raises ``InvalidArgument``."""
    peer = own_peer(peers, name)
    host = listen or peer.host
    if peer.is_local and not is_loopback(host):
        raise InvalidArgument(
            f"--listen is {host!r}, and --peers has addresses that only this machine reaches: name "
            f"each machine by the address that the others reach, and the engine gets TLS"
        )
    if not secret_file:
        raise InvalidArgument(
            "a node that runs its own engine server needs --secret-file, a file with "
            "the secret that all machines of the cluster share. To create one: openssl rand -hex "
            "32; copy it to all machines"
        )
    return EnginePlan(peers, peer, host, secret=read_secret(secret_file))


def serve_beside_engine(directory: Path, settings: Settings, plan: EnginePlan) -> None:
    """Run a server of the engine and a node beside it until SIGTERM or SIGINT.

    Raises ``InvalidArgument`` if running machines have another secret or other peers,
    ``AddressInUse``, and the errors of :func:`penstock_server.serving.serve`.
    """
    check_names(settings.cluster)
    check_exposed(settings.listen.host, settings.access.mode)
    with EngineDirectory(directory.absolute()) as home:
        tls = home.certify(plan.secret, plan.own_peer) if plan.has_tls else None
        cluster = _settings_of_node(settings.cluster, plan, tls)
        context = engine_tls(cluster)
        _check_peers(_probe_peers(plan, cluster, context))
        written = {name: getattr(cluster, name) for name in _WRITTEN_SETTINGS}
        home.configure(written)
        arguments = cluster.name, plan.own_peer, plan.peers, plan.host, plan.secret, tls
        with _ended_by_signals(), home.start(*arguments) as server:
            _wait_for_majority(server, plan, cluster, tls=context)
            _serve(home.node, replace(settings, cluster=cluster))


def _serve(directory: Path, settings: Settings) -> None:
    """Run a node until it is told to end. If the engine is unavailable, log that and try again: the
    local engine server keeps running meanwhile, because the other engine servers need it."""
    while True:
        try:
            return serve(directory, settings)
        except Unavailable as error:
            # Its subclasses, such as `AddressInUse`, are reasons to end.
            if type(error) is not Unavailable:
                raise
            _log.warning("node.not_started", reason=str(error), again_s=RETRY_S)
        time.sleep(RETRY_S)


_WRITTEN_SETTINGS: Final = (
    "name",
    "engine",
    "monitors",
    "lease_s",
    "blobs",
    "tls_authority",
    "tls_certificate",
    "tls_key",
)
"""Settings for commands that inspect the cluster or move its realm."""


def _settings_of_node(
    settings: ClusterSettings, plan: EnginePlan, tls: EngineTls | None
) -> ClusterSettings:
    """Return the node's settings, with its name and the servers of the engine, its own server
    first."""
    others = [peer for peer in plan.peers if peer != plan.own_peer]
    hosts = ",".join(peer.address for peer in (plan.own_peer, *others))
    scheme = "nats" if tls is None else "tls"
    return replace(
        settings,
        engine=f"{scheme}://{USER}:{engine_password(plan.secret)}@{hosts}",
        monitors=",".join(_monitor(peer, plan) for peer in plan.peers),
        node=plan.own_peer.name,
        advertise=settings.advertise or plan.own_peer.host,
        tls_authority="" if tls is None else str(tls.authority),
        tls_certificate="" if tls is None else str(tls.certificate),
        tls_key="" if tls is None else str(tls.key),
    )


def _probe_peers(
    plan: EnginePlan, cluster: ClusterSettings, tls: ssl.SSLContext | None
) -> list[PeerAnswer]:
    """Probe all other machines at the same time."""
    password = engine_password(plan.secret)
    probe = partial(ask_peer, cluster=cluster.name, password=password, tls=tls)
    others = [peer for peer in plan.peers if peer != plan.own_peer]
    with ThreadPoolExecutor(len(others)) as pool:
        return list(pool.map(probe, others))


def _check_peers(answers: Sequence[PeerAnswer]) -> None:
    """Raise ``InvalidArgument`` if some machines answer and all of these belong to another cluster:
    then this machine is most likely the wrong one."""
    wrong = [answer.finding for answer in answers if answer.state == "wrong"]
    if wrong and not any(answer.state == "there" for answer in answers):
        raise InvalidArgument("; ".join(wrong))
    for problem in wrong:
        _log.warning("engine.peer_wrong", found=problem)


def _wait_for_majority(
    server: EngineProcess, plan: EnginePlan, cluster: ClusterSettings, tls: ssl.SSLContext | None
) -> None:
    """Return once the server belongs to a majority of the engine's servers."""
    clock = SystemClock()
    ask_us, logged = clock.steady_us() + PROBE_FIRST_US, None
    while not (leader := leader_at(_monitor(plan.own_peer, plan), tls)):
        if clock.steady_us() > ask_us:
            states = [answer.finding for answer in _probe_peers(plan, cluster, tls)]
            if states != logged:
                _log.info("engine.waiting", reason="no majority of its servers yet", peers=states)
            ask_us, logged = clock.steady_us() + PROBE_EVERY_US, states
        time.sleep(POLL_S)
    _log.info("engine.ready", leader=leader, server=plan.own_peer.name, pid=server.pid)


def _monitor(peer: Peer, plan: EnginePlan) -> str:
    """Return the monitoring URL of a server."""
    scheme = "https" if plan.has_tls else "http"
    return f"{scheme}://{url_host(peer.host)}:{peer.monitor_port}"


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt while waiting for a server, so that this process can be
    ended. The loop that serves later takes over both signals."""

    def end(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
