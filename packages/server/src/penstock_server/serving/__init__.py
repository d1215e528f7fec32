"""Serves a data directory: opens the realm, runs its front ends, and shuts down in order."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from penstock.client.connection.threads import fast_loop
from penstock_core.garbage import uncollected
from penstock_core.imports import left_out
from penstock_core.loggers import logger
from penstock_core.version import __version__
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.bootstrap import (
    native_listener,
    notifying,
    open_realm,
    with_certificate,
)
from penstock_server.frontends.native.listener import check_exposed
from penstock_server.parts import loaded
from penstock_server.serving.lifecycle import (
    collect_rarely,
    linger,
    log_limits,
    log_recovery,
    processors,
    reload,
    run,
    show_first_password,
    wanted_front_ends,
)
from penstock_server.settings import ClusterSettings, Settings

SERVERS: Final = "penstock.servers"
"""Entry point group of other ways to serve a data directory; ``cluster`` serves a node."""

_log = logger("penstock.realm")


class ServeNode(Protocol):
    """Serves a data directory as a node of a cluster, until ``stopping`` is set."""

    async def __call__(
        self, directory: Path, settings: Settings, stopping: asyncio.Event
    ) -> None: ...


def leave_pandas_out() -> None:
    """Make Arrow decide at the start to work without pandas in this process.

    If pandas is installed, the first array from Python values would import it, which blocks all
    clients for a third of a second and wastes memory.
    """
    with left_out("pandas"):
        pa.array([0])


def serve(directory: Path, settings: Settings) -> None:
    """Serve a data directory until SIGTERM or SIGINT. All acknowledged data is on disk on return.

    A second signal ends the process immediately. Raises ``DataDirectoryInUse``, ``NewerFormat``,
    ``InvalidArgument``, ``AddressInUse``, and ``StorageFailed`` if the journal can no longer be
    written.
    """
    check_exposed(settings.listen.host, settings.access.mode)
    if settings.http.enabled and settings.http.host:
        check_exposed(settings.http.host, settings.access.mode)
    _check_cluster(settings.cluster)
    leave_pandas_out()
    relays_max = settings.cluster.relays_max if settings.cluster.engine else 0
    extra_ports = (settings.cluster.local_port, settings.cluster.history_port)
    listeners = 1 + sum(port is not None for port in extra_ports)
    # A relayed connection has two sockets: one to the client and one to the owner.
    _raise_file_limit(listeners * settings.listen.connections_max + 2 * relays_max)
    with asyncio.Runner(loop_factory=fast_loop) as runner:
        runner.run(_serve(directory.absolute(), settings))


def _check_cluster(cluster: ClusterSettings) -> None:
    """Raise ``InvalidArgument`` if cluster settings are set without an engine."""
    for name in ClusterSettings.__struct_fields__:
        if not cluster.engine and getattr(cluster, name) != getattr(ClusterSettings(), name):
            raise InvalidArgument(
                f"cluster.{name} is set, but cluster.engine is not: set the engine of the cluster "
                f"(--cluster URL), or leave cluster.{name} out"
            )


async def _serve(directory: Path, settings: Settings) -> None:
    stopping = _stop_on_signals()
    _log.info(
        "realm.starting",
        version=__version__,
        python=sys.version.split()[0],
        loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
        data=str(directory),
        pid=os.getpid(),
    )
    if settings.cluster.engine:
        # Loaded through the entry point, so that other realms do not load the cluster's modules.
        serve: ServeNode = loaded(SERVERS, "cluster", use="cluster.engine asks for a cluster")
        await serve(directory, settings, stopping)
    else:
        await _serve_alone(directory, settings, stopping)
    _log.info("realm.stopped", on_disk="everything acknowledged")


async def _serve_alone(directory: Path, settings: Settings, stopping: asyncio.Event) -> None:
    """Serve a realm that is not in a cluster until ``stopping`` is set."""
    with uncollected():
        realm = await open_realm(directory, settings)
        collect_rarely()
    try:
        log_recovery(realm)
        log_limits(settings)
        linger(realm, settings, processors())
        show_first_password(realm, as_json=settings.log.format == "json")
        settings = with_certificate(directory, settings)
        listener = native_listener(realm, settings, __version__)
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, lambda: reload(realm, listener)
        )
        await run(
            realm,
            listener,
            settings,
            stopping=stopping,
            front_ends=wanted_front_ends(settings),
        )
    finally:
        await realm.release()


def _stop_on_signals() -> asyncio.Event:
    """Return an event that the first signal sets. A second signal ends the process immediately,
    which is safe because acknowledged data is on disk."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if stopping.is_set():
            _log.warning("realm.abandoned", signal=number.name)
            os._exit(128 + number)
        _log.info("realm.stopping", signal=number.name)
        notifying.stopping()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    return stopping


def _raise_file_limit(connections: int) -> None:
    """Raise the process's soft limit of open files, so that it suffices for this number of
    ``connections`` and the realm's files. The hard limit is not exceeded."""
    # `penstock doctor` judges by the same number: OTHER_FILES in cli/checks/checks.py.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + 1_024
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
