"""MQTT devices in a cluster: they connect to any node, and owners end one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final

from packages.cluster.tests.machines import LEASE_S, NodeMachine, end, owner_and_others, until
from packages.mqtt.tests.internal_stores import number_of
from penstock_cluster.nodes.cluster_orders import ClusterOrders
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.runtime.reading.stretches import pages_of
from penstock_testing.engine import EngineServers, MemoryInspector
from penstock_testing.loop import SimLoop, pass_time, simulate
from tests.loops import the_loop
from tests.sim.mqtt_world import Devices, HastyReader

NODES: Final = 6
KILLED_MAX: Final = 3
"""Enough nodes must remain until the end."""
SECRET: Final = b"s" * 32
RELAYED_MAX: Final = 100
SLOW_SHARE: Final = 0.3
SLOW_S: Final = 0.2
"""Mean delay of that share of requests to the engine."""
WAIT_S: Final = 1_000.0
"""Tasks that are not done by then wait for ever."""


class DevicesOfACluster:
    """The world of the devices. It counts the failures."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.failures: Counter[str] = Counter()
        self.notes: list[str] = []
        self.may_begin = asyncio.Event()
        self.outside: asyncio.TaskGroup
        self._servers = EngineServers()
        self._machines: list[NodeMachine] = []

    @property
    def loop(self) -> SimLoop:
        return the_loop()

    @property
    def port(self) -> int:
        return self.random.choice(self._machines).mqtt

    def note(self, what: str) -> None:
        self.notes.append(what)

    @property
    def _owner(self) -> NodeMachine | None:
        return next((machine for machine in self._machines if machine.serves), None)

    async def prepare(self) -> None:
        owner, standbys = await owner_and_others(self._servers, NODES, self._ask, secret=SECRET)
        self._machines = [owner, *standbys]
        for machine in self._machines:
            machine.relays.relays_max = RELAYED_MAX

    async def _ask(self, request: Callable[[], Any]) -> Any:
        """Send a request to the engine; some requests are slow."""
        if self.random.random() < SLOW_SHARE:
            await pass_time(self.random.expovariate(1 / SLOW_S))
        return request()

    async def rows(self, channel: str) -> list[bytes]:
        owner = self._owner
        assert owner is not None, "a node serves at the end"
        assert owner.realm is not None, "it serves it"
        pages = pages_of(owner.realm, number_of(owner.realm, channel))
        return [event.data async for page in pages for event in page]

    async def live(self) -> None:
        """Play the scene from start to end. Raises the error of a failed life."""
        devices = Devices(self, HastyReader)
        await devices.prepare()
        async with asyncio.TaskGroup() as self.outside:
            trouble = self.outside.create_task(self._trouble())
            playing = self.outside.create_task(self._play(devices))
            await asyncio.wait([playing], timeout=WAIT_S)
            assert playing.done(), f"still not done after {WAIT_S:.0f} s"
            trouble.cancel()
        await until(lambda: self._owner is not None)
        await devices.check()
        await end(*self._machines)

    async def _play(self, devices: Devices) -> None:
        async with asyncio.TaskGroup() as playing:
            devices.start(playing, quiet=True)

    async def _trouble(self) -> None:
        while True:
            await pass_time(self.random.uniform(0.5, 4))
            await until(lambda: self._owner is not None)
            owner = self._owner
            assert owner is not None, "it was waited for"
            standbys = [machine for machine in self._machines if machine is not owner]
            match self.random.choice(("killed", "handed over", "moved by force", "relays cut")):
                case "killed" if self.failures["killed"] < KILLED_MAX:
                    owner.kill()
                    self._machines.remove(owner)
                    self.failures["killed"] += 1
                case "handed over":
                    owner.node.hand_over(0)
                    self.failures["handed over"] += 1
                case "moved by force":
                    orders = ClusterOrders(
                        MemoryInspector(self._servers),
                        self._servers.records,
                        self.loop,
                        lease_s=LEASE_S,
                    )
                    try:
                        await orders.move(self.random.choice(standbys).name, by_force=True)
                    except PenstockError as error:  # the owner has just ended
                        self.note(f"not moved: {error}")
                    else:
                        self.failures["moved by force"] += 1
                case _:
                    self.random.choice(standbys).relays.cut(all_of_them=True)
                    self.failures["relays cut"] += 1


def devices_of_a_cluster(seed: int) -> DevicesOfACluster:
    """Return the world after its end. Raises the error of a failed life."""
    world = DevicesOfACluster(seed)
    simulate(world.live(), world.random)
    return world
