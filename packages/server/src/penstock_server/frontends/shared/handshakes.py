"""Accepts TLS connections and counts each from its first moment.

An event loop's own server reports a connection only after its handshake. Until then nobody would
count it, and peers that never finish could take all sockets of the realm.
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
_FULL_WAIT_S: Final = 1.0
"""Seconds without accepting when the system has no more sockets."""

_log = logger("penstock.tls")


class Handshake(asyncio.Protocol):
    """A connection during its TLS handshake."""

    is_waited_for = True
    """Its peer has to send something, so it may be dropped for another connection."""

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
        """What the protocol gets in the place of the transport; None: the transport itself."""
        self.address = address
        self.heard_s = now_s
        self.is_spare = False
        self._make = make
        self._enter = enter
        self._leave = leave
        self._has_place = False

    def connection_made(self, transport: Any) -> None:
        """The handshake succeeded: pass the connection to its protocol, which is counted itself."""
        self.end()
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport if self.wrap is None else self.wrap(transport))

    def begin(self) -> bool:
        """Count it; gives whether there is room."""
        self._has_place = self._enter(self)
        return self._has_place

    def count_for(self, address: str) -> bool:
        """Count it for the address of the client whose connection somebody relays; gives whether
        there is room."""
        self.end()
        self.address = address
        return self.begin()

    def end(self) -> None:
        """Stop counting it, if it still is."""
        if self._has_place:
            self._has_place = False
            self._leave(self)

    def abort(self) -> None:
        """Close the socket without waiting for the handshake."""
        with suppress(OSError):  # the peer has closed it already
            self.sock.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """Close it, to make room for another."""
        self.end()
        self.abort()


BeforeTls = Callable[[Handshake], Awaitable[asyncio.BaseProtocol | None]]
"""Looks at an accepted connection before TLS begins. Gives the protocol that takes it over as it
is; None: TLS begins. Raises ``PenstockError`` or ``OSError`` for one that is to be dropped."""


class TlsServer:
    """What an event loop's server is for plain connections, for TLS."""

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

        A handshake that takes longer than ``timeout_s`` seconds is dropped, and so is one for which
        ``enter`` says that there is no room; ``leave`` is called at the end of each that had some.
        ``make`` makes the protocol for connections whose handshake succeeded. ``before`` is asked
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
        self._accepting: list[asyncio.Task[None]] = []

    async def listen(self, host: str, port: int, held: HeldPorts | None = None) -> None:
        """Accept connections at every address of ``host``, or at a port that is held. Raises
        ``OSError``."""
        if held is not None:
            self.sockets = held.copies(host, port)
            self._accepting = [start_task(self._accept(each)) for each in self.sockets]
            return
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self.sockets.append(listening_socket(family, address))
        except OSError:
            self.close()
            raise
        self._accepting = [start_task(self._accept(each)) for each in self.sockets]

    def close(self) -> None:
        """Accept no more connections; those accepted stay."""
        for task in self._accepting:
            task.cancel()
        for each in self.sockets:
            each.close()
        self.sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError as error:  # a connection that was closed at once
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
        loop = asyncio.get_running_loop()
        handshake = Handshake(
            sock, address, loop.time(), make=self._make, enter=self._enter, leave=self._leave
        )
        is_in = False
        try:
            is_in = handshake.begin()
        finally:  # whatever happens, nobody is left waiting
            if not is_in:
                sock.close()
        if not is_in:
            return
        with suppress(OSError):  # as the loops' own servers do: small writes are sent at once
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if not await self._is_taken(handshake):
                await loop.connect_accepted_socket(
                    lambda: handshake,
                    sock,
                    ssl=self._context,
                    ssl_handshake_timeout=self._timeout_s,
                )
        except OSError as error:  # of TLS, connection or time: the transport is closed
            _log.debug("tls.no_handshake", host=handshake.address, reason=str(error))
        finally:
            handshake.end()

    async def _is_taken(self, handshake: Handshake) -> bool:
        """Whether somebody else has taken a connection over before TLS. Raises ``OSError``."""
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
                protocol.connection_lost(OSError("it has ended before it began"))
            if isinstance(error, PenstockError):
                return True  # it was said by whoever has refused it
            raise
        return True
