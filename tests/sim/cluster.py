"""Three nodes over one engine whose answers get lost, and clients that remember their promises:
whole realms, listeners, takeovers and the asynchronous client, on virtual time.

Everything is drawn from one seed. A machine is killed, frozen (also between its claim and its
fence), or cut off from the engine. Requests to the engine are lost, answered late, or done late.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock_cluster.nodes.cluster_orders import change_orders
from penstock_cluster.owning.operator_orders import MoveOrder
from penstock_core.vocabulary.node_figures import SHARD
from penstock_testing.engine import EngineServers
from penstock_testing.loop import SimLoop, pass_time, simulate
from penstock_testing.network import MACHINE, SimNetwork
from tests.sim.cluster_clients import CLIENTS, Promises, created
from tests.sim.cluster_machines import LEASE_S, PORTS, WAYS, ClusterMachine
from tests.sim.cluster_oracles import WatchedBlobs, WatchedLog, check_log
from tests.sim.cluster_stage import WIRED_SCENES, ClusterStage
from tests.sim.nemesis import Nemesis
from tests.sim.world import no_incidents

if TYPE_CHECKING:
    from penstock_server.runtime.realm import RunningRealm

TROUBLE_S: Final = 25.0
QUIET_S_MAX: Final = 400.0
"""Clients that have not finished this long after the last failure wait for ever."""
CALMS_S: Final = 18.0
"""A freeze, a cut or a partition lasts at most this long."""
HOUR_S: Final = 3_600


THEMES: Final = ("clocks", "cut off", "mixed", "network", "parted", "starters")
"""The most frequent kind of failure in a world."""


ALONE: Final = "alone"
SCENES: Final = (ALONE, *sorted(WIRED_SCENES))
"""Scenes that may run in addition to the clients of every world."""


class ClusterWorld:
    clients: Sequence[Callable[[ClusterWorld], Coroutine[Any, Any, None]]] = tuple(
        client for client in CLIENTS for _ in range(2)
    )
    """Clients of every world of this kind."""
    compares_log = True
    """Whether the newest snapshot and the blocks behind it are compared with the whole log."""
    settings: Mapping[str, str] = {}
    """Settings that all nodes announce."""
    heartbeat_s = 0.0
    """Seconds between two checks of clients that the owner is alive; 0: as without a cluster."""

    def __init__(self, seed: int, theme: str = "", scene: str = "") -> None:
        self.seed = seed
        self.random = Random(f"{seed}/cluster")
        self.theme = theme or self.random.choice(THEMES)
        self.servers = EngineServers()
        self.is_calm = False
        """Whether failures of the engine and the machines have ended."""
        self._is_over = False
        """Whether no new failures begin. Those that have begun still end."""
        self.has_ended = False
        """Whether the run has ended, in success or failure: no machine is started any more."""
        self.is_quiet = False
        """Whether an owner serves and stays the owner."""
        self._latest_ahead_us = 0
        """The furthest that a clock was set ahead. In the end all clocks are set to it, so that
        timed events, which may use any time a clock has shown, are soon due."""
        self.takeovers = 0
        self.faults: Counter[str] = Counter()
        self.trace: list[tuple[float, str]] = []
        self.promises = Promises(self)
        self.log = WatchedLog(self)
        self.servers.logs[0] = self.log
        self.files = WatchedBlobs()
        self.servers.stores[0] = self.files
        self.machines: dict[str, ClusterMachine] = {}
        scene = scene or self.random.choice(SCENES)
        self.scene = scene
        self._stage = ClusterStage(self, scene) if scene != ALONE else None

    @property
    def latest_us(self) -> int:
        """The latest time that a node's clock has ever shown, in µs."""
        return self.loop.now_us() + self._latest_ahead_us

    @property
    def loop(self) -> SimLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop), "a world is simulated"
        return loop

    @property
    def network(self) -> SimNetwork:
        return self.loop.network

    def note(self, what: str) -> None:
        """Record a step in the trace, which determines the seed's hash."""
        self.trace.append((self.loop.time(), what))

    @property
    def hash(self) -> str:
        trace = "\n".join(f"{at_s:.6f} {what}" for at_s, what in self.trace)
        return sha256(trace.encode()).hexdigest()

    def serves(self, machine: ClusterMachine) -> None:
        """Called when a machine has taken over the shard."""

    async def thawed(self, machine: str) -> None:
        await self.machines[machine].thaw.wait()

    def pause_s(self, rate: float) -> float:
        """Return the pause of a client: ``rate`` times a second on average, five times longer after
        the trouble."""
        return self.random.expovariate(rate) * (5 if self._is_over else 1)

    def life_of(self, machine: str) -> int:
        """Return the epoch of the owner that a machine is connected to; 0 if it has no
        connection."""
        for near, far in self.loop.network.connections():
            if near.machine == machine and far.machine in self.machines:
                return self.machines[far.machine].epoch
        return 0

    def is_listened_to(self, machine: str) -> bool:
        """Return whether a machine has a connection that neither side considers lost. Events that
        arrive over another one were sent before the node gave it up, and may belong to other
        clients since."""
        return any(near.machine == machine for near, _ in self.network.connections())

    def is_stale(self, machine: str) -> bool:
        """Return whether a machine is not connected to the newest owner: an earlier owner sent its
        events."""
        return self.life_of(machine) != self.log.recovered_by

    async def live(self) -> str:
        """Run the failures, then a quiet end in which everything is checked. Return the trace's
        hash."""
        try:
            return await self._live()
        finally:
            self.has_ended = True

    async def _live(self) -> str:
        self.loop.shuffles = False
        self.machines = {name: ClusterMachine(self, name) for name in PORTS}
        with no_incidents():
            for machine in self.machines.values():
                machine.start()
            await self.prepare()
            async with asyncio.TaskGroup() as clients:
                working = [clients.create_task(client(self)) for client in self.clients]
                if self._stage is not None:
                    working.append(await self._stage.play(clients))
                await self.trouble()
                await self._calm()
                self.promises.end.set()
                _, waiting = await asyncio.wait(working, timeout=QUIET_S_MAX)
                assert not waiting, f"somebody waits for ever: {self._unfinished_tasks()}"
            await self.check()
            if self._stage is not None:
                await self._stage.check()
            await self._shut_down()
            if self.compares_log:
                await check_log(self)
            assert not self.promises.broken, self.promises.broken[:3]
        self.note(f"checked after {self.takeovers} takeovers")
        return self.hash

    async def check(self) -> None:
        """Check the promises made to clients."""
        await self.promises.check()

    def _unfinished_tasks(self) -> str:
        return ", ".join(sorted({f"{task.machine}: {task}" for task in self.loop.tasks}))

    async def prepare(self) -> None:
        """Create the channels, durables and joins that the clients need."""
        await created(self)

    def recovered(self, realm: RunningRealm) -> None:
        """Called when a node has recovered the realm, before it serves it."""

    async def trouble(self) -> None:
        """Cause failures of machines and of the engine."""
        random, end_s = self.random, self.loop.time() + TROUBLE_S
        if self.theme == "network":
            realms = [("127.0.0.1", port) for port in PORTS.values()]
            cutting = self.loop.create_task(Nemesis(self, *realms).run(TROUBLE_S))
            self.promises.tasks.append(cutting)
        while self.loop.time() < end_s:
            await pass_time(random.uniform(0.5, 3.0))
            machine = self.owner()
            if random.random() > 0.7:
                machine = self.machines[random.choice(sorted(PORTS))]
            what = random.choice(self.plan())
            self.faults[what.__name__.strip("_")] += 1
            what(machine, random.uniform(0.3, 9.0))

    def plan(self) -> list[Callable[[ClusterMachine, float], None]]:
        """Return the possible failures; one that is listed more often happens more often."""
        anything: list[Callable[[ClusterMachine, float], None]] = [
            self.kill,
            self.freeze,
            self._cut,
            self._part,
            self._clock,
            self._order,
        ]
        most: dict[str, list[Callable[[ClusterMachine, float], None]]] = {
            "clocks": [self._clock, self._clock, self._part] * 3,
            "cut off": [self._cut] * 8,
            "parted": [self._part] * 8,
            "starters": [self.kill, self.freeze] * 4,
        }
        return anything + most.get(self.theme, [])

    def owner(self) -> ClusterMachine:
        for machine in self.machines.values():
            if machine.is_running and machine.node.claims.owned:
                return machine
        return self.machines[next(iter(PORTS))]

    def kill(self, machine: ClusterMachine, for_s: float) -> None:
        if machine.is_running:
            machine.kill()
            self.loop.call_later(for_s, machine.start)

    def freeze(self, machine: ClusterMachine, for_s: float) -> None:
        context = copy_context()
        context.run(MACHINE.set, "")  # the task that ends the freeze must outlive the machine
        freezing = self.loop.create_task(machine.freeze(for_s), context=context)
        self.promises.tasks.append(freezing)

    def _cut(self, machine: ClusterMachine, for_s: float) -> None:
        way = self.random.choice(WAYS)
        self.note(f"{machine.name} is cut off from the engine, {way}")
        machine.link.cut(for_s + (2 * LEASE_S if self.theme == "cut off" else 0), way)

    def _part(self, machine: ClusterMachine, for_s: float) -> None:
        if machine.link.is_cut:
            return
        self.note(f"{machine.name} is parted from the engine and from clients")
        machine.part(for_s + 2 * LEASE_S)

    def _order(self, machine: ClusterMachine, for_s: float) -> None:
        """Order a handover: to a machine by name, or away from a drained machine."""
        target = self.random.choice(
            [peer for peer in self.machines.values() if peer is not machine]
        )
        is_drained = self.random.random() < 0.5
        context = copy_context()
        # the order does not end with the machine that is about to be killed
        context.run(MACHINE.set, "")
        ordering = self._ordered(machine, target, for_s, is_drained=is_drained)
        self.promises.tasks.append(self.loop.create_task(ordering, context=context))

    async def _ordered(
        self, machine: ClusterMachine, target: ClusterMachine, for_s: float, *, is_drained: bool
    ) -> None:
        records, me, to = self.servers.records, machine.node.claims.me, target.node.claims.me
        if is_drained:
            self.note(f"{machine.name} is drained")
            await change_orders(records, lambda orders: orders.with_drained((me.node, me.nonce)))
            await pass_time(for_s)
            await change_orders(records, lambda orders: orders.without_drained(me.node))
            return
        claim = machine.node.claims.claims.get(SHARD)
        move = MoveOrder(to.node, to.nonce, 0 if claim is None else claim.epoch)
        self.note(f"the realm is to move to {target.name}")
        await change_orders(records, lambda orders: orders.with_move(SHARD, move))

    def _clock(self, machine: ClusterMachine, _: float) -> None:
        machine.clock.ahead_us += int(self.random.uniform(-HOUR_S, HOUR_S) * 1e6)
        self._latest_ahead_us = max(self._latest_ahead_us, machine.clock.ahead_us)
        self.note(f"the clock of {machine.name} is set")

    async def _calm(self) -> None:
        """End all failures and wait until a node owns the shard."""
        self._is_over = True
        await pass_time(CALMS_S)
        self.is_calm = True
        for machine in self.machines.values():
            machine.link.heal()
            machine.clock.ahead_us = self._latest_ahead_us
            machine.start()
        self.note("calm")
        await pass_time(2 * LEASE_S)
        self.is_quiet = True

    async def _shut_down(self) -> None:
        """End the nodes one after the other: each hands over its shard, and the last closes it."""
        for machine in self.machines.values():
            assert machine.task is not None, "it was started"
            if machine.task.done():
                machine.task.result()
            await asyncio.wait_for(machine.node.leave(), QUIET_S_MAX)
            await asyncio.wait([machine.task])
            machine.task.result()
        for task in self.promises.tasks:
            task.cancel()


def cluster_life_of(seed: int, theme: str = "", scene: str = "") -> str:
    """Return the hash of the trace. Raises the error of a failed life.

    ``theme`` sets the most frequent failure, ``scene`` the scene, instead of drawn ones.
    """
    world = ClusterWorld(seed, theme, scene)
    return simulate(world.live(), world.random)
