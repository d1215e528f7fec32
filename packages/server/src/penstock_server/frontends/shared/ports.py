"""Ports that a process keeps for as long as it lives, whoever serves them at the time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Final

from penstock_core.vocabulary.errors import AddressInUse, InvalidArgument

BACKLOG: Final = 100
"""Connections that the system queues for us."""


class HeldPorts:
    """Sockets that listen from the start. Whoever serves a port gets copies of its sockets: when it
    closes them, connections wait until somebody else serves the port, and are not refused. A port
    that refuses belongs to a process that is gone."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], list[socket.socket]] = {}

    async def hold(self, host: str, port: int) -> int:
        """Listen at every address of ``host``; gives the port. Raises ``AddressInUse``,
        ``InvalidArgument``."""
        loop = asyncio.get_running_loop()
        sockets: list[socket.socket] = []
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                sockets.append(listening_socket(family, address))
        except OSError as error:
            for each in sockets:
                each.close()
            raise refused(error, host, port, remedy="") from error
        bound: int = sockets[0].getsockname()[1]
        self._held[host, bound] = sockets
        return bound

    def copies(self, host: str, port: int) -> list[socket.socket]:
        """Sockets for whoever serves a port that is held."""
        return [each.dup() for each in self._held[host, port]]

    def close(self) -> None:
        """Give the ports back: whoever comes is refused."""
        for sockets in self._held.values():
            for each in sockets:
                each.close()
        self._held.clear()


class SocketServers:
    """The servers of one port, on sockets that were given."""

    def __init__(self, servers: Sequence[asyncio.Server]) -> None:
        self._servers = servers

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return [each for server in self._servers for each in server.sockets]

    def close(self) -> None:
        """Accept no more connections; those accepted stay."""
        for server in self._servers:
            server.close()


async def open_server(
    make: Callable[[], asyncio.BaseProtocol], host: str, port: int, held: HeldPorts | None
) -> asyncio.Server | SocketServers:
    """Accept plain connections, at a port that is held or at one of its own. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    if held is None:
        return await loop.create_server(make, host, port)
    sockets = held.copies(host, port)
    return SocketServers([await loop.create_server(make, sock=each) for each in sockets])


def refused(error: OSError, host: str, port: int, remedy: str) -> AddressInUse | InvalidArgument:
    """Why nobody can listen there. ``remedy`` is what may be done besides."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"port {port} of {host} is in use by another process; stop it, or choose another port "
            f"(0 takes any free one){remedy}"
        )
    return InvalidArgument(f"cannot listen on {host}:{port}: {error.strerror or error}")


def listening_socket(family: int, address: object) -> socket.socket:
    """A listening socket at one address. Raises ``OSError``."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)  # noqa: FBT003 - positional-only
        made.bind(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        made.listen(BACKLOG)
    except OSError:
        with contextlib.suppress(OSError):
            made.close()
        raise
    return made
