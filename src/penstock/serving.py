"""The server: a realm, its listener, and an orderly end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path

import pyarrow as pa
import structlog

from penstock import __version__
from penstock.bootstrap import native_listener, open_realm
from penstock.client.threads import fast_loop
from penstock.core.errors import PenstockError
from penstock.frontends.native import NativeListener, check_loopback
from penstock.runtime.realm import RunningRealm
from penstock.settings import Settings

_log = structlog.get_logger("penstock.realm")

_DAMAGE_SHOWN = 10
"""Lines about damage in the start-up log; it stays one screen."""


class _NoPandas:
    """Finds that there is no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a server has no use for pandas", name=name)


def leave_pandas_out() -> None:
    """Have Arrow decide, once and for all, that it works without pandas in this process.

    Where pandas is installed the first array made of Python values would import it: a third of
    a second in which nobody is served, and memory for nothing.
    """
    absent = _NoPandas()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(absent)


def serve(directory: Path, settings: Settings) -> None:
    """Serve a data directory until SIGTERM or SIGINT; everything acknowledged is on disk then.

    A second signal ends the process at once. Raises ``DataDirectoryInUse``, ``NewerFormat``,
    ``InvalidArgument``, ``AddressInUse``, and ``StorageFailed`` when the journal cannot be
    written any more.
    """
    check_loopback(settings.listen.host)
    leave_pandas_out()
    _raise_file_limit(settings.listen.connections_max)
    with asyncio.Runner(loop_factory=fast_loop) as runner:
        runner.run(_serve(directory.absolute(), settings))


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
    realm = await open_realm(directory, settings)
    try:
        _log_recovery(realm)
        _log_limits(settings)
        await run(realm, native_listener(realm, settings, __version__), settings, stopping)
    finally:
        await realm.release()
    _log.info("realm.stopped", on_disk="everything acknowledged")


async def run(
    realm: RunningRealm, listener: NativeListener, settings: Settings, stopping: asyncio.Event
) -> None:
    """Serve an opened realm until ``stopping`` is set; the caller releases it.

    Raises ``AddressInUse``, ``InvalidArgument``, ``StorageFailed``.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(realm.run(), name="realm")
            ready = asyncio.Event()
            listening = tasks.create_task(listener.run(ready), name="listener")
            try:
                await ready.wait()
                port = await listener.listen(settings.listen.host, settings.listen.port)
                _log.info("realm.listening", url=_url(settings.listen.host, port))
                await stopping.wait()
            finally:
                await listener.close()
            await realm.close()
            listening.cancel()
    except* PenstockError as failures:
        raise _first(failures) from None


def _stop_on_signals() -> asyncio.Event:
    """Set by the first signal. The second does not wait: what was acknowledged is on disk."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if stopping.is_set():
            _log.warning("realm.abandoned", signal=number.name)
            os._exit(128 + number)
        _log.info("realm.stopping", signal=number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    return stopping


def _raise_file_limit(connections: int) -> None:
    """As many open files as the connections need, within what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 1_024
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _log_recovery(realm: RunningRealm) -> None:
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


def _log_limits(settings: Settings) -> None:
    _log.info(
        "realm.limits",
        event_bytes=settings.limits.max_event_bytes,
        memory_bytes=settings.limits.memory_bytes,
        off_heap_bytes=settings.limits.off_heap_bytes,
        paged_bytes=settings.limits.paged_bytes,
        unsealed_bytes=settings.limits.unsealed_bytes,
        connections=settings.listen.connections_max,
    )


def _url(host: str, port: int) -> str:
    return f"penstock://[{host}]:{port}" if ":" in host else f"penstock://{host}:{port}"


def _first(failures: BaseExceptionGroup[PenstockError]) -> PenstockError:
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, PenstockError), "the group holds nothing else"
    return first
