"""Clients that reach each node over a separate link, which can be cut without separating the nodes:
``python -m tests.faults.cluster.linked PORTS URL MQTT FOLDER ROLE…``

PORTS is a JSON object that maps the port of a node to the port at which clients reach it; the ports
in MQTT are already of the latter kind. The client is the real one, except for the address of each
connection.
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

Connect = Callable[[Any, Address], Awaitable[None]]


def over_links(connect: Connect, ports: Mapping[int, int]) -> Connect:
    """Wrap a connect function: it connects to the link of an address, while its caller sees only
    the address."""

    async def connect_to_link(self: Any, address: Address) -> None:
        await connect(self, Address(address.host, ports.get(address.port, address.port)))

    return connect_to_link


def main(arguments: list[str]) -> int:
    encoded_ports, url, *rest = arguments
    ports = msgspec.json.decode(encoded_ports, type=dict[int, int])
    for owner, name in ((RealmConnection, "_connect_to"), (OwnerWatch, "_follow")):
        setattr(owner, name, over_links(vars(owner)[name], ports))
    amqp.PORTS.update(ports)
    return clients.main([url, *rest])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
