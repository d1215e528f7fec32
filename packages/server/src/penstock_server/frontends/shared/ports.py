"""Listening ports that a process holds for its lifetime, even while no service uses them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Final

from penstock_core.vocabulary.errors import AddressInUse, InvalidArgument

BACKLOG: Final = 100
"""Maximum number of connections that the system queues before they are accepted."""


class HeldPorts:
    """Sockets that listen from the start of the process. A service gets copies of a port's sockets.
    When the service closes its copies, new connections wait for the next service instead of being
    refused. So a port that refuses connections proves that the process has ended."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], list[socket.socket]] = {}

    async def hold(self, host: str, port: int) -> int:
        """Listen at every address of ``host`` and return the port. Raises ``AddressInUse``,
        ``InvalidArgument``."""
        loop = asyncio.get_running_loop()
        sockets: list[socket.socket] = []
        try:
            addresses = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(addresses):
                sockets.append(listening_socket(family, address))
        except OSError as error:
            for sock in sockets:
                sock.close()
            raise refused(error, host, port, remedy="") from error
        bound: int = sockets[0].getsockname()[1]
        self._held[host, bound] = sockets
        return bound

    def copies(self, host: str, port: int) -> list[socket.socket]:
        """Return copies of a held port's sockets, for a service."""
        return [sock.dup() for sock in self._held[host, port]]

    def close(self) -> None:
        """Close the ports; new connections are then refused."""
        for sockets in self._held.values():
            for sock in sockets:
                sock.close()
        self._held.clear()


class SocketServers:
    """The servers of one held port, with one server per socket."""

    def __init__(self, servers: Sequence[asyncio.Server]) -> None:
        self._servers = servers

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return [sock for server in self._servers for sock in server.sockets]

    def close(self) -> None:
        """Accept no more connections; those accepted stay."""
        for server in self._servers:
            server.close()


async def open_server(
    make: Callable[[], asyncio.BaseProtocol], host: str, port: int, held_ports: HeldPorts | None
) -> asyncio.Server | SocketServers:
    """Accept plain connections, at a held port or at a new one. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    if held_ports is None:
        return await loop.create_server(make, host, port)
    sockets = held_ports.copies(host, port)
    return SocketServers([await loop.create_server(make, sock=sock) for sock in sockets])


def refused(error: OSError, host: str, port: int, remedy: str) -> AddressInUse | InvalidArgument:
    """Return the error for a port that cannot be opened. ``remedy`` is appended to the advice."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"port {port} of {host} is in use by another process; stop it, or choose another port "
            f"(0 takes any free port){remedy}"
        )
    return InvalidArgument(f"cannot listen on {host}:{port}: {error.strerror or error}")


def listening_socket(family: int, address: object) -> socket.socket:
    """Return a listening socket at one address. Raises ``OSError``."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart need not wait until the connections of the earlier process have timed out.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Otherwise the socket would also occupy the IPv4 port, which has a separate socket.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)  # noqa: FBT003 - positional-only
        sock.bind(address)  # type: ignore[arg-type]  # a value from getaddrinfo
        sock.listen(BACKLOG)
    except OSError:
        with contextlib.suppress(OSError):
            sock.close()
        raise
    return sock
