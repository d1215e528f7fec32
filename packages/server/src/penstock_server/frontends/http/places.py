"""Limits the number of connections, in total and per address, with a reserve for monitoring.

At the limit, a new connection replaces one whose client keeps the realm waiting for a request or
the rest of one: of the network with the most connections, the one that has been silent longest.
Connections with a request in progress are not dropped.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

SPARE: Final = 8
"""Number of connections above the limit, which are reserved for monitoring."""
_NETWORK_BITS: Final = 64
"""Bits of an IPv6 address that identify its network; a client chooses the other bits freely."""


class CountedConnection(Protocol):
    """A connection that counts towards the limits of this module."""

    address: str
    heard_s: float
    """Time of the last received data."""
    is_spare: bool
    """Whether the connection uses the reserve, and so may only request health and metrics."""

    @property
    def owes_data(self) -> bool:
        """Whether the realm waits for data from the client."""
        ...

    def drop(self) -> None:
        """Close the connection immediately."""
        ...


class ConnectionPlaces:
    """The connections of one realm."""

    def __init__(self, connections_max: int, connections_of_address_max: int) -> None:
        self._connections_max = connections_max
        self._connections_of_address_max = connections_of_address_max
        self.connections: dict[CountedConnection, None] = {}
        """Connections that have a place, oldest first."""
        self._spare: set[CountedConnection] = set()
        self._of_address: Counter[str] = Counter()

    def take(self, connection: CountedConnection) -> bool:
        """Admit a connection, if necessary by dropping another; return whether it is admitted."""
        network = network_of(connection.address)
        is_network_full = self._of_address[network] >= self._connections_of_address_max
        if is_network_full and not self._drop_one(network):
            return False
        if len(self.connections) - len(self._spare) >= self._connections_max:
            is_spare = not self._drop_one()
            if is_spare and len(self._spare) >= SPARE:
                return False
            connection.is_spare = is_spare
            self._spare |= {connection} if is_spare else set()
        self.connections[connection] = None
        self._of_address[network] += 1
        return True

    def leave(self, connection: CountedConnection) -> None:
        """Remove a connection; do nothing if it was not admitted."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._spare.discard(connection)
        network = network_of(connection.address)
        self._of_address[network] -= 1
        if not self._of_address[network]:
            del self._of_address[network]

    def _drop_one(self, network: str = "") -> bool:
        """Drop a connection to make room for a new one. Return False if none may be dropped.

        If ``network`` is set, only its connections may be dropped. Otherwise connections from the
        network with the most connections are dropped first, so that a client that floods the realm
        loses its own connections.
        """
        droppable = [
            connection
            for connection in self.connections
            if connection.owes_data
            and connection not in self._spare
            and (not network or network_of(connection.address) == network)
        ]
        if not droppable:
            return False
        counts = self._of_address
        connection = min(
            droppable, key=lambda peer: (-counts[network_of(peer.address)], peer.heard_s)
        )
        self.leave(connection)
        connection.drop()
        return True


def network_of(address: str) -> str:
    """Return the address, or the network of an IPv6 address, for which connections are counted."""
    try:
        # A link-local IPv6 address has the name of an interface after the `%`.
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> _NETWORK_BITS:x}/{_NETWORK_BITS}"
