"""A cluster with a node that relays, and its clients."""

from __future__ import annotations

import asyncio

from packages.cluster.tests.machines import (
    NodeMachine,
    owner_and_others,
    until,
)
from packages.cluster.tests.serving import HOST
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import FrameReader
from penstock_testing.engine import EngineServers
from penstock_testing.network import MACHINE
from tests.loops import the_loop

SECRET = b"s" * 32


CLIENT = "10.0.0.77"


class Peer(asyncio.Protocol):
    """A client of any protocol on a simulated machine."""

    def __init__(self) -> None:
        self.heard = b""
        self.has_ended = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True

    @property
    def messages(self) -> list[wire.FromServer]:
        reader = FrameReader()
        reader.receive(self.heard)
        return [wire.decode_from_server(header) for header, _ in reader.frames()]


async def connect(port: int, said: bytes, host: str = CLIENT) -> Peer:
    network, peer = the_loop().network, Peer()
    network.hosts["the client"] = host
    token = MACHINE.set("the client")
    try:
        await the_loop().create_connection(lambda: peer, HOST, port)
    finally:
        MACHINE.reset(token)
    peer.transport.write(said)
    return peer


async def relaying(count: int = 2) -> tuple[NodeMachine, list[NodeMachine]]:
    owner, others = await owner_and_others(EngineServers(), count, secret=SECRET)
    for machine in (owner, *others):
        the_loop().network.hosts[machine.machine] = f"10.0.0.{machine.native - 9_000}"
    await until(lambda: len(owner.node.present()) == count)
    return owner, others
