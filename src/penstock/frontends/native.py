"""The native protocol's listener: accepts connections, keeps them honest, ends them in order."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Coroutine
from typing import Any

import structlog
from msgspec import Struct

from penstock.core.errors import AddressInUse, InvalidArgument, RealmStopping
from penstock.frontends.connection import Connection
from penstock.runtime.realm import RunningRealm

_log = structlog.get_logger("penstock.native")


class NativeLimits(Struct, frozen=True):
    hello_timeout_s: float = 10.0
    """A connection that has not said who it is by then is closed."""
    idle_timeout_s: float = 45.0
    """A connection that has been silent this long is taken for dead; clients ping before."""
    connections_max: int = 10_000
    check_interval_s: float = 1.0


class NativeListener:
    """All native connections of a realm."""

    def __init__(self, realm: RunningRealm, version: str, limits: NativeLimits) -> None:
        self.realm = realm
        self.version = version
        self.limits = limits
        self.connections: set[Connection] = set()
        self._sessions: dict[str, Connection] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._servers: list[asyncio.Server] = []
        self._stopping = False
        self.pending_bytes = 0
        """Bytes of publishes not answered yet, over all connections."""

    async def run(self, ready: asyncio.Event) -> None:
        """Hold the tasks of all connections until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            ready.set()
            await self._check_forever()

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; gives the port. Raises ``AddressInUse``, ``InvalidArgument``."""
        check_loopback(host)
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: Connection(self), host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    f"port {port} of {host} is taken by another process; stop it, or choose "
                    "another port (--port 0 takes any free one)"
                ) from error
            raise InvalidArgument(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def adopt(self, sock: socket.socket) -> None:
        """Serve one connected socket: the embedded realm's way in."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Connection(self), sock=sock)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a connection's request beside the others."""
        assert self._tasks is not None, "run() has been started"
        self._tasks.create_task(work)

    # --- connections coming and going ----------------------------------------------------

    def opened(self, connection: Connection) -> bool:
        if self._stopping or len(self.connections) >= self.limits.connections_max:
            return False
        self.connections.add(connection)
        self.realm.connections = len(self.connections)
        return True

    def greeted(self, connection: Connection) -> None:
        """A session has said hello; if an older connection of it lingers, it is over."""
        older = self._sessions.get(connection.session)
        self._sessions[connection.session] = connection
        if older is not None and older is not connection:
            older.end(RealmStopping("the session has reconnected"))

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.realm.connections = len(self.connections)
        if self._sessions.get(connection.session) is connection:
            del self._sessions[connection.session]

    # --- being honest --------------------------------------------------------------------

    async def _check_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.check_interval_s)
            for connection in list(self.connections):
                connection.check(loop.time())

    @property
    def is_congested(self) -> bool:
        """Whether publishers should wait: too much is waiting to be stored or sealed."""
        return self.pending_bytes > self.realm.limits.backlog_bytes_max or self.realm.is_congested

    async def close(self) -> None:
        """Take no more connections and tell those there are."""
        self._stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.end(RealmStopping("the realm is shutting down"))
        for _ in range(200):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        _log.debug("native.closed", left=len(self.connections))


def check_loopback(host: str) -> None:
    """Without authentication only this machine may come in (SEM A4); ``InvalidArgument`` else."""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not is_loopback:
        raise InvalidArgument(
            f"will not listen on {host!r}: there is no authentication yet, so everyone who "
            "reaches that address could read and delete everything; listen on 127.0.0.1, ::1 or "
            "localhost"
        )
