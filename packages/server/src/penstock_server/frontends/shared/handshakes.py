"""Accepts TLS connections, and counts each connection from the moment it is accepted.

The event loop's own server reports a connection only after its handshake. With it, connections in a
handshake would not be counted, and peers that never finish a handshake could use up the realm's
sockets.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from penstock_core.loggers import logger
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.frontends.shared.ports import HeldPorts, listening_socket

_FULL: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Error numbers if the system has no more sockets."""
_FULL_WAIT_S: Final = 1.0
"""Seconds to wait before accepting again after one of these errors."""

_log = logger("penstock.tls")


class Handshake(asyncio.Protocol):
    """A connection during its TLS handshake."""

    owes_data = True
    """The realm waits for data from the peer, so the connection may be dropped for another."""

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        now_s: float,
        make: Callable[[], asyncio.BaseProtocol],
        enter: Callable[[Handshake], bool],
        leave: Callable[[Handshake], None],
    ) -> None:
        self.sock = sock
        self.wrap: Callable[[asyncio.Transport], asyncio.Transport] | None = None
        """Wraps the transport for the protocol; None to use the transport unchanged."""
        self.address = address
        self.heard_s = now_s
        self.is_spare = False
        self._make = make
        self._enter = enter
        self._leave = leave
        self._has_place = False

    def connection_made(self, transport: Any) -> None:
        """Pass the connection to its protocol after the handshake; the protocol counts it from now
        on."""
        self.end()
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport if self.wrap is None else self.wrap(transport))

    def begin(self) -> bool:
        """Count the connection, and return whether it is admitted."""
        self._has_place = self._enter(self)
        return self._has_place

    def count_for(self, address: str) -> bool:
        """Count a relayed connection for its client's address instead, and return whether it is
        admitted."""
        self.end()
        self.address = address
        return self.begin()

    def end(self) -> None:
        """Stop counting the connection; do nothing if it is not counted."""
        if self._has_place:
            self._has_place = False
            self._leave(self)

    def abort(self) -> None:
        """Close the socket without waiting for the handshake."""
        with suppress(OSError):  # the peer has closed it already
            self.sock.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """Close the connection to make room for another."""
        self.end()
        self.abort()


BeforeTls = Callable[[Handshake], Awaitable[asyncio.BaseProtocol | None]]
"""Inspects an accepted connection before TLS begins. Returns a protocol to take it over without
TLS, or None to begin TLS. Raises ``PenstockError`` or ``OSError`` to drop the connection."""


class TlsServer:
    """A server for TLS connections, in place of the event loop's own."""

    def __init__(
        self,
        context: ssl.SSLContext,
        timeout_s: float,
        make: Callable[[], asyncio.BaseProtocol],
        enter: Callable[[Handshake], bool],
        leave: Callable[[Handshake], None],
        before: BeforeTls | None = None,
    ) -> None:
        """Begin handshakes of accepted connections.

        A connection is dropped if its handshake takes longer than ``timeout_s`` seconds or
        ``enter`` returns False; ``leave`` is called at the end of each admitted handshake.
        ``make`` creates the protocol of a connection after its handshake. ``before`` is called
        before each handshake.
        """
        self._before = before
        self._context = context
        self._timeout_s = timeout_s
        self._make = make
        self._enter = enter
        self._leave = leave
        self.sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        """Handshakes in progress. The event loop has only weak references to its tasks."""
        self._accepting: list[asyncio.Task[None]] = []

    async def listen(self, host: str, port: int, held_ports: HeldPorts | None = None) -> None:
        """Accept connections at every address of ``host``, or at a held port. Raises
        ``OSError``."""
        if held_ports is not None:
            self.sockets = held_ports.copies(host, port)
            self._accepting = [start_task(self._accept(sock)) for sock in self.sockets]
            return
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, address in dict.fromkeys(addresses):
                self.sockets.append(listening_socket(family, address))
        except OSError:
            self.close()
            raise
        self._accepting = [start_task(self._accept(sock)) for sock in self.sockets]

    def close(self) -> None:
        """Accept no more connections; those accepted stay."""
        for task in self._accepting:
            task.cancel()
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError as error:  # the peer closed before the connection was accepted
                if listening.fileno() < 0:
                    return
                if error.errno in _FULL:
                    _log.warning("tls.not_accepted", reason=str(error))
                    await asyncio.sleep(_FULL_WAIT_S)
                continue
            task = start_task(self._secure(sock, str(address[0])))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _secure(self, sock: socket.socket, address: str) -> None:
        """Make the TLS handshake of an accepted connection; refuse the connection if it is not
        admitted."""
        loop = asyncio.get_running_loop()
        handshake = Handshake(
            sock, address, loop.time(), make=self._make, enter=self._enter, leave=self._leave
        )
        is_admitted = False
        try:
            is_admitted = handshake.begin()
        finally:  # the socket must be closed even if begin() raises
            if not is_admitted:
                sock.close()
        if not is_admitted:
            return
        with suppress(OSError):  # small writes are sent immediately, as with the loop's own servers
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if not await self._handled_before_tls(handshake):
                await loop.connect_accepted_socket(
                    lambda: handshake,
                    sock,
                    ssl=self._context,
                    ssl_handshake_timeout=self._timeout_s,
                )
        except OSError as error:  # a TLS or network error or a timeout; the transport is closed
            _log.debug("tls.no_handshake", host=handshake.address, reason=str(error))
        finally:
            handshake.end()

    async def _handled_before_tls(self, handshake: Handshake) -> bool:
        """Call ``before``, and return whether it has taken over or refused the connection. Raises
        ``OSError``."""
        if self._before is None:
            return False
        protocol: asyncio.BaseProtocol | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                protocol = await self._before(handshake)
            if protocol is None:
                return False
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, handshake.sock
            )
        except BaseException as error:
            handshake.sock.close()
            if protocol is not None:
                protocol.connection_lost(OSError("the connection ended before it was taken over"))
            if isinstance(error, PenstockError):
                return True  # ``before`` has logged the refusal
            raise
        return True
