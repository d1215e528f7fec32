"""A realm embedded in a process, for blocking callers.

This is a separate module because it imports the client, which a server process does not need.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.credentials import current_user
from penstock.client.connection.threads import LoopThread
from penstock.client.connection.transport import Link
from penstock.client.connection.urls import SCHEME, TLS_SCHEME, Address, RealmUrl
from penstock.client.handles.session import Session as AioSession
from penstock.client.sync.sync import Session
from penstock_core.access.rights import Principal
from penstock_core.display import safe_repr
from penstock_core.loggers import set_up_later
from penstock_core.tasks import start_task
from penstock_core.version import __version__
from penstock_core.vocabulary.errors import ConnectionLost
from penstock_server.bootstrap import native_listener, open_realm, with_certificate
from penstock_server.bootstrap.front_end_urls import front_end_url
from penstock_server.frontends.front_end import front_end_named, service_of
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.realm import RunningRealm
from penstock_server.settings.loading import load


def embedded_url(user: str) -> RealmUrl:
    """Return the URL of a session within this process."""
    return RealmUrl((Address("embedded", 0),), user)


def _set_up_log() -> None:
    """Configure the log when the first line is written, because most embedded realms write none."""
    from penstock_server.logs import configure_unless_done

    configure_unless_done()


class Realm:
    """A realm embedded in this process, which runs the server's code without the network.

    ``with penstock.Realm("./data") as realm, realm.connect() as session: ...``
    Without a directory the realm is kept in memory and lost when it is closed.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """Open the realm. ``settings`` are named by their path with double underscores instead of
        dots: ``limits__memory_bytes=...``.

        Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``StorageFailed``.
        """
        set_up_later(_set_up_log)
        overrides = {path.replace("__", "."): value for path, value in settings.items()}
        self.settings = load(overrides=overrides)
        """The settings of the realm; a front end reads them when it begins to listen."""
        self._directory = None if directory is None else Path(directory)
        self.loop = self._new_loop()
        """The thread on which the realm and its sessions run."""
        self._connections: weakref.WeakSet[RealmConnection] = weakref.WeakSet()
        self._parts: dict[str, asyncio.Task[None]] = {}
        """Background tasks of front ends by name."""
        self._failures: list[BaseException] = []
        """Failures of the realm's tasks, oldest first; ``close`` raises the first one."""
        self._closed = False
        try:
            self.loop.call(self._start())
        except BaseException:
            self.loop.close()
            raise

    def _new_loop(self) -> LoopThread:
        """Return a new thread with an event loop, on which the realm and its sessions run."""
        return LoopThread()

    async def _open(self) -> RunningRealm:
        return await open_realm(self._directory, self.settings)

    async def _start(self) -> None:
        realm = await self._open()
        self.running = realm
        """The server's objects behind this realm, for programs that observe or extend it; use
        them on ``loop``."""
        self.settings = with_certificate(self._directory, self.settings)
        self.listener = native_listener(realm, self.settings, __version__)
        """Accepts the realm's native connections. Its ``services`` are the running front ends, such
        as HTTP and MQTT."""
        ready = asyncio.Event()
        self._serving = self._start_part(realm.run(), "penstock-realm")
        self._listening = self._start_part(self.listener.run(ready), "penstock-listener")
        await ready.wait()

    def _start_part(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return start_task(work, name=name, on_failure=self._failures.append)

    def connect(self, user: str = "") -> Session:
        """Open a session with this realm, in this process. The session has all rights; with a
        ``user``, which needs no password here, it has the rights of ``user@localhost``."""
        return Session(self.loop.call(self._session(user)), self.loop)

    async def _session(self, user: str) -> AioSession:
        """Open a session on the realm's event loop."""
        connection = self._new_connection(user)
        await connection.open()
        self._connections.add(connection)
        return AioSession(connection)

    def _new_connection(self, user: str) -> RealmConnection:
        return RealmConnection(embedded_url(user), connector=lambda make: self._connect(make, user))

    async def _connect(self, make: Callable[[], Link], user: str) -> Link:
        client_end = await self._admit(user)
        _, link = await asyncio.get_running_loop().connect_accepted_socket(make, client_end)
        return link

    def admit(self, user: str = "") -> socket.socket:
        """Return the client's end of a connection within this process, for a session on another
        event loop."""
        return self.loop.call(self._admit(user))

    async def _admit(self, user: str) -> socket.socket:
        principal = Principal(user or current_user(), "localhost", trusted=not user)
        realm_end, client_end = socket.socketpair()
        realm_end.setblocking(False)  # noqa: FBT003 - positional-only
        client_end.setblocking(False)  # noqa: FBT003 - positional-only
        try:
            await self.listener.adopt(realm_end, principal)
        except BaseException:
            client_end.close()
            raise
        return client_end

    @safe_repr
    def __repr__(self) -> str:
        where = "in memory" if self._directory is None else f"in {str(self._directory)!r}"
        return f"<Realm {where}, {'closed' if self._closed else 'open'}>"

    @property
    def open_sessions(self) -> int:
        """Number of open sessions that :meth:`connect` has opened."""
        return sum(connection.is_connected for connection in self._connections)

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Accept connections of other processes, too, and return the URL to connect to. Raises
        ``AddressInUse``."""
        bound = self.loop.call(self.listener.listen(host, port))
        scheme = SCHEME if self.listener.tls is None else TLS_SCHEME
        return f"{scheme}{Address(host, bound)}"

    def listen_amqp(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve AMQP clients, and return their URL. Raises ``AddressInUse``,
        ``InvalidArgument``."""
        return self.loop.call(self._serve("amqp", host, port))

    def listen_mqtt(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve MQTT clients, and return their URL. Raises ``AddressInUse``,
        ``InvalidArgument``."""
        return self.loop.call(self._serve("mqtt", host, port))

    async def _serve(self, name: str, host: str, port: int) -> str:
        is_new = name not in self.listener.services
        service = service_of(self.listener, name, self.settings)
        if is_new:
            self._parts[name] = self._start_part(service.run(), f"penstock-{name}")
        bound = await service.listen(host, port)
        is_safe = self.listener.tls is not None
        return front_end_url(front_end_named(name), host, bound, is_safe=is_safe)

    @property
    def access(self) -> AccessControl:
        """Users, groups and rights of this realm."""
        return self.running.access

    def listen_http(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve the administration API, metrics and the console, and return their URL.

        Raises ``AddressInUse``, ``InvalidArgument``.
        """
        return self.loop.call(self._serve("http", host, port))

    def close(self) -> None:
        """Stop serving. All acknowledged data is on disk on return."""
        if self._closed:
            return
        self._closed = True
        try:
            self.loop.call(self._stop())
        finally:
            self.loop.close()

    async def _stop(self) -> None:
        realm = self.running
        for connection in list(self._connections):
            # The session has reported this error already, and the realm must stop in any case.
            with contextlib.suppress(ConnectionLost):
                await connection.close()
        # The services end before the listener, whose connections they use.
        for name, service in self.listener.services.items():
            await service.close()
            self._parts[name].cancel()
        if self._parts:
            await asyncio.wait(self._parts.values())
        await self.listener.close()
        try:
            await realm.close()
        finally:
            self._listening.cancel()
            await asyncio.wait([self._listening, self._serving])
            await realm.release()
        for failure in self._failures:  # the first failure is the cause of later ones
            raise failure.exceptions[0] if isinstance(failure, BaseExceptionGroup) else failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
