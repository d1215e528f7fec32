"""Nodes without front ends, with one engine in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from packages.cluster.tests.machines import SimulatedMachine, open_realm, until
from packages.cluster.tests.serving import serve_clients
from penstock_cluster.nodes.node import ClusterNode
from penstock_cluster.owning.register_records import MemberRecord
from penstock_core.vocabulary.ports import Blobs, Clock, Journal, Offload, inline
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.delivery.owner_lease import OwnerLease
from penstock_server.runtime.realm import RunningRealm
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import pass_time
from tests.loops import the_loop

URL = "penstock://somebody@127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003"


class NativeServer:
    """Serves realms at one port of a machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.opened: list[int] = []
        self.before: Callable[[], None] = lambda: None
        self.realm: RunningRealm | None = None

    async def open(
        self, shard: int, journal: Journal, blobs: Blobs, lease: OwnerLease
    ) -> RunningRealm:
        self.opened.append(shard)
        self.before()
        self.realm = await open_realm(journal, blobs, lease)
        return self.realm

    async def serve(self, realm: RunningRealm, stopping: asyncio.Event) -> None:
        listener = NativeListener(realm, "1", NativeLimits())
        await serve_clients(realm, listener, [self.port], stopping=stopping)


class Machine(SimulatedMachine):
    """A node on a simulated machine."""

    def __init__(
        self,
        servers: EngineServers,
        n: int,
        name: str = "",
        call: Offload = inline,
        *,
        clock: Clock | None = None,
        format: int = 1,
        engine: MemoryEngine | None = None,
    ) -> None:
        super().__init__(n)
        self.name = name or f"n{n}"
        self.server = NativeServer(9_000 + n)
        address = f"127.0.0.1:{9_100 + n}"
        me = MemberRecord(self.name, f"start {n}", address=address, format=format)
        engine = engine or MemoryEngine(servers, call=call)
        self.node = ClusterNode(engine, me, self.server, clock=clock or the_loop(), lease_s=6.0)
        self.task = self.on_machine(self.node.run())


async def end(*machines: Machine) -> None:
    for machine in machines:
        machine.task.cancel()
    await asyncio.wait([machine.task for machine in machines])


async def three() -> tuple[EngineServers, Machine, list[Machine]]:
    """Return an engine, the owner, and the other nodes."""
    servers = EngineServers()
    machines = [Machine(servers, n) for n in (1, 2, 3)]
    await until(lambda: any(machine.server.opened for machine in machines))
    await pass_time(3)
    (owner,) = [machine for machine in machines if machine.owns]
    return servers, owner, [machine for machine in machines if machine is not owner]
