"""``penstock cluster node``: a node that brings its server of the storage engine along."""

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
    bracketed,
    own_peer,
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

LOOK_S: Final = 0.25
AGAIN_S: Final = 2.0
ASK_FIRST_US: Final = 2_000_000
ASK_EVERY_US: Final = 5_000_000
"""How often the others are asked while there is no majority of them."""

_log = logger("penstock.cluster")


class EnginePlan(NamedTuple):
    """The part of an engine that a node brings along."""

    peers: Sequence[Peer]
    own: Peer
    host: str
    """Where the server listens."""
    secret: bytes

    @property
    def has_tls(self) -> bool:
        return not self.own.is_local


def plan_of(peers: Sequence[Peer], name: str, listen: str | None, secret_file: str) -> EnginePlan:
    """What a node with this name is to bring along. Raises ``InvalidArgument``."""
    own = own_peer(peers, name)
    host = listen or own.host
    if own.is_local and not is_loopback(host):
        raise InvalidArgument(
            f"--listen is {host!r}, and --peers has addresses that only this machine reaches: name "
            f"each machine by the address that the others reach, and the engine gets TLS"
        )
    if not secret_file:
        raise InvalidArgument(
            "a node that brings its engine along needs --secret-file, with the secret by which the "
            "machines of the cluster know each other; make one with: openssl rand -hex 32, and "
            "copy it to all of them"
        )
    return EnginePlan(peers, own, host, secret=read_secret(secret_file))


def serve_beside_engine(directory: Path, settings: Settings, plan: EnginePlan) -> None:
    """Run a server of the engine and a node beside it until SIGTERM or SIGINT.

    Raises ``InvalidArgument`` for a secret or peers that those do not have who are there already,
    ``AddressInUse``, and what :func:`penstock_server.serving.serve` raises.
    """
    check_names(settings.cluster)
    check_exposed(settings.listen.host, settings.access.mode)
    with EngineDirectory(directory.absolute()) as home:
        tls = home.certify(plan.secret, plan.own) if plan.has_tls else None
        cluster = _of_plan(settings.cluster, plan, tls)
        context = engine_tls(cluster)
        _check_peers(_asked(plan, cluster, context))
        told = {name: getattr(cluster, name) for name in _TOLD}
        home.configure(told)
        arguments = cluster.name, plan.own, plan.peers, plan.host, plan.secret, tls
        with _ended_by_signals(), home.start(*arguments) as server:
            _wait(server, plan, cluster, tls=context)
            _serve(home.node, replace(settings, cluster=cluster))


def _serve(directory: Path, settings: Settings) -> None:
    """Be a node until that is told to end. While the engine does not answer, or not well enough,
    the server here goes on: the others cannot do without it."""
    while True:
        try:
            return serve(directory, settings)
        except Unavailable as error:
            if type(error) is not Unavailable:
                raise
            _log.warning("node.not_started", reason=str(error), again_s=AGAIN_S)
        time.sleep(AGAIN_S)


_TOLD: Final = (
    "name",
    "engine",
    "monitors",
    "lease_s",
    "blobs",
    "tls_authority",
    "tls_certificate",
    "tls_key",
)
"""Settings that those need who look at the cluster, or move its realm."""


def _of_plan(wanted: ClusterSettings, plan: EnginePlan, tls: EngineTls | None) -> ClusterSettings:
    """How the node finds the engine: its own server first, and how it is called itself."""
    others = [peer for peer in plan.peers if peer != plan.own]
    hosts = ",".join(peer.address for peer in (plan.own, *others))
    scheme = "nats" if tls is None else "tls"
    return replace(
        wanted,
        engine=f"{scheme}://{USER}:{engine_password(plan.secret)}@{hosts}",
        monitors=",".join(_monitor(peer, plan) for peer in plan.peers),
        node=plan.own.name,
        advertise=wanted.advertise or plan.own.host,
        tls_authority="" if tls is None else str(tls.authority),
        tls_certificate="" if tls is None else str(tls.certificate),
        tls_key="" if tls is None else str(tls.key),
    )


def _asked(
    plan: EnginePlan, cluster: ClusterSettings, tls: ssl.SSLContext | None
) -> list[PeerAnswer]:
    """What the other machines say, all at once."""
    password = engine_password(plan.secret)
    ask = partial(ask_peer, cluster=cluster.name, password=password, tls=tls)
    others = [peer for peer in plan.peers if peer != plan.own]
    with ThreadPoolExecutor(len(others)) as pool:
        return list(pool.map(ask, others))


def _check_peers(answers: Sequence[PeerAnswer]) -> None:
    """Raise ``InvalidArgument`` if some are there, and all of these are of another cluster: then
    it is this machine that is wrong, as far as one can know."""
    wrong = [each.found for each in answers if each.state == "wrong"]
    if wrong and not any(each.state == "there" for each in answers):
        raise InvalidArgument("; ".join(wrong))
    for each in wrong:
        _log.warning("engine.peer_wrong", found=each)


def _wait(
    server: EngineProcess, plan: EnginePlan, cluster: ClusterSettings, tls: ssl.SSLContext | None
) -> None:
    """Come back once the server belongs to a majority of the engine's."""
    clock = SystemClock()
    ask_us, said = clock.steady_us() + ASK_FIRST_US, None
    while not (leader := leader_at(_monitor(plan.own, plan), tls)):
        if clock.steady_us() > ask_us:
            found = [each.found for each in _asked(plan, cluster, tls)]
            if found != said:
                _log.info("engine.waiting", reason="no majority of its servers yet", peers=found)
            ask_us, said = clock.steady_us() + ASK_EVERY_US, found
        time.sleep(LOOK_S)
    _log.info("engine.ready", leader=leader, server=plan.own.name, pid=server.pid)


def _monitor(peer: Peer, plan: EnginePlan) -> str:
    """Where a server tells how it is."""
    scheme = "https" if plan.has_tls else "http"
    return f"{scheme}://{bracketed(peer.host)}:{peer.monitor_port}"


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt while a server is waited for, so that this process can be
    ended. The loop that serves takes both signals over."""

    def end(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
