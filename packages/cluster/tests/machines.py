"""Nodes of a cluster in one process, each on a simulated machine, which serve or stand by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from packages.cluster.tests.serving import HOST, serve_clients
from penstock_cluster.nodes.node import ClusterNode
from penstock_cluster.nodes.node_state import cluster_info, figures_of, node_figures
from penstock_cluster.nodes.roles import (
    NodeRoles,
    owners_in,
    serving_node,
    suspend_without_quorum,
    tell_owners,
    unfit_in,
)
from penstock_cluster.nodes.standing_by import StandbyListener
from penstock_cluster.owning.register_records import MemberRecord
from penstock_cluster.relay import Relays
from penstock_core.vocabulary.node_figures import NodeFigures
from penstock_core.vocabulary.ports import Blobs, Journal, Offload, inline
from penstock_core.wire.relay_preface import secret_name
from penstock_mqtt.hub import MqttHub
from penstock_server.bootstrap import rules
from penstock_server.frontends.http.http_service import HttpLimits
from penstock_server.frontends.http.server import HttpServer
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.frontends.shared.relayed import RelayGate
from penstock_server.runtime.access.access import AccessControl, AccessRules
from penstock_server.runtime.access.accounts import Accounts
from penstock_server.runtime.access.audit import Audit
from penstock_server.runtime.access.logins import Logins
from penstock_server.runtime.access.tokens import TokenRules, Tokens
from penstock_server.runtime.delivery.owner_lease import OwnerLease
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.memory import MemoryPages
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import pass_time
from penstock_testing.network import MACHINE
from tests.loops import the_loop

LEASE_S: Final = 6.0
RELAYS_MAX: Final = 4


class SimulatedMachine:
    """A simulated machine for one node."""

    node: ClusterNode

    def __init__(self, n: int) -> None:
        self.machine = f"machine {n}"

    def on_machine(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        context = copy_context()
        context.run(MACHINE.set, self.machine)
        return the_loop().create_task(work, context=context)

    @property
    def owns(self) -> bool:
        return self.node.holds(0)

    def kill(self) -> None:
        the_loop().network.kill(self.machine)
        the_loop().kill(self.machine)


async def open_realm(journal: Journal, blobs: Blobs, lease: OwnerLease) -> RunningRealm:
    """Open the realm of a shard as an owner does on its simulated machine."""
    return await RunningRealm.open(
        journal, blobs, MemoryPages(), rules(), the_loop(), inline, identity="i", lease=lease
    )


def access_in(servers: EngineServers) -> AccessControl:
    """Return the users and rights in the register, for sign-ins."""
    clock = the_loop()
    return AccessControl(
        Accounts(servers.records, clock, inline),
        Tokens(TokenRules(), lambda _: b"", clock, offload=inline),
        Audit(clock),
        logins=Logins(clock, registry=servers.records),
        offload=inline,
        rules=AccessRules("mandatory", failure_delay_s=0.0, cleartext_passwords=True),
        clock=clock,
    )


class NodeMachine(SimulatedMachine):
    """One node with all its front ends on a simulated machine."""

    def __init__(
        self,
        servers: EngineServers,
        n: int,
        call: Offload = inline,
        secret: bytes = b"",
        *,
        asks_who: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """With a ``secret`` the node relays to the owner, and serves HTTP. With ``asks_who`` users
        have to sign in."""
        super().__init__(n)
        self.servers = servers
        self._asks_who = asks_who
        self.name = f"n{n}"
        self.secret = secret
        self.native, self.http, self.amqp = 9_000 + n, 9_080 + n, 5_670 + n
        self.mqtt = 1_880 + n
        self.reported_owners: list[str] = []
        """The owners of which the node was told while it stood by, the oldest first."""
        serves = {
            "native": f"penstock://{HOST}:{self.native}",
            "http": f"http://{HOST}:{self.http}",
            "amqp": f"amqp://{HOST}:{self.amqp}",
            "mqtt": f"mqtt://{HOST}:{self.mqtt}",
        }
        me = MemberRecord(
            self.name,
            f"start {n}",
            address=f"{HOST}:{9_100 + n}",
            serves=serves,
            secret_name=secret_name(secret) if secret else "",
            settings=settings or {},
        )
        self.roles = NodeRoles(self._open, self._serve)
        self.node = ClusterNode(
            MemoryEngine(servers, call=call),
            me,
            self.roles,
            clock=the_loop(),
            lease_s=LEASE_S,
            figures=self._figures,
        )
        ports = {"native": self.native, "http": self.http, "amqp": self.amqp, "mqtt": self.mqtt}
        places = {name: (HOST, port) for name, port in ports.items()}
        owner = partial(serving_node, self.node)
        self.relays = Relays(owner, secret, self.name, clock=the_loop(), relays_max=RELAYS_MAX)
        self.standby = standby = StandbyListener(
            owner,
            lambda: owners_in(self.node),
            places,
            name=self.name,
            relays=self.relays if secret else None,
            has_quorum=self.node.has_quorum,
            unfit=partial(unfit_in, self.node),
        )
        self.task = self.on_machine(self.node.run())
        self.aside = self.on_machine(
            self.roles.stand_by(self.node, standby, self.reported_owners.append)
        )
        self.listener: NativeListener | None = None
        self.realm: RunningRealm | None = None
        """The realm that the node serves, or served last."""

    @property
    def url(self) -> str:
        return f"penstock://somebody@{HOST}:{self.native}"

    @property
    def serves(self) -> bool:
        return self.owns and self.listener is not None

    def _figures(self) -> NodeFigures:
        return node_figures(self.node, self.relays, {"process_open_fds": float(self.native)})

    async def _open(self, journal: Journal, blobs: Blobs, lease: OwnerLease) -> RunningRealm:
        realm = await open_realm(journal, blobs, lease)
        if self._asks_who:
            realm.access = access_in(self.servers)
            realm.access.definition_of = realm.definition_of
            await realm.access.begin()
        return realm

    async def _serve(self, realm: RunningRealm, lease: OwnerLease, stopping: asyncio.Event) -> None:
        self.realm = realm
        listener = NativeListener(realm, "1", NativeLimits())
        listener.heartbeat_s = LEASE_S / 3

        def listening() -> None:
            self.listener = listener

        listener.owners = lambda: owners_in(self.node)
        listener.figures_of = lambda name: figures_of(self.node, name, self._figures)
        realm.cluster = lambda: cluster_info(self.node, realm, the_loop().steady_us())
        beside = [suspend_without_quorum(lease, listener), tell_owners(self.node, listener)]
        if self.secret:
            listener.gate = RelayGate(self.secret, self.node.claims.me.nonce, the_loop())
            beside += [self._serve_http(listener), self._serve_mqtt(listener)]
        try:
            await serve_clients(
                realm,
                listener,
                [self.native],
                stopping=stopping,
                listening=listening,
                beside=beside,
            )
        finally:
            self.listener = None

    async def _serve_http(self, listener: NativeListener) -> None:
        server = HttpServer(listener, HttpLimits())
        await server.listen(HOST, self.http)
        try:
            await server.run()
        finally:
            server.cut()

    async def _serve_mqtt(self, listener: NativeListener) -> None:
        await MqttHub(listener, "mqtt").listen(HOST, self.mqtt)


class Valve:
    """Lets requests of machines to the engine wait while it is shut."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, call: Callable[[], Any]) -> Any:
        await self.open.wait()
        answer = call()
        await self.open.wait()
        return answer


async def until(is_so: Callable[[], bool]) -> float:
    """Wait until ``is_so()``; return how long that took."""
    began_s = the_loop().time()
    while not is_so():
        await pass_time(0.05)
        assert the_loop().time() - began_s < 120, "it never comes to this"
    return the_loop().time() - began_s


async def end(*machines: NodeMachine) -> None:
    tasks = [task for machine in machines for task in (machine.task, machine.aside)]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def owner_and_others(
    servers: EngineServers,
    count: int = 2,
    call: Offload = inline,
    secret: bytes = b"",
    *,
    asks_who: bool = False,
) -> tuple[NodeMachine, list[NodeMachine]]:
    """Start nodes; return the one that serves first, and then the others."""
    machines = [
        NodeMachine(servers, n, call, secret=secret, asks_who=asks_who) for n in range(1, count + 1)
    ]
    await until(lambda: any(machine.serves for machine in machines))
    (owner,) = [machine for machine in machines if machine.serves]
    others = [machine for machine in machines if machine is not owner]
    await until(lambda: all(standby.reported_owners[-1:] == [owner.name] for standby in others))
    return owner, others
