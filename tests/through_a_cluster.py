"""Makes each realm of this process a cluster, which tests reach through a node that does not serve.

``pytest --through-a-cluster packages/client/tests`` makes every realm a cluster of three nodes on a
storage engine in memory. Two nodes serve in turn; the third, here called the door, never does. All
sessions connect to the door, even those within the process. The owner hands over about every ten
seconds (``--moving-every``), at times drawn by the name of the test. A realm opened again in the
same directory has the same engine.

MQTT clients of tests do not reconnect. Therefore the owner waits until none is connected before it
hands over, and clients that connect meanwhile wait at the port.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

import penstock
from penstock.client.connection.transport import Link
from penstock_cluster.bootstrap.cluster import cluster_secret
from penstock_cluster.bootstrap.node_directory import NodeDirectory
from penstock_cluster.nodes.roles import owners_in, serving_node
from penstock_cluster.nodes.standing_by import StandbyListener
from penstock_cluster.owning.operator_orders import ORDERS_KEY, Orders
from penstock_cluster.relay import Relays
from penstock_cluster.serving.cluster import NodeProcess
from penstock_core.vocabulary.errors import ConnectionLost
from penstock_core.vocabulary.ports import Registry
from penstock_server.bootstrap import aio_realm, embedded_realm, tls, with_certificate
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.ports import HeldPorts
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings import Settings
from penstock_testing.engine import EngineServers, MemoryEngine

HOST: Final = "127.0.0.1"
MOVING_EVERY_S: Final = 10.0
_SERVING: Final = ("n1", "n2")
_DOOR: Final = "n3"
_LOOK_S: Final = 0.005
_SETTLED_S: Final = 30.0

_FROM_THE_START: Final = (
    "here a cluster has MQTT from the start, with channels that it created itself"
)
WHY_NOT: Final = {
    "test_over_tls_a_password_or_a_certificate_says_who_it_is": _FROM_THE_START,
    "test_a_channel_that_is_not_fit_for_it_is_refused": _FROM_THE_START,
    "test_a_channel_that_is_not_fit_for_sessions_is_refused": _FROM_THE_START,
    "test_the_channel_is_as_the_channel_of_all_topics": _FROM_THE_START,
    "test_without_mqtt_there_is_none_and_elsewhere_neither": _FROM_THE_START,
    "test_a_memory_channel_refuses_what_does_not_fit_and_forgets_nothing": "events of a cluster do "
    "not count against the limits of memory (SEM C5)",
    "test_on_a_realm_without_a_cluster_nothing_is_made_cluster_wide": "it is for one machine",
    "test_different_attributes_are_named_and_nothing_changes": "a store of a cluster is "
    "cluster-wide (SEM C5)",
    "test_it_outlives_a_restart_and_a_backup": "a cluster is backed up from its engine",
    "test_replaced_events_are_told_from_the_others_of_their_channel": "it reads the files of a "
    "realm on one machine",
    "test_an_embedded_realm_says_at_close_what_its_listener_failed_with_and_is_over": "a node of a "
    "cluster gives up a realm that it cannot serve, and another takes over",
}
"""The reasons why a cluster cannot pass some tests, by the name of the test."""
_ON_ONE_MACHINE: Final = ("reliable", "off_heap", "simple")
_AROUND: Final = "a session knows all nodes, and avoids the one behind the test's relay"


def why_not(item: pytest.Item) -> str:
    """Return why a test cannot be run through a cluster; empty if it can."""
    fixtures = getattr(item, "fixturenames", ())
    name = item.name.partition("[")[0]
    if item.path.name == "test_backup_file.py":
        return "a cluster is backed up from its engine"
    if name == "test_a_life_of_a_durable" and any(
        f"-{kind}-" in item.name for kind in _ON_ONE_MACHINE
    ):
        return "durables of these types are persistent in a cluster (SEM C5)"
    return WHY_NOT.get(name, _AROUND if "relay" in fixtures else "")


class _Node:
    """One node of the cluster, which is usually a process."""

    def __init__(self, engines: EngineServers, folder: Path, name: str) -> None:
        self.name = name
        self.ports = HeldPorts()
        self.engine = MemoryEngine(engines)
        self.home = NodeDirectory(str(folder / name), "penstock", name)
        self.stopping = asyncio.Event()
        self.process: NodeProcess
        self.task: asyncio.Task[None]

    async def make(self, settings: Settings, secret: bytes, *, speaks_mqtt: bool) -> None:
        native = await self.ports.hold(HOST, 0)
        http, amqp = await self.ports.hold(HOST, 0), await self.ports.hold(HOST, 0)
        mqtt = await self.ports.hold(HOST, 0) if speaks_mqtt else None
        listen = replace(settings.listen, host=HOST, port=native, amqp_port=amqp, mqtt_port=mqtt)
        settings = replace(
            settings,
            listen=listen,
            http=replace(settings.http, enabled=True, host=HOST, port=http),
        )
        registry = await self.engine.registry()
        self.process = NodeProcess(
            self.home,
            settings,
            self.engine,
            registry=registry,
            secret=secret,
            clock=SystemClock(),
            ports=self.ports,
        )

    def close(self) -> None:
        self.ports.close()
        self.home.close()

    @property
    def serves(self) -> tuple[RunningRealm, NativeListener] | None:
        """The realm and listener that the node serves; None if the node does not hold a realm."""
        return self.process.serving if self.process.node.holds(0) else None


class ClusterRealm(embedded_realm.Realm):
    """A realm of this process that is a cluster."""

    engines: dict[str, EngineServers] = {}  # noqa: RUF012  engines of a test, by directory
    moving_every_s = MOVING_EVERY_S
    seed = 0
    moves = 0
    """Number of handovers in all realms so far."""

    async def _start(self) -> None:
        self.settings = with_certificate(self._directory, self.settings)
        key = "" if self._directory is None else str(self._directory.absolute())
        servers = self.engines.setdefault(key, EngineServers()) if key else EngineServers()
        self._clock = SystemClock()
        self._inside = ExitStack()
        self._standbys: list[StandbyListener] = []
        self._speaks_mqtt = _is_about_mqtt()
        self._moving = asyncio.Lock()
        self._mqtt: list[tuple[StandbyListener, Relays]] = []
        """The listeners for MQTT clients."""
        self._tasks: list[asyncio.Task[None]] = []
        self._served: tuple[RunningRealm, NativeListener] | None = None
        folder = Path(self._inside.enter_context(tempfile.TemporaryDirectory()))
        self._nodes = [_Node(servers, folder, name) for name in (*_SERVING, _DOOR)]
        for node in self._nodes:
            self._inside.callback(node.close)
        registry = servers.records
        self._secret = await cluster_secret(registry, self.settings.cluster)
        for node in self._nodes:
            await node.make(self.settings, self._secret, speaks_mqtt=self._speaks_mqtt)
        self._door = self._nodes[-1]
        await _drain(registry, self._door)
        try:
            for node in self._nodes:
                node.task = self._start_part(node.process.run(node.stopping), node.name)
                await self._until(lambda: self._owner is not None)
            await self._until(lambda: self._is_known)
            self._own_port = await self._listen_at("native", HOST, 0)
            self._tasks += [
                self._start_part(self._tell(), "telling"),
                self._start_part(self._move(), "moving"),
            ]
        except BaseException:
            await self._end()
            raise

    @property
    def _owner(self) -> _Node | None:
        return next((node for node in self._nodes if node.serves is not None), None)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(_SETTLED_S):
            while not is_so():
                if self._failures:
                    raise self._failures[0]
                await _pass(_LOOK_S)

    async def _tell(self) -> None:
        while True:
            await self._door.process.node.changed()
            for standby in self._standbys:
                standby.tell_owners()

    async def _move(self) -> None:
        draw = Random(f"{self.seed} {os.environ.get('PYTEST_CURRENT_TEST', '')}")
        wait_s = draw.uniform(0, self.moving_every_s)
        while True:
            await _pass(wait_s)
            while self._has_mqtt_clients or self._moving.locked():
                await _pass(_LOOK_S)
            if (owner := self._owner) is not None:
                await self._move_from(owner)
                ClusterRealm.moves += 1
            wait_s = self.moving_every_s * draw.uniform(0.5, 1.5)

    async def _move_from(self, owner: _Node) -> None:
        async with self._moving:
            for standby, _ in self._mqtt:
                standby.close()
            owner.process.node.hand_over(0)
            await self._until(lambda: self._owner not in (None, owner))
            await self._until(lambda: self._is_known)
            for standby, _ in self._mqtt:
                await standby.open()

    @property
    def _has_mqtt_clients(self) -> bool:
        if any(
            standby.waiting or len(relays) + relays.connecting for standby, relays in self._mqtt
        ):
            return True
        serving = None if self._owner is None else self._owner.serves
        states = [] if serving is None else serving[0].connections.states()
        return any(state.protocol == "mqtt" for state in states)

    @property
    def _is_known(self) -> bool:
        """Whether the door knows the owner, and the owner serves MQTT if the test needs it."""
        owner, serving = self._owner, serving_node(self._door.process.node)
        if owner is None or owner.serves is None or serving is None or serving.name != owner.name:
            return False
        return "mqtt" in owner.serves[1].web_protocols or not self._speaks_mqtt

    # --- the interface of an embedded realm ------------------------------------------------

    async def _listen_at(self, front_end: str, host: str, port: int) -> int:
        """Make the door listen for a front end; return the port."""
        ports, node = self._door.ports, self._door.process.node
        bound = await ports.hold(host, port)
        native = (host, bound) if front_end == "native" else (HOST, await ports.hold(HOST, 0))
        place = host, bound
        relays = Relays(
            lambda: serving_node(node), self._secret, _DOOR, clock=self._clock, relays_max=10_000
        )
        standby = StandbyListener(
            lambda: serving_node(node),
            lambda: owners_in(node),
            {"native": native, front_end: place},
            name=_DOOR,
            ports=ports,
            tls=tls(self.settings),
            relays=relays,
        )
        async with self._moving:
            await standby.open()
        self._standbys.append(standby)
        if front_end == "mqtt":
            self._mqtt.append((standby, relays))
        return bound

    async def _listened(self, front_end: str, host: str, port: int) -> int:
        if (front_end, host, port) == ("native", HOST, 0):  # the address that other nodes know
            return self._door.process.settings.listen.port
        return await self._listen_at(front_end, host, port)

    def _url(self, front_end: str, scheme: str, host: str, port: int) -> str:
        bound = self.loop.call(self._listened(front_end, host, port))
        safe = "s" if self.settings.listen.tls_certificate else ""
        return f"{scheme}{safe}://{f'[{host}]' if ':' in host else host}:{bound}"

    def listen(self, host: str = HOST, port: int = 0) -> str:
        return self._url("native", "penstock", host, port=port)

    def listen_amqp(self, host: str = HOST, port: int = 0) -> str:
        return self._url("amqp", "amqp", host, port=port)

    def listen_http(self, host: str = HOST, port: int = 0) -> str:
        return self._url("http", "http", host, port=port)

    def listen_mqtt(self, host: str = HOST, port: int = 0) -> str:
        return self._url("mqtt", "mqtt", host, port=port)

    async def _connect(self, make: Callable[[], Link], user: str) -> Link:
        theirs = await self._admit(user)
        with _closed_if_given_up(theirs):
            _, link = await asyncio.get_running_loop().connect_accepted_socket(make, theirs)
        return link

    async def _admit(self, user: str) -> socket.socket:
        if (
            self.settings.access.mode != "off" or user
        ):  # over the network the realm would ask for a password
            if self._owner is None:
                raise ConnectionLost("no node serves the realm at the moment")
            return await super()._admit(user)
        theirs = socket.socket()
        theirs.setblocking(False)  # noqa: FBT003 - positional-only
        with _closed_if_given_up(theirs):
            await asyncio.get_running_loop().sock_connect(theirs, (HOST, self._own_port))
        return theirs

    @property
    def serving_now(self) -> tuple[RunningRealm, NativeListener]:
        if self._owner is not None:
            self._served = self._owner.serves
        assert self._served is not None, "no node has served the realm since the start"
        return self._served

    @property
    def access(self) -> AccessControl:
        return self.serving_now[0].access

    # --- the end --------------------------------------------------------------------------

    async def _stop(self) -> None:
        for connection in list(self._connections):
            with suppress(ConnectionLost):  # the error was reported
                await connection.close()
        await self._end()
        for failure in self._failures:
            raise failure.exceptions[0] if isinstance(failure, BaseExceptionGroup) else failure

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        running = [node for node in self._nodes if hasattr(node, "task")]
        for node in running:
            node.stopping.set()
        if all_of_them := [*self._tasks, *(node.task for node in running)]:
            await asyncio.wait(all_of_them, timeout=_SETTLED_S)
        for standby in self._standbys:
            standby.close()
        self._inside.close()


def _of_the_owner(at: int) -> Any:
    """Return a property with a part of the node that serves now: 0 its realm, 1 its listener."""

    def serving_value(realm: ClusterRealm) -> Any:
        return realm.serving_now[at]

    return property(serving_value)


for _at, _name in enumerate(("running", "listener")):
    setattr(ClusterRealm, _name, _of_the_owner(_at))


def _is_about_mqtt() -> bool:
    """Whether the current test is about MQTT. Other tests would find the channels of MQTT among
    their own."""
    return "mqtt" in os.environ.get("PYTEST_CURRENT_TEST", "")


@contextmanager
def _closed_if_given_up(opened: socket.socket) -> Iterator[None]:
    """Close the socket if the ``with`` block, which connects it, fails or is cancelled."""
    try:
        yield
    except BaseException:
        opened.close()
        raise


async def _pass(seconds: float) -> None:
    """Wait in real time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def _drain(registry: Registry, door: _Node) -> None:
    """Order the cluster to drain the door, so that it never owns a realm."""
    me = door.process.me
    record = await registry.get(ORDERS_KEY)
    orders = Orders().with_drained((me.node, me.nonce))
    orders = replace(orders, written_by=secrets.token_hex(8))
    await registry.cas(
        ORDERS_KEY, 0 if record is None else record.version, msgspec.json.encode(orders)
    )


@contextmanager
def all_through_a_cluster(moving_every_s: float, seed: int = 0) -> Iterator[type[ClusterRealm]]:
    """Make every realm that is opened in the ``with`` block a cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterRealm, "moving_every_s", moving_every_s)
        patch.setattr(ClusterRealm, "seed", seed)
        patch.setattr(penstock, "Realm", ClusterRealm)
        patch.setattr(embedded_realm, "Realm", ClusterRealm)
        patch.setattr(aio_realm, "BlockingRealm", ClusterRealm)
        yield ClusterRealm
