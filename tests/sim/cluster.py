"""Three nodes over one engine whose answers get lost, and clients that remember what they were
promised: whole realms, listeners, takeovers and the asynchronous client, on virtual time.

Everything is drawn from one seed. A machine is killed, frozen (also between its claim and its
fence), or cut off from the engine; what the engine is asked is lost, answered late, or done late.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from hashlib import sha256
from random import Random
from typing import Any, Final, TypeVar

from penstock.bootstrap import rules
from penstock.cluster.node import ClusterNode
from penstock.core.owning.claims import MemberRecord
from penstock.core.vocabulary.errors import PenstockError
from penstock.core.vocabulary.ports import BlobInfo, Blobs, Journal
from penstock.frontends.native.listener import NativeLimits, NativeListener
from penstock.runtime.clock import SystemClock
from penstock.runtime.delivery.owner_lease import OwnerLease
from penstock.runtime.realm import Limits, RunningRealm
from penstock.runtime.upkeep.sealer import SealingLimits
from penstock.storage.memory import MemoryBlobs, MemoryPages
from penstock.testing.engine import (
    Asking,
    EngineBlobs,
    EngineJournal,
    EngineServers,
    LogFrame,
    MemoryEngine,
    NoAnswer,
    ShardLog,
)
from penstock.testing.loop import START_US, SimLoop, SlowOffload, pass_time, simulate
from penstock.testing.network import MACHINE
from tests.sim.cluster_clients import CLIENTS, Promises, created
from tests.sim.world import nothing_unforeseen

T = TypeVar("T")

NODES: Final = ("n1", "n2", "n3")
PORTS: Final = {"n1": 9_001, "n2": 9_002, "n3": 9_003}
VISITS: Final = 200
"""A machine's second port is so much higher: for those who reach it when others do not."""
LEASE_S: Final = 4.0
SEGMENTS: Final = "segments/"
PATIENCE_S: Final = 0.3
"""How long whoever asks the engine waits for an answer."""
TROUBLE_S: Final = 25.0
QUIET_S_MAX: Final = 120.0
"""What is not done so long after the last trouble will never be."""
FRAME_BYTES: Final = 700
"""Most blocks are of several frames."""
HOUR_S: Final = 3_600


class EngineLink:
    """What one machine asks of the engine: each call may be lost, answered late, or done late."""

    def __init__(self, world: ClusterWorld, machine: str) -> None:
        self._world = world
        self._machine = machine
        self.is_cut = False

    async def __call__(self, call: Callable[[], T]) -> T:
        world, random = self._world, self._world.random
        await world.thawed(self._machine)
        if world.is_calm:
            await pass_time(0.001)
            return call()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Callable[[], T]] = loop.create_future()
        back_s, is_answered = random.expovariate(400), random.random() < 0.98
        there_s = random.expovariate(400) + (random.uniform(0, 10) if random.random() < 0.01 else 0)

        def arrive() -> None:
            done = _outcome(call)
            if is_answered and not self.is_cut:
                loop.call_later(back_s, _tell, answer, done)
            else:
                world.faults["answer lost"] += 1

        if random.random() < 0.99 and not self.is_cut:
            loop.call_later(there_s, arrive)
        else:
            world.faults["request lost"] += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                done = await answer
        except TimeoutError:
            world.faults["done late, or never" if there_s > PATIENCE_S else "no answer"] += 1
            await world.thawed(self._machine)
            raise NoAnswer from None
        await world.thawed(self._machine)
        return done()


def _tell(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():  # else nobody waits any more
        answer.set_result(result)


def _outcome(call: Callable[[], T]) -> Callable[[], T]:
    """What becomes of a call, to be heard later."""
    try:
        result = call()
    except PenstockError as refusal:
        error = refusal

        def refuse() -> T:
            raise error

        return refuse
    return lambda: result


class SlowToFence(MemoryEngine):
    """An engine in front of which a machine often freezes: between its claim and its fence."""

    def __init__(self, machine: ClusterMachine) -> None:
        super().__init__(machine.world.servers, call=machine.link, frame_bytes_max=FRAME_BYTES)
        self._machine = machine

    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> EngineJournal:
        self._machine.may_freeze(0.3)
        return await super().journal(shard, epoch, begins=begins)

    async def blobs(self, shard: int) -> EngineBlobs:
        return SlowToList(self.servers.blobs(shard), self._asking, self._machine)


class SlowToList(EngineBlobs):
    """Files in front of whose list a machine often freezes: before it removes some of them."""

    def __init__(self, blobs: MemoryBlobs, asking: Asking, machine: ClusterMachine) -> None:
        super().__init__(blobs, asking)
        self._machine = machine

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        if prefix == SEGMENTS and self._machine.may_freeze(0.3):
            await asyncio.sleep(0)  # it begins
        return await super().list(prefix)


class WatchedLog(ShardLog):
    """The log of the shard, as an oracle: once somebody has recovered from it, nobody of an older
    epoch writes to it."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__()
        self._world = world
        self.recovered_by = 0

    def append(self, expected: int, frame: LogFrame) -> None:
        super().append(expected, frame)
        if frame.epoch < self.recovered_by:
            late = f"epoch {frame.epoch} has written after {self.recovered_by} had recovered"
            self._world.promises.broken.append(late)


class MachineClock(SystemClock):
    """The clocks of one machine: one runs a little fast or slow, the other is set by people."""

    def __init__(self, world: ClusterWorld) -> None:
        rate, began_us = world.random.uniform(0.97, 1.03), world.random.randint(0, 10**12)
        self.ahead_us = 0

        def wall_ns() -> int:
            return (START_US + int(world.loop.time() * 1e6) + self.ahead_us) * 1_000

        super().__init__(wall_ns, lambda: int(began_us + world.loop.time() * rate * 1e6) * 1_000)


class ClusterMachine:
    """A machine with one node, started again when it was killed. It serves shards."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.port = PORTS[name]
        self.link = EngineLink(world, name)
        self.clock = MachineClock(world)
        self.thaw = asyncio.Event()
        self.thaw.set()
        self.node: ClusterNode
        self.task: asyncio.Task[None] | None = None
        self._starts = 0
        self._listener: NativeListener | None = None

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    def start(self) -> None:
        if self.is_running:
            return
        if self.task is not None and not self.task.cancelled() and self.task.exception():
            self.world.promises.broken.append(f"{self.name} ended: {self.task.exception()!r}")
        self._starts += 1
        address = f"127.0.0.1:{self.port + 100}"
        me = MemberRecord(self.name, f"start {self._starts}", address=address)
        self.node = ClusterNode(SlowToFence(self), me, self, self.clock, lease_s=LEASE_S)
        self.task = self.on_machine(self.node.run())
        self.world.note(f"{self.name} starts")

    def on_machine(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        context = copy_context()
        context.run(MACHINE.set, self.name)
        return self.world.loop.create_task(work, context=context)

    def kill(self) -> None:
        self.world.note(f"{self.name} is killed")
        if self._listener is not None:
            self._listener.cut()
        self.world.loop.network.kill(self.name)
        self.world.loop.kill(self.name)

    def may_freeze(self, chance: float) -> bool:
        """In the middle of taking over; whether it does so at once."""
        random = self.world.random
        chance *= 2.5 if self.world.theme == "starters" else 1.0
        freezes = not self.world.is_calm and random.random() < chance
        if freezes:
            self.world.freeze(self, random.uniform(3.0, 12.0))
        return freezes

    def part(self, for_s: float) -> None:
        """Neither the engine nor the clients reach it any more; visitors do."""
        network = self.world.loop.network
        self.link.is_cut = True
        for connection in list(self._listener.connections) if self._listener else ():
            connection.abort()
        address = "127.0.0.1", self.port
        door = network.doors.pop(address, None)

        def join() -> None:
            self.link.is_cut = False
            if door is not None and self.is_running and address not in network.doors:
                network.doors[address] = door

        self.world.loop.call_later(for_s, join)

    async def freeze(self, for_s: float) -> None:
        """Nothing gets in or out, and what was on its way is lost with its connection."""
        network = self.world.loop.network
        if not self.thaw.is_set() or self.world.is_calm:
            return
        self.thaw.clear()
        self.world.note(f"{self.name} freezes")
        doors = {at: door for at, door in network.doors.items() if door.machine == self.name}
        network.power_off(self.name)
        await pass_time(for_s)
        network.power_on(self.name)
        for door in doors.values() if self.is_running else ():
            network.doors.setdefault(door.getsockname(), door)
        self.world.note(f"{self.name} wakes")
        self.thaw.set()
        if self._listener is not None:  # its connections are gone
            for connection in list(self._listener.connections):
                connection.abort()

    # --- what a node asks of whoever serves its shards -----------------------------------

    async def open(
        self, shard: int, journal: Journal, blobs: Blobs, lease: OwnerLease
    ) -> RunningRealm:
        """Recover, with everything so small that it is sealed and trimmed all the time."""
        world = self.world
        world.log.recovered_by = max(world.log.recovered_by, lease.epoch)
        realm = await RunningRealm.open(
            journal,
            blobs,
            MemoryPages(),
            rules(),
            self.clock,
            SlowOffload(world.random, longest_s=0.02),
            identity="simulated",
            limits=Limits(sweep_interval_s=0.2),
            sealing=SealingLimits(
                segment_bytes_max=2_000,
                journal_bytes_max=6_000,
                snapshot_tail_bytes_max=4_000,
                interval_s=0.05,
                retry_s=0.1,
            ),
            lease=lease,
        )
        found = realm.recovered
        assert not found.damage, f"{self.name} has recovered damage: {found.damage[:3]}"
        world.note(f"{self.name} serves epoch {lease.epoch}, {found.events} events")
        world.takeovers += 1
        return realm

    async def serve(self, realm: RunningRealm, stopping: asyncio.Event) -> None:
        listener = self._listener = NativeListener(realm, "simulated", NativeLimits())
        ready = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(realm.run())
                listening = tasks.create_task(listener.run(ready))
                await ready.wait()
                await listener.listen("127.0.0.1", self.port)
                await listener.listen("127.0.0.1", self.port + VISITS)
                await stopping.wait()
                await listener.close()
                await realm.close()
                listening.cancel()
        except BaseExceptionGroup as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        finally:
            listener.cut()
            self.world.note(f"{self.name} serves no more")


THEMES: Final = ("cut off", "mixed", "parted", "starters")
"""What goes wrong most in a world."""


class ClusterWorld:
    def __init__(self, seed: int, theme: str = "") -> None:
        self.seed = seed
        self.random = Random(f"{seed}/cluster")
        self.theme = theme or self.random.choice(THEMES)
        self.servers = EngineServers()
        self.is_calm = False
        """Nothing happens to the engine or to machines any more."""
        self.takeovers = 0
        self.faults: Counter[str] = Counter()
        self.trace: list[tuple[float, str]] = []
        self.promises = Promises(self)
        self.log = WatchedLog(self)
        self.servers._logs[0] = self.log
        self.machines: dict[str, ClusterMachine] = {}

    @property
    def loop(self) -> SimLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop), "a world is simulated"
        return loop

    def note(self, what: str) -> None:
        """Part of what a seed's hash is made of."""
        self.trace.append((self.loop.time(), what))

    @property
    def hash(self) -> str:
        told = "\n".join(f"{at_s:.6f} {what}" for at_s, what in self.trace)
        return sha256(told.encode()).hexdigest()

    async def thawed(self, machine: str) -> None:
        await self.machines[machine].thaw.wait()

    async def live(self) -> str:
        """Trouble, and then a quiet end in which everything is checked."""
        self.loop.shuffles = False
        self.machines = {name: ClusterMachine(self, name) for name in NODES}
        with nothing_unforeseen():
            for machine in self.machines.values():
                machine.start()
            await created(self)
            async with asyncio.TaskGroup() as clients:
                working = [
                    clients.create_task(client(self)) for client in CLIENTS for _ in range(2)
                ]
                await self._trouble()
                await self._calm()
                self.promises.end.set()
                _, waiting = await asyncio.wait(working, timeout=QUIET_S_MAX)
                assert not waiting, f"somebody waits for ever: {sorted(map(str, waiting))}"
            await self.promises.check()
            await self._leave()
        self.note(f"checked after {self.takeovers} takeovers")
        return self.hash

    async def _trouble(self) -> None:
        random, end_s = self.random, self.loop.time() + TROUBLE_S
        while self.loop.time() < end_s:
            await pass_time(random.uniform(0.5, 3.0))
            owner = self._owner()
            machine = owner if random.random() < 0.7 else self.machines[random.choice(NODES)]
            what = random.choice(self._plan())
            self.faults[what.__name__.strip("_")] += 1
            what(machine, random.uniform(0.3, 9.0))

    def _plan(self) -> list[Callable[[ClusterMachine, float], None]]:
        """What may happen, as often as it is in the list."""
        anything: list[Callable[[ClusterMachine, float], None]] = [
            self._kill,
            self.freeze,
            self._cut,
            self._part,
            self._clock,
        ]
        most: dict[str, list[Callable[[ClusterMachine, float], None]]] = {
            "cut off": [self._cut] * 8,
            "parted": [self._part] * 8,
            "starters": [self._kill, self.freeze] * 4,
        }
        return anything + most.get(self.theme, [])

    def _owner(self) -> ClusterMachine:
        for machine in self.machines.values():
            if machine.is_running and machine.node.claims.owned:
                return machine
        return self.machines[NODES[0]]

    def _kill(self, machine: ClusterMachine, for_s: float) -> None:
        if machine.is_running:
            machine.kill()
            self.loop.call_later(for_s, machine.start)

    def freeze(self, machine: ClusterMachine, for_s: float) -> None:
        context = copy_context()
        context.run(MACHINE.set, "")  # what wakes it does not end with it
        freezing = self.loop.create_task(machine.freeze(for_s), context=context)
        self.promises.tasks.append(freezing)

    def _cut(self, machine: ClusterMachine, for_s: float) -> None:
        self.note(f"{machine.name} is cut off from the engine")
        machine.link.is_cut = True
        for_s += 2 * LEASE_S if self.theme == "cut off" else 0
        self.loop.call_later(for_s, setattr, machine.link, "is_cut", False)

    def _part(self, machine: ClusterMachine, for_s: float) -> None:
        self.note(f"{machine.name} is parted from the engine and from clients")
        machine.part(for_s + LEASE_S)

    def _clock(self, machine: ClusterMachine, _: float) -> None:
        machine.clock.ahead_us += int(self.random.uniform(-HOUR_S, HOUR_S) * 1e6)
        self.note(f"the clock of {machine.name} is set")

    async def _calm(self) -> None:
        """Everybody is well again, and somebody owns the shard."""
        await pass_time(15)
        self.is_calm = True
        for machine in self.machines.values():
            machine.link.is_cut = False
            machine.start()
        self.note("calm")
        await pass_time(2 * LEASE_S)

    async def _leave(self) -> None:
        """One after the other hands over what it owns; the last one closes it."""
        for machine in self.machines.values():
            assert machine.task is not None, "it was started"
            if machine.task.done():
                machine.task.result()
            await asyncio.wait_for(machine.node.leave(), QUIET_S_MAX)
            await asyncio.wait([machine.task])
            machine.task.result()
        for task in self.promises.tasks:
            task.cancel()


def cluster_life_of(seed: int, theme: str = "") -> str:
    """The hash of everything that happened. Raises what went wrong.

    ``theme``: what goes wrong most, instead of a drawn one.
    """
    world = ClusterWorld(seed, theme)
    return simulate(world.live(), world.random)
