"""A node that stands by listens at its ports, and tells everybody which node serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.frontends.amqp.standby import StandbyAmqpConnection
from penstock.frontends.http.standby import StandbyHttpConnection
from penstock.frontends.native.standby import OwnerFollowers, StandbyConnection
from penstock.frontends.shared.arrivals import Arrivals
from penstock.frontends.shared.handshakes import Handshake, TlsServer
from penstock.frontends.shared.ports import HeldPorts, SocketServers, open_server
from penstock.frontends.shared.protocol_detection import ProtocolSniffer
from penstock.frontends.shared.serving_node import FindOwner
from penstock.frontends.shared.tls import Tls
from penstock.wire.native import messages as wire

Make = Callable[[], asyncio.BaseProtocol]
PATIENCE_S = 10.0
CONNECTIONS_MAX = 1_000


class FrontEndPlaces(NamedTuple):
    """Host and port of each front end of a node; None: it has none."""

    native: tuple[str, int]
    http: tuple[str, int] | None = None
    amqp: tuple[str, int] | None = None


class StandbyListener:
    """Opened while the node stands by, and closed while it serves; both as often as it takes."""

    def __init__(
        self,
        owner: FindOwner,
        owners: Callable[[], wire.Owners],
        places: FrontEndPlaces,
        name: str,
        ports: HeldPorts | None = None,
        tls: Tls | None = None,
    ) -> None:
        """``name`` is the node's own."""
        self.is_open = False
        self._arrivals = Arrivals(owner, PATIENCE_S, CONNECTIONS_MAX)
        self._followers = OwnerFollowers(owners)
        self._places = places
        self._name = name
        self._ports = ports
        self._tls = tls
        self._servers: list[asyncio.Server | SocketServers | TlsServer] = []
        self._waiting: dict[ProtocolSniffer | Handshake, None] = {}
        """Connections whose handshake is not over, or whose first bytes are still to come."""

    async def open(self) -> None:
        """Listen at the node's ports."""
        if self.is_open:
            return
        self.is_open = True
        amqp = self._places.amqp
        await self._listen(self._places.native, self._native if amqp is None else self._sniffed)
        if amqp is not None:
            await self._listen(amqp, self._amqp)
        if self._places.http is not None:
            await self._listen(self._places.http, partial(StandbyHttpConnection, self._arrivals))

    def close(self) -> None:
        """Leave the ports to somebody else."""
        self.is_open = False
        for server in self._servers:
            server.close()
        self._servers.clear()
        for waiting in list(self._waiting):
            waiting.abort()
        self._arrivals.abort()
        self._followers.close()

    def tell_owners(self) -> None:
        """Tell clients that follow the owners what has changed."""
        if self.is_open:
            self._followers.tell()

    async def _listen(self, place: tuple[str, int], make: Make) -> None:
        if self._tls is None:
            self._servers.append(await open_server(make, *place, self._ports))
            return
        server = TlsServer(self._tls.context, PATIENCE_S, make, self._arrives, self._is_known)
        await server.listen(*place, self._ports)
        self._servers.append(server)

    def _amqp(self) -> StandbyAmqpConnection:
        return StandbyAmqpConnection(self._arrivals, self._name)

    def _native(self) -> StandbyConnection:
        return StandbyConnection(self._arrivals, self._followers)

    def _sniffed(self) -> ProtocolSniffer:
        return ProtocolSniffer(self._native, self._amqp, PATIENCE_S, self._arrives, self._is_known)

    def _arrives(self, waiting: ProtocolSniffer | Handshake) -> bool:
        if not self.is_open or len(self._waiting) >= CONNECTIONS_MAX:
            return False
        self._waiting[waiting] = None
        return True

    def _is_known(self, waiting: ProtocolSniffer | Handshake) -> None:
        self._waiting.pop(waiting, None)
