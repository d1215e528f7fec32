"""The lifecycle of a realm in a server: its front ends, its log lines at the start, and its end.

Single realms, cluster nodes and the local channels of a node use it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from penstock_core.garbage import uncollected
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import AddressInUse, InvalidArgument, PenstockError
from penstock_core.wire.addresses import is_loopback
from penstock_server.bootstrap import notifying
from penstock_server.bootstrap.front_end_urls import front_end_url
from penstock_server.frontends.front_end import (
    NATIVE,
    FrontEnd,
    front_end_named,
    front_ends,
    service_of,
)
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.tls import Tls
from penstock_server.parts import install_line, loaded
from penstock_server.runtime.access.accounts import FIRST_USER
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.writer.linger import Linger
from penstock_server.settings import Settings

_log = logger("penstock.realm")

_DAMAGE_LINES_MAX = 10
"""Maximum number of lines about damage in the start-up log."""


_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""File with a container's quota of processor time and its period, both in microseconds."""
_PROCESSORS_MIN = 2
"""Number of processors from which on polling pays: one for the realm, and one for its client."""
COLLECT_AFTER = (10_000, 20, 50)
"""Thresholds of Python's garbage collector."""
TELEMETRY: Final = "penstock.telemetry"
"""Entry point group of ways to send metrics and spans to other systems."""
LOAD_AFTER_S: Final = 0.2
"""Seconds after the realm listens at which it imports modules that the start postpones."""


class SendTelemetry(Protocol):
    """Sends metrics and spans of a realm until it is cancelled. Raises ``InvalidArgument`` if it
    cannot begin; later failures do not end it."""

    async def __call__(
        self, realm: RunningRealm, listener: NativeListener, settings: Settings
    ) -> None: ...


def wanted_front_ends(settings: Settings) -> Sequence[FrontEnd]:
    """Return the configured front ends other than the native one, in the order in which to open
    them. Raises ``InvalidArgument`` if the package of a front end is not installed."""
    loaded = front_ends()
    for name, port in (("amqp", settings.listen.amqp_port), ("mqtt", settings.listen.mqtt_port)):
        if port is not None and name not in loaded:
            raise InvalidArgument(
                f"listen.{name}_port is {port}, but no installed package serves {name}: "
                f"{install_line(name)}, or leave listen.{name}_port out"
            )
    return [
        front_end
        for name, front_end in loaded.items()
        if name != NATIVE and front_end.place(settings) is not None
    ]


async def run(
    realm: RunningRealm,
    listener: NativeListener,
    settings: Settings,
    stopping: asyncio.Event,
    front_ends: Sequence[FrontEnd] = (),
) -> None:
    """Serve an open realm over the native protocol and ``front_ends`` until ``stopping`` is set;
    the caller releases the realm.

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
                for front_end in front_ends:
                    await _load(front_end)
                    service = service_of(listener, front_end.name, settings)
                    serving.append(tasks.create_task(service.run(), name=front_end.name))
                    await _listen(front_end, listener, settings)
                if settings.telemetry.endpoint:
                    # Loaded through the entry point, so that other realms do not load its modules.
                    send: SendTelemetry = loaded(
                        TELEMETRY, "otlp", use="telemetry.endpoint asks for OpenTelemetry"
                    )
                    sending = send(realm, listener, settings)
                    serving.append(tasks.create_task(sending, name="telemetry"))
                _warn_without_tls(listener, settings)
                is_safe = listener.tls is not None
                native = front_end_named(NATIVE)
                url = front_end_url(native, settings.listen.host, port, is_safe=is_safe)
                # Last, so that all ports are open when `realm.listening` appears in the log.
                native.log_listening(url)
                notifying.ready(f"listening on {url}")
                loading = load_later()
                await stopping.wait()
                loading.cancel()
            finally:
                for service in listener.services.values():
                    await service.close()
                await listener.close()
            # After the front ends, so that no request arrives while the realm closes.
            await realm.close()
            # These tasks do not end by themselves, and the group waits for all its tasks.
            for task in serving:
                task.cancel()
    except* PenstockError as failures:
        raise first_failure(failures) from None


async def _load(front_end: FrontEnd) -> None:
    """Import the modules of a front end in a thread; the native port, which is open already, is
    served meanwhile."""
    if all(name in sys.modules for name in front_end.modules):
        return
    with uncollected():
        for name in front_end.modules:
            # The service of the front end reports what is missing in its own words.
            with suppress(ImportError):
                await asyncio.to_thread(importlib.import_module, name)
    if gc.get_freeze_count():  # a server's process, whose modules are not collected
        collect_rarely()


async def _listen(front_end: FrontEnd, listener: NativeListener, settings: Settings) -> None:
    place = front_end.place(settings)
    assert place is not None, "wanted_front_ends returns only front ends with an address"
    try:
        port = await listener.services[front_end.name].listen(place.host, place.port)
    except AddressInUse as error:
        if place.is_required:
            raise
        front_end.log_left_out(str(error))
        return
    is_safe = listener.tls is not None
    front_end.log_listening(front_end_url(front_end, place.host, port, is_safe=is_safe))


def show_first_password(realm: RunningRealm, *, as_json: bool = False) -> None:
    """Print the password of the first administrator once, to standard output. It is not logged,
    because others may read the log. ``as_json`` prints a line of JSON, for programs that read
    standard output together with the log."""
    password, realm.access.first_password = realm.access.first_password, ""
    if password and as_json:
        line = {"event": "access.first_administrator", "user": FIRST_USER, "password": password}
        sys.stdout.write(f"{json.dumps(line)}\n")
        sys.stdout.flush()
    elif password:
        sys.stdout.write(
            f"First administrator of this realm: user {FIRST_USER}, password {password}\n"
            "The password is shown only once. Change it with: penstock user password "
            f"{FIRST_USER}\n"
        )
        sys.stdout.flush()


def reload(realm: RunningRealm, listener: NativeListener) -> None:
    """Read certificates and token keys again; connections stay open. If a file is not valid, this
    is logged, and its previous content stays in use."""
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
    """Read a certificate again and return True. If its files are not valid, log this and return
    False; the previous certificate stays in use."""
    try:
        certificate.reload()
    except InvalidArgument as error:
        _log.error("realm.not_reloaded", reason=str(error))
        return False
    return True


def _warn_without_tls(listener: NativeListener, settings: Settings) -> None:
    """Log a warning if events and passwords travel over the network without encryption."""
    hosts = {settings.listen.host, settings.http.host or settings.listen.host}
    reachable = sorted(host for host in hosts if not is_loopback(host))
    if listener.tls is None and reachable:
        _log.warning(
            "network.without_tls",
            hosts=reachable,
            passwords="taken" if settings.access.cleartext_passwords else "refused",
            remedy="set listen.tls_certificate and listen.tls_key, or listen.tls_self_signed",
        )


def collect_rarely() -> None:
    """Make Python's garbage collector run less often. By default it runs after 700 new objects,
    and its full collections would block all clients if a million events are in memory."""
    # Objects that exist after the start live as long as the process: collections need not visit
    # them.
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def log_recovery(realm: RunningRealm) -> None:
    """Log the content that the start has recovered, and any damage."""
    recovered = realm.recovered
    _log.info(
        "realm.recovered",
        channels=len(realm.directory.channels),
        events=recovered.events,
        journal_blocks=recovered.blocks,
        snapshot=recovered.snapshot or "none",
        damage=len(recovered.damage),
    )
    for damage in recovered.damage[:_DAMAGE_LINES_MAX]:
        _log.warning("realm.damage", what=damage)
    if len(recovered.damage) > _DAMAGE_LINES_MAX:
        _log.warning("realm.damage", what=f"{len(recovered.damage) - _DAMAGE_LINES_MAX} more")


def processors(quota: Path = _QUOTA) -> float:
    """Return the number of processors that this process may use; less than 1 if a container's quota
    is a fraction of one processor."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = float(len(affinity(0)) if affinity is not None else os.cpu_count() or 1)
    try:
        most, period = quota.read_text().split()
        return min(count, int(most) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no quota is set, or not supported here
        return count


def load_later(after_s: float = LOAD_AFTER_S) -> asyncio.TimerHandle:
    """Import Arrow's kernels in a thread after the start. The first segment file needs them;
    importing them then would delay publishers by 70 ms."""
    loop = asyncio.get_running_loop()
    load = partial(loop.run_in_executor, None, importlib.import_module, "pyarrow.compute")
    return loop.call_later(after_s, load)


def linger(realm: RunningRealm, settings: Settings, processor_count: float) -> None:
    """Make the realm poll for clients that publish events one by one, if another of the processors
    is left for the client (see :func:`processors`)."""
    if settings.listen.linger_us and processor_count >= _PROCESSORS_MIN:
        realm.shard.linger = Linger(settings.listen.linger_us / 1e6, time.perf_counter)


def log_limits(settings: Settings) -> None:
    """Log the limits in force."""
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
    """Return the first error of a group."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, PenstockError), "the group has only PenstockErrors"
    return first
