"""The listener of a standby node, which tells clients which node serves the realm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from penstock_cluster.relay import RelayChooser, Relays, WantsRelay, relay_before_tls
from penstock_core.wire.native import messages as wire
from penstock_server.frontends.front_end import NATIVE, FrontEnd, StandbyNode, front_ends
from penstock_server.frontends.native.standby import OwnerFollowers
from penstock_server.frontends.shared.arrivals import Arrivals
from penstock_server.frontends.shared.handshakes import Handshake, TlsServer
from penstock_server.frontends.shared.ports import HeldPorts, SocketServers, open_server
from penstock_server.frontends.shared.protocol_detection import ProtocolSniffer
from penstock_server.frontends.shared.serving_node import FindOwner
from penstock_server.frontends.shared.tls import Tls
from penstock_server.runtime.access.incidents import Incidents

Make = Callable[[], asyncio.BaseProtocol]
Waiting = ProtocolSniffer | Handshake | RelayChooser
PATIENCE_S = 10.0
"""Longest silence of a connection before its first bytes, in seconds."""
CONNECTIONS_MAX = 1_000
"""Maximum number of connections that a standby node answers itself."""


class StandbyListener:
    """Listens while the node stands by; opened and closed as often as the role changes."""

    def __init__(
        self,
        owner: FindOwner,
        owners: Callable[[], wire.Owners],
        places: Mapping[str, tuple[str, int]],
        name: str,
        ports: HeldPorts | None = None,
        tls: Tls | None = None,
        relays: Relays | None = None,
        has_quorum: Callable[[], bool] = lambda: True,
        unfit: Callable[[], str] = str,
        incidents: Incidents | None = None,
    ) -> None:
        """``places`` has host and port of each front end, by its name; ``name`` is the node's name.
        Without ``relays`` all clients are sent to the owner. ``has_quorum`` returns whether the
        node reaches the engine, ``unfit`` why it could not take over the realm; ``incidents`` are
        the failures of its background tasks."""
        self.is_open = False
        self._arrivals = Arrivals(owner, PATIENCE_S, CONNECTIONS_MAX, has_quorum=has_quorum)
        self._followers = OwnerFollowers(owners)
        self._places = places
        self._name = name
        self._ports = ports
        self._tls = tls
        self._relays = relays
        self._unfit = unfit
        self._incidents = incidents or Incidents()
        self.patience_s = PATIENCE_S
        self._servers: list[asyncio.Server | SocketServers | TlsServer] = []
        self.waiting: dict[Waiting, None] = {}
        """Connections that have not finished their handshake or not sent their first bytes."""

    async def open(self) -> None:
        """Listen at the node's ports."""
        if self.is_open:
            return
        self.is_open = True
        installed = front_ends()
        node = StandbyNode(
            self._arrivals,
            self._followers,
            self._name,
            is_relaying=self._is_relaying,
            unfit=self._unfit,
            incidents=self._incidents.open,
        )
        for name, place in self._places.items():
            front_end = installed[name]
            make, wants_relay = front_end.standby(node), front_end.wants_relay
            # The native port also accepts the protocols that its first bytes identify.
            if name == NATIVE:
                others = {kind.first_bytes: kind for kind in installed.values() if kind.first_bytes}
                wants_relay = partial(_wants_relay, front_end, tuple(others))
                protocols = {
                    first_bytes: kind.standby(node)
                    for first_bytes, kind in others.items()
                    if kind.name in self._places
                }
                make = self._with_sniffer(make, protocols) if protocols else make
            await self._listen(name, place, make, wants=wants_relay)

    def close(self) -> None:
        """Close the ports, so that the realm can listen there."""
        self.is_open = False
        for server in self._servers:
            server.close()
        self._servers.clear()
        for waiting in list(self.waiting):
            waiting.abort()
        self._arrivals.abort()
        self._followers.close()
        if self._relays is not None:
            self._relays.cut(all_of_them=True)

    def tell_owners(self) -> None:
        """Notify clients that follow the owners, and cut relays to an earlier owner."""
        if self.is_open:
            self._followers.tell()
            if self._relays is not None:
                self._relays.cut()

    async def _listen(
        self, front_end: str, place: tuple[str, int], make: Make, wants: WantsRelay
    ) -> None:
        """Listen for one front end. Connections that ``wants`` selects are relayed to the owner, if
        relays are configured; ``make`` creates the protocol that answers the others."""
        relays = self._relays
        if self._tls is None:
            if relays is not None:
                make = partial(RelayChooser, relays, front_end, wants, make, self)
            self._servers.append(await open_server(make, *place, self._ports))
            return
        # A relay passes on the client's TLS, so it begins before the handshake.
        before = None if relays is None else partial(relay_before_tls, relays, front_end)
        server = TlsServer(
            self._tls.context, PATIENCE_S, make, enter=self.enter, leave=self.leave, before=before
        )
        await server.listen(*place, self._ports)
        self._servers.append(server)

    def _is_relaying(self) -> bool:
        return self._relays is not None and self._relays.may_begin("http")

    def _with_sniffer(self, native: Make, others: Mapping[bytes, Make]) -> Make:
        """Return a function that creates the protocol of a connection at the native port, which
        finds out from the first bytes which front end the client uses."""
        return partial(
            ProtocolSniffer, native, others, PATIENCE_S, enter=self.enter, leave=self.leave
        )

    # --- UndecidedConnections ------------------------------------------------------------

    def enter(self, waiting: Waiting) -> bool:
        """Count a connection whose protocol is not known yet. Returns whether it is accepted."""
        if not self.is_open or len(self.waiting) >= CONNECTIONS_MAX:
            return False
        self.waiting[waiting] = None
        return True

    def leave(self, waiting: Waiting) -> None:
        """Stop counting a connection."""
        self.waiting.pop(waiting, None)


def _wants_relay(native: FrontEnd, others: tuple[bytes, ...], data: bytes) -> bool | None:
    """Return whether a connection with these first bytes at the native port is relayed to the
    owner: if another front end recognises them, or the native one asks for it."""
    return data.startswith(others) or native.wants_relay(data)
