"""An embedded realm for asyncio, which runs on a separate thread; its sessions run on the caller's
event loop."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.transport import Link
from penstock.client.handles.opening import Opening
from penstock.client.handles.session import Session
from penstock_core.display import safe_repr
from penstock_core.vocabulary.errors import IllegalState
from penstock_server.bootstrap.embedded_realm import Realm as BlockingRealm
from penstock_server.bootstrap.embedded_realm import embedded_url
from penstock_server.runtime.access.access import AccessControl


class Realm:
    """A realm embedded in this process, which runs the server's code without the network.

    ``async with penstock.aio.Realm("./data") as realm, realm.connect() as session: ...``
    Without a directory the realm is kept in memory and lost when it is closed. It runs on a
    separate thread, so code that blocks your event loop does not block the realm.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """Prepare the realm; :meth:`open` opens it. ``settings`` are named by their path with
        double underscores instead of dots: ``limits__memory_bytes=...``."""
        self._directory = directory
        self._settings = settings
        self._realm: BlockingRealm | None = None
        self._connections: weakref.WeakSet[RealmConnection] = weakref.WeakSet()

    @classmethod
    def sharing(cls, realm: BlockingRealm) -> Realm:
        """Return a view of an open realm that blocking callers can also use; its :meth:`close`
        closes the realm for all of them."""
        shared = cls()
        shared._realm = realm
        return shared

    async def open(self) -> Realm:
        """Open the directory and serve it; ``async with`` calls this method.

        Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``StorageFailed``.
        """
        if self._realm is None:
            opening = asyncio.get_running_loop().run_in_executor(
                None, lambda: BlockingRealm(self._directory, **self._settings)
            )
            try:
                self._realm = await asyncio.shield(opening)
            except asyncio.CancelledError:
                # The thread cannot be cancelled. Without this, the directory would stay in use.
                opening.add_done_callback(_close_again)
                raise
        return self

    @property
    def _open(self) -> BlockingRealm:
        if self._realm is None:
            raise IllegalState("the realm is not open; open it with async with, or await open()")
        return self._realm

    def connect(self, user: str = "") -> Opening:
        """Open a session with this realm, on the running event loop, with the rights of a session
        of the blocking realm. Await the result, or use it in ``async with``, which closes the
        session."""

        async def opened() -> Session:
            realm = self._open
            connection = RealmConnection(
                embedded_url(user), connector=lambda make: _link(realm, make, user)
            )
            await connection.open()
            self._connections.add(connection)
            return Session(connection)

        return Opening(opened())

    @property
    def open_sessions(self) -> int:
        """Number of open sessions that :meth:`connect` has opened."""
        return sum(connection.is_connected for connection in self._connections)

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Accept connections of other processes, too, and return the URL to connect to. Raises
        ``AddressInUse``."""
        return await asyncio.to_thread(self._open.listen, host, port)

    async def listen_amqp(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve AMQP clients, and return their URL. Raises ``AddressInUse``,
        ``InvalidArgument``."""
        return await asyncio.to_thread(self._open.listen_amqp, host, port)

    async def listen_mqtt(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve MQTT clients, and return their URL. Raises ``AddressInUse``,
        ``InvalidArgument``."""
        return await asyncio.to_thread(self._open.listen_mqtt, host, port)

    async def listen_http(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve the administration API, metrics and the console, and return their URL.

        Raises ``AddressInUse``, ``InvalidArgument``.
        """
        return await asyncio.to_thread(self._open.listen_http, host, port)

    @safe_repr
    def __repr__(self) -> str:
        return "<Realm, not open>" if self._realm is None else repr(self._realm)

    @property
    def access(self) -> AccessControl:
        """Users, groups and rights of this realm."""
        return self._open.access

    async def close(self) -> None:
        """End the sessions and stop serving. All acknowledged data is on disk on return."""
        realm, self._realm = self._realm, None
        if realm is None:
            return
        try:
            for connection in list(self._connections):
                await connection.close()
        finally:
            await asyncio.to_thread(realm.close)

    async def __aenter__(self) -> Realm:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def _link(realm: BlockingRealm, make: Callable[[], Link], user: str) -> Link:
    """Connect the running event loop to the realm, which runs in another thread."""
    client_end = await asyncio.to_thread(realm.admit, user)
    _, link = await asyncio.get_running_loop().connect_accepted_socket(make, client_end)
    return link


def _close_again(opening: asyncio.Future[BlockingRealm]) -> None:
    """Close a realm whose opening was cancelled by its caller."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
