"""The life of a realm in a server: its front ends, its log lines at the start, and its end.

Single realms, nodes of a cluster and local channels of a node use it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.bootstrap import (
    mqtt_hub,
    notifying,
)
from penstock.bootstrap.front_end_urls import front_end_url
from penstock.core.vocabulary.errors import AddressInUse, InvalidArgument, PenstockError
from penstock.frontends.amqp import hub_of
from penstock.frontends.native.listener import NativeListener
from penstock.frontends.shared.tls import Tls
from penstock.loggers import logger
from penstock.runtime.access.accounts import FIRST_USER
from penstock.runtime.realm import RunningRealm
from penstock.runtime.writer.linger import Linger
from penstock.settings import HTTP_PORT, Settings
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


def collect_rarely() -> None:
    """Python looks for unreachable cycles after 700 new objects, and now and then among all there
    are: with a million events in memory everybody would wait for that."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


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
