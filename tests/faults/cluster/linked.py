"""Clients that find each node over a link of its own, which can be cut while nodes find each other:
``python -m tests.faults.cluster.linked PORTS URL MQTT FOLDER ROLE…``

PORTS is a JSON object: by the port at which a node listens, the one at which clients find it; those
in MQTT are of the latter kind. Everything is the real client, but where it makes a connection.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.owner_watch import OwnerWatch
from penstock.client.connection.urls import Address
from tests.faults import amqp, clients

Connecting = Callable[[Any, Address], Awaitable[None]]


def over_links(connect: Connecting, ports: Mapping[int, int]) -> Connecting:
    """Connects to the link of an address; whoever asks knows the address only."""

    async def connecting(self: Any, address: Address) -> None:
        await connect(self, Address(address.host, ports.get(address.port, address.port)))

    return connecting


def main(arguments: list[str]) -> int:
    given, url, *rest = arguments
    ports = msgspec.json.decode(given, type=dict[int, int])
    for connecting, name in ((RealmConnection, "_connect_to"), (OwnerWatch, "_follow")):
        setattr(connecting, name, over_links(vars(connecting)[name], ports))
    amqp.PORTS.update(ports)
    return clients.main([url, *rest])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
