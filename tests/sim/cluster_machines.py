"""Machines of a simulated cluster: one node each, over an engine whose answers get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from packages.cluster.tests.serving import serve_clients
from penstock_cluster.nodes.node import ClusterNode
from penstock_cluster.owning.register_records import MemberRecord
from penstock_cluster.storage.shared_blobs import CachedBlobs
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.formats import FORMAT
from penstock_core.vocabulary.ports import BlobInfo, Blobs, Buffer, Journal
from penstock_core.wire.native.messages import Owners
from penstock_server.bootstrap import rules
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.delivery.owner_lease import OwnerLease
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.storage.memory import MemoryBlobs, MemoryPages
from penstock_testing.engine import (
    EngineBlobs,
    EngineJournal,
    MemoryEngine,
    NoAnswer,
    RetryingRequests,
)
from penstock_testing.loop import START_US, SlowOffload, pass_time
from penstock_testing.network import MACHINE, Door
from tests.sim.cluster_oracles import hear

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld

T = TypeVar("T")

PORTS: Final = {"n1": 9_001, "n2": 9_002, "n3": 9_003}
MEMBER: Final = 100
"""The port of a machine's node, where it can be seen whether its process is there, is so much
higher than the one that clients come to."""
VISITS: Final = 200
"""A machine's second port is so much higher: for those who reach it when others do not."""
LEASE_S: Final = 4.0
SEGMENTS: Final = "segments/"
Way = Literal["both ways", "on the way there", "on the way back"]
WAYS: Final[tuple[Way, ...]] = ("both ways", "on the way there", "on the way back")
"""How a machine is cut off from the engine. Where only answers are lost, all is done that it asks
for, and it knows of none."""
PATIENCE_S: Final = 0.3
"""How long whoever asks the engine waits for an answer."""
LATE: Final = 0.01
"""Share of what is asked that is done late, and by how much at most."""
LATE_S_MAX: Final = 10.0
FAILING: Final = "failovers"
"""The theme of worlds in which one owner ends after the other."""
OFTEN: Final = {"parted": 0.2, "starters": 2.5, FAILING: 0.3}
"""How often machines freeze while they take over, where it is not as usual: whoever is parted shows
what is past only once there is a next owner."""
CACHE_BYTES: Final = 12_000
"""A few files."""
IDLE_S: Final = 0.7
"""After this an owner to which nobody comes has nothing left to append."""
FRAME_BYTES: Final = 100
"""Most blocks are of several frames."""


class EngineLink:
    """What one machine asks of the engine: each call may be lost, answered late, or done late."""

    def __init__(self, world: ClusterWorld, machine: str) -> None:
        self._world = world
        self._machine = machine
        self._there_from_s = self._back_from_s = 0.0
        """Nothing gets to the engine, or back from it, before. What was under way to the engine
        gets there."""

    @property
    def is_cut(self) -> bool:
        """Whether anything does not get through."""
        return not (self._gets_there and self._gets_back)

    @property
    def _gets_there(self) -> bool:
        return self._world.loop.time() >= self._there_from_s

    @property
    def _gets_back(self) -> bool:
        return self._world.loop.time() >= self._back_from_s

    def cut(self, for_s: float, way: Way = "both ways") -> None:
        until_s = self._world.loop.time() + for_s
        if way != "on the way back":
            self._there_from_s = max(self._there_from_s, until_s)
        if way != "on the way there":
            self._back_from_s = max(self._back_from_s, until_s)

    def heal(self) -> None:
        self._there_from_s = self._back_from_s = 0.0

    async def __call__(self, call: Callable[[], T]) -> T:
        world, random = self._world, self._world.random
        await world.thawed(self._machine)
        if world.is_calm:
            await pass_time(0.001)
            return call()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Callable[[], T]] = loop.create_future()
        back_s, is_answered = random.expovariate(400), random.random() < 0.98
        there_s, late = random.expovariate(400), LATE * (5 if world.theme == "cut off" else 1)
        if random.random() < late:
            there_s += random.uniform(0, LATE_S_MAX)

        def arrive() -> None:
            done = _outcome(call)
            if is_answered and self._gets_back:
                loop.call_later(back_s, _tell, answer, done)
            else:
                world.faults["answer lost"] += 1

        if random.random() < 0.99 and self._gets_there:
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
        self._machine.may_freeze("before its fence", 0.3)
        return await super().journal(shard, epoch, begins=begins)

    async def blobs(self, shard: int) -> EngineBlobs:
        place = self._machine.other_place
        files = self.servers.blobs(shard) if place is None else place
        return SlowToList(files, self.requests, self._machine)


class SlowToList(EngineBlobs):
    """Files in front of whose list a machine often freezes: before it removes some of them. Now and
    then it freezes behind a new one, of which nobody knows then."""

    def __init__(
        self, blobs: MemoryBlobs, asking: RetryingRequests, machine: ClusterMachine
    ) -> None:
        super().__init__(blobs, asking)
        self._machine = machine

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        await super().put(name, chunks)
        if name.startswith(SEGMENTS) and self._machine.may_freeze(
            "before it names a file", 0.02, 8
        ):
            await asyncio.sleep(0)  # it begins

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        if prefix == SEGMENTS and self._machine.may_freeze("before it lists files", 0.3, 8):
            await asyncio.sleep(0)  # it begins
        return await super().list(prefix)


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
        self.epoch = 0
        """How often the shard it serves has been claimed; 0: it has served none yet."""
        self._disk = MemoryBlobs()
        """What it has cached, from one start to the next."""
        self._starts = 0
        self.format = FORMAT
        """The newest format that its version knows."""
        self.settings = world.settings
        """What its node shows of its settings from the next start on, and likewise below."""
        self.lease_s = LEASE_S
        self.other_place: MemoryBlobs | None = None
        """Where it looks for files; None: where they are."""
        self._listener: NativeListener | None = None
        """What lets clients come, as long as a shard is served."""
        self._shut: tuple[Door, NativeListener | None] | None = None
        """The door that clients do not reach, and whose it is."""
        self._apart_until_s = 0.0

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def serves(self) -> bool:
        """Whether clients may come to it, and it is the newest owner."""
        is_newest = self.epoch == self.world.log.recovered_by
        return self.is_running and self._listener is not None and is_newest

    def start(self) -> None:
        if self.is_running or self.world.has_ended:
            return
        if self.task is not None and not self.task.cancelled() and self.task.exception():
            self.world.promises.broken.append(f"{self.name} ended: {self.task.exception()!r}")
        self._starts += 1
        address = f"127.0.0.1:{self.port + MEMBER}"
        me = MemberRecord(
            self.name,
            f"start {self._starts}",
            address=address,
            format=self.format,
            settings=self.settings,
        )
        self.node = ClusterNode(SlowToFence(self), me, self, clock=self.clock, lease_s=self.lease_s)
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

    def may_freeze(self, when: str, chance: float, atleast_s: float = 3) -> bool:
        """In the middle of taking over; whether it does so at once."""
        random = self.world.random
        chance *= OFTEN.get(self.world.theme, 1.0)
        freezes = not self.world.is_calm and random.random() < chance
        if freezes:
            self.world.faults[f"frozen {when}"] += 1
            self.world.freeze(self, random.uniform(atleast_s, 14))
        return freezes

    def part(self, for_s: float) -> None:
        """Clients do not reach it any more, and when it has done what they have asked for, nor does
        the engine; visitors do. An owner in the middle of an append would say nothing anyway."""
        loop = self.world.loop
        loop.call_later(IDLE_S, self.link.cut, for_s - IDLE_S)
        self._apart_until_s = max(self._apart_until_s, loop.time() + for_s)
        for connection in list(self._listener.connections) if self._listener else ():
            connection.abort()
        door = loop.network.doors.pop(("127.0.0.1", self.port), None)
        if door is not None:
            self._shut = door, self._listener
        loop.call_at(self._apart_until_s, self._join)

    def _join(self) -> None:
        if self._shut is None or self.world.loop.time() < self._apart_until_s:
            return
        (door, listener), self._shut = self._shut, None
        if self.is_running and listener is self._listener:
            self.world.loop.network.doors.setdefault(door.getsockname(), door)

    async def freeze(self, for_s: float) -> None:
        """Nothing gets in or out, and what was on its way is lost with its connection."""
        network = self.world.loop.network
        if not self.thaw.is_set() or self.world.is_calm:
            return
        self.thaw.clear()
        self.world.note(f"{self.name} freezes")
        listener, node = self._listener, self.node
        doors = {at: door for at, door in network.doors.items() if door.machine == self.name}
        network.power_off(self.name)
        await pass_time(for_s)
        network.power_on(self.name)
        for at, door in doors.items() if self.is_running and node is self.node else ():
            if at[1] == self.port + MEMBER or listener is self._listener:
                network.doors.setdefault(at, door)
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
        hurried = SlowOffload(world.random, longest_s=0.002)
        cached = CachedBlobs(blobs, self._disk, CACHE_BYTES, offload=hurried)
        if self.may_freeze("in its recovery", 0.15):
            await asyncio.sleep(0)  # it begins
        realm = await RunningRealm.open(
            journal,
            cached,
            MemoryPages(),
            rules(),
            self.clock,
            SlowOffload(world.random, longest_s=0.02),
            identity="simulated",
            limits=Limits(sweep_interval_s=0.2, block_bytes_max=2_000),
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
        hear(self, realm, lease.epoch)
        world.serves(self)
        world.recovered(realm)
        self.epoch = lease.epoch
        world.note(f"{self.name} serves epoch {lease.epoch}, {found.events} events")
        world.takeovers += 1
        return realm

    async def serve(self, realm: RunningRealm, stopping: asyncio.Event) -> None:
        await self.thaw.wait()
        listener = self._listener = NativeListener(realm, "simulated", NativeLimits())
        if self.world.heartbeat_s:  # only who hears of the owners is told how often to speak
            listener.heartbeat_s = self.world.heartbeat_s
            listener.owners = lambda: Owners(0, {})
        try:
            await serve_clients(realm, listener, [self.port, self.port + VISITS], stopping=stopping)
        finally:
            self._listener = None
            self.world.note(f"{self.name} serves no more")
