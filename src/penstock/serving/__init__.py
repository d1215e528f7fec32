"""The server: a realm, its listener, and an orderly end."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock import __version__
from penstock.bootstrap import (
    http_server,
    mqtt_hub,
    native_listener,
    notifying,
    open_realm,
    with_certificate,
)
from penstock.bootstrap.front_end_urls import front_end_url
from penstock.client.connection.threads import fast_loop
from penstock.core.vocabulary.errors import AddressInUse, InvalidArgument, PenstockError
from penstock.frontends.amqp import hub_of
from penstock.frontends.native.listener import NativeListener, check_exposed
from penstock.frontends.shared.tls import Tls
from penstock.garbage import uncollected
from penstock.imports import left_out
from penstock.loggers import logger
from penstock.runtime.access.accounts import FIRST_USER
from penstock.runtime.realm import RunningRealm
from penstock.runtime.writer.linger import Linger
from penstock.settings import HTTP_PORT, ClusterSettings, Settings
from penstock.wire.addresses import is_loopback

if TYPE_CHECKING:
    from penstock.frontends.http.server import HttpServer

_log = logger("penstock.realm")

_DAMAGE_SHOWN = 10
"""Lines about damage in the start-up log; it stays one screen."""


_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The processor time a container may take, in microseconds, and in how many."""
_PROCESSORS_MIN = 2
"""So many make it worth to stay awake: one for the realm, and one for its client meanwhile."""
COLLECT_AFTER = (10_000, 20, 50)
"""New objects, and generations, after which Python looks for cycles."""
LOAD_AFTER_S: Final = 0.2
"""Seconds from when a realm listens until it loads what a start leaves out and nearly all need."""


def leave_pandas_out() -> None:
    """Have Arrow decide, once and for all, that it works without pandas in this process.

    Where pandas is installed the first array made of Python values would import it: a third of
    a second in which nobody is served, and memory for nothing.
    """
    with left_out("pandas"):
        pa.array([0])


def serve(directory: Path, settings: Settings) -> None:
    """Serve a data directory until SIGTERM or SIGINT; everything acknowledged is on disk then.

    A second signal ends the process at once. Raises ``DataDirectoryInUse``, ``NewerFormat``,
    ``InvalidArgument``, ``AddressInUse``, and ``StorageFailed`` when the journal cannot be
    written any more.
    """
    check_exposed(settings.listen.host, settings.access.mode)
    if settings.http.enabled and settings.http.host:
        check_exposed(settings.http.host, settings.access.mode)
    _check_cluster(settings.cluster)
    leave_pandas_out()
    relays_max = settings.cluster.relays_max if settings.cluster.engine else 0
    beside = (settings.cluster.local_port, settings.cluster.history_port)
    listeners = 1 + sum(port is not None for port in beside)
    _raise_file_limit(listeners * settings.listen.connections_max + 2 * relays_max)
    with asyncio.Runner(loop_factory=fast_loop) as runner:
        runner.run(_serve(directory.absolute(), settings))


def _check_cluster(wanted: ClusterSettings) -> None:
    """Raise ``InvalidArgument`` for settings of a cluster where there is none."""
    for name in ClusterSettings.__struct_fields__:
        if not wanted.engine and getattr(wanted, name) != getattr(ClusterSettings(), name):
            raise InvalidArgument(
                f"cluster.{name} is set, and cluster.engine is not: name the engine of the cluster "
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
        # the cluster's modules, its engine's adapter and client are loaded by nobody else
        from penstock.serving.cluster import serve_node

        await serve_node(directory, settings, stopping)
    else:
        await _serve_alone(directory, settings, stopping)
    _log.info("realm.stopped", on_disk="everything acknowledged")


async def _serve_alone(directory: Path, settings: Settings, stopping: asyncio.Event) -> None:
    with uncollected():
        realm = await open_realm(directory, settings)
        collect_rarely()
    try:
        log_recovery(realm)
        log_limits(settings)
        linger(realm, settings)
        show_first_password(realm, as_json=settings.log.format == "json")
        settings = with_certificate(directory, settings)
        listener = native_listener(realm, settings, __version__)
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, lambda: reload(realm, listener)
        )
        http = http_server(realm, listener, settings) if settings.http.enabled else None
        await run(realm, listener, settings, stopping, http)
    finally:
        await realm.release()


async def run(
    realm: RunningRealm,
    listener: NativeListener,
    settings: Settings,
    stopping: asyncio.Event,
    http: HttpServer | None = None,
) -> None:
    """Serve an opened realm until ``stopping`` is set; the caller releases it.

    Raises ``AddressInUse``, ``InvalidArgument``, ``StorageFailed``.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(realm.run(), name="realm")
            ready = asyncio.Event()
            serving = [tasks.create_task(listener.run(ready), name="listener")]
            try:
                await ready.wait()
                port = await listener.listen(settings.listen.host, settings.listen.port)
                if settings.listen.mqtt_port is not None:
                    # first, so that its WebSockets are there when HTTP is
                    await _listen_mqtt(listener, settings)
                if http is not None:
                    serving.append(tasks.create_task(http.run(), name="http"))
                    await _listen_http(http, settings)
                if settings.listen.amqp_port is not None:
                    await _listen_amqp(listener, settings)
                _warn_of_eavesdroppers(listener, settings)
                is_safe = listener.tls is not None
                url = front_end_url("native", settings.listen.host, port, is_safe=is_safe)
                _log.info("realm.listening", url=url)
                notifying.ready(f"listening on {url}")
                loading = load_later()
                await stopping.wait()
                loading.cancel()
            finally:
                if http is not None:
                    await http.close()
                await listener.close()
            await realm.close()
            for task in serving:
                task.cancel()
    except* PenstockError as failures:
        raise first_failure(failures) from None


def show_first_password(realm: RunningRealm, *, as_json: bool = False) -> None:
    """Once, and not in the log: that may be kept, and read by others. ``as_json``: as a line of
    JSON, for programs that read standard output together with the log."""
    password, realm.access.first_password = realm.access.first_password, ""
    if password and as_json:
        line = {"event": "access.first_administrator", "user": FIRST_USER, "password": password}
        sys.stdout.write(f"{json.dumps(line)}\n")
        sys.stdout.flush()
    elif password:
        sys.stdout.write(
            f"First administrator of this realm: user {FIRST_USER}, password {password}\n"
            "It is shown this once. Change it with: penstock user password "
            f"{FIRST_USER}\n"
        )
        sys.stdout.flush()


def reload(realm: RunningRealm, listener: NativeListener) -> None:
    """Read certificates and the keys of tokens again; connections go on. Files that do not do
    are said, and the old ones stay in use."""
    notifying.reloading()
    try:
        _reload(realm, listener)
    finally:
        notifying.ready("reloaded")


def _reload(realm: RunningRealm, listener: NativeListener) -> None:
    realm.access.reload()
    if listener.tls is not None:
        if not reload_certificate(listener.tls):
            return
        realm.access.revoke(listener.tls.revoked)
    _log.info("realm.reloaded", tls=listener.tls is not None)


def reload_certificate(certificate: Tls) -> bool:
    """Read a certificate again; False: its files do not do, which is said, and the old one stays
    in use."""
    try:
        certificate.reload()
    except InvalidArgument as error:
        _log.error("realm.not_reloaded", reason=str(error))
        return False
    return True


def _warn_of_eavesdroppers(listener: NativeListener, settings: Settings) -> None:
    """Without TLS everybody on the way reads what is published, and any password that is sent."""
    hosts = {settings.listen.host, settings.http.host or settings.listen.host}
    open_ = sorted(host for host in hosts if not is_loopback(host))
    if listener.tls is None and open_:
        _log.warning(
            "network.without_tls",
            hosts=open_,
            passwords="taken" if settings.access.cleartext_passwords else "refused",
            remedy="name listen.tls_certificate and listen.tls_key, or listen.tls_self_signed",
        )


async def _listen_amqp(listener: NativeListener, settings: Settings) -> None:
    host, wanted = settings.listen.host, settings.listen.amqp_port
    assert wanted is not None, "somebody wants it"
    port = await hub_of(listener).listen(host, wanted)
    url = front_end_url("amqp", host, port, is_safe=listener.tls is not None)
    _log.info("amqp.listening", url=url)


async def _listen_mqtt(listener: NativeListener, settings: Settings) -> None:
    host, wanted = settings.listen.host, settings.listen.mqtt_port
    assert wanted is not None, "somebody wants it"
    port = await mqtt_hub(listener, settings).listen(host, wanted)
    url = front_end_url("mqtt", host, port, is_safe=listener.tls is not None)
    _log.info("mqtt.listening", url=url)


async def _listen_http(http: HttpServer, settings: Settings) -> None:
    host = settings.http.host or settings.listen.host
    wanted = settings.http.port
    try:
        port = await http.listen(host, HTTP_PORT if wanted is None else wanted)
    except AddressInUse as error:
        if wanted is not None:
            raise
        _log.warning("http.not_listening", reason=str(error))
        return
    url = front_end_url("http", host, port, is_safe=http.is_secure)
    _log.info("http.listening", url=url, serves="console, /api/v1, /metrics, /health")


def _stop_on_signals() -> asyncio.Event:
    """Set by the first signal. The second does not wait: what was acknowledged is on disk."""
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


def collect_rarely() -> None:
    """Python looks for unreachable cycles after 700 new objects, and now and then among all there
    are: with a million events in memory everybody would wait for that."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _raise_file_limit(connections: int) -> None:
    """As many open files as the connections need, within what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 1_024
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def log_recovery(realm: RunningRealm) -> None:
    """Tell what a start has found."""
    found = realm.recovered
    _log.info(
        "realm.recovered",
        channels=len(realm.directory.channels),
        events=found.events,
        journal_blocks=found.blocks,
        snapshot=found.snapshot or "none",
        damage=len(found.damage),
    )
    for damage in found.damage[:_DAMAGE_SHOWN]:
        _log.warning("realm.damage", what=damage)
    if len(found.damage) > _DAMAGE_SHOWN:
        _log.warning("realm.damage", what=f"{len(found.damage) - _DAMAGE_SHOWN} more")


def processors(quota: Path = _QUOTA) -> float:
    """Processors that may run this process; less than one where a container has only a part."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = float(len(affinity(0)) if affinity is not None else os.cpu_count() or 1)
    try:
        most, period = quota.read_text().split()
        return min(count, int(most) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # there is no quota, or the system has none
        return count


def load_later() -> asyncio.TimerHandle:
    """Load Arrow's kernels once a start is over, beside the loop. The first file of events needs
    them, and would be made 70 ms of a processor later, in the middle of its publishers' work."""
    loop = asyncio.get_running_loop()
    load = partial(loop.run_in_executor, None, importlib.import_module, "pyarrow.compute")
    return loop.call_later(LOAD_AFTER_S, load)


def linger(realm: RunningRealm, settings: Settings) -> None:
    """Have the realm stay awake for clients that publish one after the other, where there is a
    processor for the client meanwhile."""
    if settings.listen.linger_us and processors() >= _PROCESSORS_MIN:
        realm.shard.linger = Linger(settings.listen.linger_us / 1e6, time.perf_counter)


def log_limits(settings: Settings) -> None:
    """Tell the limits in force."""
    _log.info(
        "realm.limits",
        event_bytes=settings.limits.max_event_bytes,
        memory_bytes=settings.limits.memory_bytes,
        off_heap_bytes=settings.limits.off_heap_bytes,
        paged_bytes=settings.limits.paged_bytes,
        unsealed_bytes=settings.limits.unsealed_bytes,
        connections=settings.listen.connections_max,
    )


def first_failure(failures: BaseExceptionGroup[PenstockError]) -> PenstockError:
    """The first error of a group."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, PenstockError), "the group holds nothing else"
    return first
