"""Devices of MQTT in a cluster: they come by any node, and one owner ends after the other."""

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
"""The others are there to the end."""
SECRET: Final = b"s" * 32
RELAYED_MAX: Final = 100
SLOW_SHARE: Final = 0.3
SLOW_S: Final = 0.2
"""How long the engine takes for that share of what it is asked, on average."""
WAIT_S: Final = 1_000.0
"""What is not done by then will never be."""


class DevicesOfACluster:
    """The world of the devices. What happened is counted."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.happened: Counter[str] = Counter()
        self.told: list[str] = []
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
        self.told.append(what)

    @property
    def _owner(self) -> NodeMachine | None:
        return next((each for each in self._machines if each.serves), None)

    async def prepare(self) -> None:
        owner, others = await owner_and_others(self._servers, NODES, self._ask, secret=SECRET)
        self._machines = [owner, *others]
        for each in self._machines:
            each.relays.relays_max = RELAYED_MAX

    async def _ask(self, do: Callable[[], Any]) -> Any:
        """Ask the engine, which takes its time now and then."""
        if self.random.random() < SLOW_SHARE:
            await pass_time(self.random.expovariate(1 / SLOW_S))
        return do()

    async def rows(self, channel: str) -> list[bytes]:
        owner = self._owner
        assert owner is not None, "a node serves at the end"
        assert owner.realm is not None, "it serves it"
        pages = pages_of(owner.realm, number_of(owner.realm, channel))
        return [event.data async for page in pages for event in page]

    async def live(self) -> None:
        """The scene from its beginning to its end. Raises what went wrong."""
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
            beside = [each for each in self._machines if each is not owner]
            match self.random.choice(("killed", "handed over", "moved by force", "relays cut")):
                case "killed" if self.happened["killed"] < KILLED_MAX:
                    owner.kill()
                    self._machines.remove(owner)
                    self.happened["killed"] += 1
                case "handed over":
                    owner.node.hand_over(0)
                    self.happened["handed over"] += 1
                case "moved by force":
                    orders = ClusterOrders(
                        MemoryInspector(self._servers),
                        self._servers.records,
                        self.loop,
                        lease_s=LEASE_S,
                    )
                    try:
                        await orders.move(self.random.choice(beside).name, by_force=True)
                    except PenstockError as error:  # it has just ended
                        self.note(f"not moved: {error}")
                    else:
                        self.happened["moved by force"] += 1
                case _:
                    self.random.choice(beside).relays.cut(all_of_them=True)
                    self.happened["relays cut"] += 1


def devices_of_a_cluster(seed: int) -> DevicesOfACluster:
    """What happened. Raises what went wrong."""
    world = DevicesOfACluster(seed)
    simulate(world.live(), world.random)
    return world
