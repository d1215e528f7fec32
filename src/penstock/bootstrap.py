"""The composition root: the only module that knows which adapters exist."""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import secrets
import socket
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from penstock import __version__
from penstock.client.link import Link
from penstock.client.session import Session as AioSession
from penstock.client.sync import Session
from penstock.client.threads import LoopThread
from penstock.client.urls import SCHEME, Address, RealmUrl
from penstock.core import channel_types, durables, engines
from penstock.core.ports import Blobs, Clock, Journal, Registry
from penstock.core.state import Rules
from penstock.frontends.native import NativeLimits, NativeListener
from penstock.logs import configure_unless_done
from penstock.runtime.clock import SystemClock
from penstock.runtime.realm import Limits, RunningRealm
from penstock.runtime.sealing import SealingLimits
from penstock.settings import Settings, load
from penstock.storage.disk import RealDisk
from penstock.storage.embedded import open_embedded
from penstock.storage.memory import MemoryBlobs, MemoryJournal, MemoryRegistry

IDENTITY_KEY = "identity"


def registered(package: ModuleType, export: str) -> Mapping[str, Any]:
    """Every ``export`` of the modules in ``package``: the folder is the registry."""
    found: dict[str, Any] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        thing = getattr(importlib.import_module(f"{package.__name__}.{module}"), export)
        if thing.name != module:
            raise TypeError(f"{module}.py must define {module!r}, not {thing.name!r}")
        found[module] = thing
    return MappingProxyType(found)


def rules(settings: Settings | None = None) -> Rules:
    """The registries of channel types, engines and durable types, and the realm's limits."""
    return Rules(
        types=registered(channel_types, "TYPE"),
        engines=registered(engines, "ENGINE"),
        kinds=registered(durables, "KIND"),
        event_bytes_max=(settings or Settings()).limits.max_event_bytes,
    )


async def open_realm(directory: Path | None, settings: Settings) -> RunningRealm:
    """Open a data directory (None: a realm in memory) and recover what it holds.

    Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``StorageFailed``.
    """
    clock = SystemClock()
    journal, blobs, registry = await _stores(directory, clock)
    try:
        return await RunningRealm.open(
            journal,
            blobs,
            rules(settings),
            clock,
            asyncio.to_thread,
            identity=await _identity(registry),
            name=settings.name,
            limits=_limits(settings),
            sealing=_sealing(settings),
        )
    except BaseException:
        await journal.close()
        raise


async def _stores(directory: Path | None, clock: Clock) -> tuple[Journal, Blobs, Registry]:
    if directory is None:
        return MemoryJournal(), MemoryBlobs(), MemoryRegistry()
    return await asyncio.to_thread(
        lambda: open_embedded(
            str(directory.expanduser().absolute()),
            disk=RealDisk(),
            offload=asyncio.to_thread,
            clock=clock,
            identity=lambda: secrets.randbits(64),
            holder=f"the process {os.getpid()}",
        )
    )


async def _identity(registry: Registry) -> str:
    """Names this realm for ever; made at its first start."""
    record = await registry.get(IDENTITY_KEY)
    if record is None:
        await registry.cas(IDENTITY_KEY, 0, secrets.token_hex(16).encode())
        record = await registry.get(IDENTITY_KEY)
        assert record is not None, "it was just written"
    return record.value.decode()


def _limits(settings: Settings) -> Limits:
    return Limits(
        event_bytes_max=settings.limits.max_event_bytes,
        memory_bytes_max=settings.limits.memory_bytes,
        stage_bytes_max=settings.limits.stage_bytes,
        tail_bytes_max=settings.limits.unsealed_bytes,
        sweep_interval_s=settings.storage.sweep_interval_ms / 1_000,
    )


def _sealing(settings: Settings) -> SealingLimits:
    return SealingLimits(
        segment_bytes_max=settings.storage.segment_bytes,
        journal_bytes_max=settings.storage.journal_bytes,
        interval_s=settings.storage.seal_interval_ms / 1_000,
    )


def native_listener(realm: RunningRealm, settings: Settings, version: str) -> NativeListener:
    return NativeListener(
        realm,
        version,
        NativeLimits(
            hello_timeout_s=settings.listen.hello_timeout_s,
            idle_timeout_s=settings.listen.idle_timeout_s,
            connections_max=settings.listen.connections_max,
        ),
    )


class Realm:
    """A realm embedded in this process: the server's code without the network.

    ``with penstock.Realm("./data") as realm, realm.connect() as session: ...``
    Without a directory it lives in memory and is gone when closed.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """``settings`` by path, dots as double underscores: ``limits__memory_bytes=...``.

        Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``StorageFailed``.
        """
        configure_unless_done()
        overrides = {path.replace("__", "."): value for path, value in settings.items()}
        self._settings = load(overrides=overrides)
        self._directory = None if directory is None else Path(directory)
        self._loop = LoopThread()
        self._running: RunningRealm | None = None
        self._sessions: weakref.WeakSet[AioSession] = weakref.WeakSet()
        self._closed = False
        try:
            self._loop.call(self._start())
        except BaseException:
            self._loop.close()
            raise

    async def _start(self) -> None:
        realm = await open_realm(self._directory, self._settings)
        self._running = realm
        self._listener = native_listener(realm, self._settings, __version__)
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._serving = loop.create_task(realm.run(), name="penstock-realm")
        self._listening = loop.create_task(self._listener.run(ready), name="penstock-listener")
        await ready.wait()

    def connect(self) -> Session:
        """A session with this realm, in this process."""
        inner = AioSession(RealmUrl((Address("embedded", 0),)), connector=self._connect)
        self._loop.call(inner.open())
        self._sessions.add(inner)
        return Session(inner, self._loop)

    async def _connect(self, make: Callable[[], Link]) -> Link:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        await self._listener.adopt(ours)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(make, sock=theirs)
        return link

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Let other processes in, too; gives the URL to connect to. Raises ``AddressInUse``."""
        bound = self._loop.call(self._listener.listen(host, port))
        return f"{SCHEME}{Address(host, bound)}"

    def close(self) -> None:
        """Stop serving; everything acknowledged is on disk."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.call(self._stop())
        finally:
            self._loop.close()

    async def _stop(self) -> None:
        realm = self._running
        assert realm is not None, "it was started"
        for session in list(self._sessions):
            await session.close()
        await self._listener.close()
        try:
            await realm.close()
        finally:
            self._listening.cancel()
            await asyncio.wait([self._listening, self._serving])
            await realm.release()
        failure = self._serving.exception()
        if isinstance(failure, BaseExceptionGroup):  # the journal failed: say so, once
            raise failure.exceptions[0]

    def __enter__(self) -> Realm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
