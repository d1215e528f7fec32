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
from tests.sim.cluster_oracles import watch_owner

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld

T = TypeVar("T")

PORTS: Final = {"n1": 9_001, "n2": 9_002, "n3": 9_003}
MEMBER: Final = 100
"""Distance from the port of clients to that of the node, which shows whether its process runs."""
VISITS: Final = 200
"""Distance to a machine's second port, for visitors that reach it when others do not."""
LEASE_S: Final = 4.0
SEGMENTS: Final = "segments/"
Way = Literal["both ways", "on the way there", "on the way back"]
WAYS: Final[tuple[Way, ...]] = ("both ways", "on the way there", "on the way back")
"""Ways to cut a machine off from the engine. If only answers are lost, the engine does what the
machine requests, but the machine does not learn of it."""
PATIENCE_S: Final = 0.3
"""Seconds that a request to the engine waits for its answer."""
LATE: Final = 0.01
"""Share of requests that the engine does late."""
LATE_S_MAX: Final = 10.0
FAILING: Final = "failovers"
"""The theme of worlds whose owners end one after the other."""
OFTEN: Final = {"parted": 0.2, "starters": 2.5, FAILING: 0.3}
"""Factor of the chance to freeze during a takeover, by theme. A parted owner shows an outdated
state only if another node takes over, so freezes are rarer there."""
CACHE_BYTES: Final = 12_000
"""Room for a few files."""
IDLE_S: Final = 0.7
"""After this time an owner without clients has nothing left to append."""
FRAME_BYTES: Final = 100
"""Small enough that most blocks have several frames."""


class EngineLink:
    """Requests of one machine to the engine: each may be lost, answered late, or done late."""

    def __init__(self, world: ClusterWorld, machine: str) -> None:
        self._world = world
        self._machine = machine
        self._sends_from_s = self._receives_from_s = 0.0
        """Times before which requests, and answers, are lost. Requests already under way arrive."""

    @property
    def is_cut(self) -> bool:
        """Whether requests or answers are lost."""
        return not (self._sends and self._receives)

    @property
    def _sends(self) -> bool:
        return self._world.loop.time() >= self._sends_from_s

    @property
    def _receives(self) -> bool:
        return self._world.loop.time() >= self._receives_from_s

    def cut(self, for_s: float, way: Way = "both ways") -> None:
        until_s = self._world.loop.time() + for_s
        if way != "on the way back":
            self._sends_from_s = max(self._sends_from_s, until_s)
        if way != "on the way there":
            self._receives_from_s = max(self._receives_from_s, until_s)

    def heal(self) -> None:
        self._sends_from_s = self._receives_from_s = 0.0

    async def __call__(self, call: Callable[[], T]) -> T:
        world, random = self._world, self._world.random
        await world.thawed(self._machine)
        if world.is_calm:
            await pass_time(0.001)
            return call()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Callable[[], T]] = loop.create_future()
        answer_s, is_answered = random.expovariate(400), random.random() < 0.98
        request_s, late = random.expovariate(400), LATE * (5 if world.theme == "cut off" else 1)
        if random.random() < late:
            request_s += random.uniform(0, LATE_S_MAX)

        def arrive() -> None:
            done = _outcome(call)
            if is_answered and self._receives:
                loop.call_later(answer_s, _set_answer, answer, done)
            else:
                world.faults["answer lost"] += 1

        if random.random() < 0.99 and self._sends:
            loop.call_later(request_s, arrive)
        else:
            world.faults["request lost"] += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                done = await answer
        except TimeoutError:
            world.faults["done late, or never" if request_s > PATIENCE_S else "no answer"] += 1
            await world.thawed(self._machine)
            raise NoAnswer from None
        await world.thawed(self._machine)
        return done()


def _set_answer(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():  # otherwise the request has timed out
        answer.set_result(result)


def _outcome(call: Callable[[], T]) -> Callable[[], T]:
    """Call a function now; return a function that later returns its result or raises its
    refusal."""
    try:
        result = call()
    except PenstockError as refusal:
        error = refusal

        def refuse() -> T:
            raise error

        return refuse
    return lambda: result


class SlowToFence(MemoryEngine):
    """An engine whose machine often freezes between its claim and its fence."""

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
    """Files whose machine often freezes before it lists them, and so before it removes some.
    Sometimes it freezes after it has written a file that no fact names yet."""

    def __init__(
        self, blobs: MemoryBlobs, requests: RetryingRequests, machine: ClusterMachine
    ) -> None:
        super().__init__(blobs, requests)
        self._machine = machine

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        await super().put(name, chunks)
        if name.startswith(SEGMENTS) and self._machine.may_freeze(
            "before it names a file", 0.02, 8
        ):
            await asyncio.sleep(0)  # the freeze begins

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        if prefix == SEGMENTS and self._machine.may_freeze("before it lists files", 0.3, 8):
            await asyncio.sleep(0)  # the freeze begins
        return await super().list(prefix)


class MachineClock(SystemClock):
    """The clocks of one machine: its steady clock is slightly fast or slow, its wall clock can be
    set."""

    def __init__(self, world: ClusterWorld) -> None:
        rate, began_us = world.random.uniform(0.97, 1.03), world.random.randint(0, 10**12)
        self.ahead_us = 0

        def wall_ns() -> int:
            return (START_US + int(world.loop.time() * 1e6) + self.ahead_us) * 1_000

        super().__init__(wall_ns, lambda: int(began_us + world.loop.time() * rate * 1e6) * 1_000)


class ClusterMachine:
    """A machine with one node that serves shards; it is restarted after a kill."""

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
        """Epoch of the shard that it serves; 0 before it has served one."""
        self._disk = MemoryBlobs()
        """Its cache, which survives a restart."""
        self._starts = 0
        self.format = FORMAT
        """The newest format that the machine's version supports."""
        self.settings = world.settings
        """Settings that its node announces after the next start. The lease and the place of the
        files also change at the next start."""
        self.lease_s = LEASE_S
        self.other_place: MemoryBlobs | None = None
        """Another place where it looks for files; None: the common place."""
        self._listener: NativeListener | None = None
        """Accepts clients while a shard is served."""
        self._shut: tuple[Door, NativeListener | None] | None = None
        """The door that clients cannot reach, and the listener it belongs to."""
        self._apart_until_s = 0.0

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def serves(self) -> bool:
        """Whether it is the newest owner and clients may connect."""
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
        """Perhaps freeze during a takeover. Return whether it does, and so at once."""
        random = self.world.random
        chance *= OFTEN.get(self.world.theme, 1.0)
        freezes = not self.world.is_calm and random.random() < chance
        if freezes:
            self.world.faults[f"frozen {when}"] += 1
            self.world.freeze(self, random.uniform(atleast_s, 14))
        return freezes

    def part(self, for_s: float) -> None:
        """Cut the machine off from clients and, once it has handled their requests, from the
        engine; visitors still reach it. An owner in the middle of an append would not answer
        visitors anyway."""
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
        """Stop all traffic of the machine for a while. Data in transit is lost with its
        connections."""
        network = self.world.loop.network
        if not self.thaw.is_set() or self.world.is_calm:
            return
        self.thaw.clear()
        self.world.note(f"{self.name} freezes")
        listener, node = self._listener, self.node
        doors = {
            address: door for address, door in network.doors.items() if door.machine == self.name
        }
        network.power_off(self.name)
        await pass_time(for_s)
        network.power_on(self.name)
        for address, door in doors.items() if self.is_running and node is self.node else ():
            if address[1] == self.port + MEMBER or listener is self._listener:
                network.doors.setdefault(address, door)
        self.world.note(f"{self.name} wakes")
        self.thaw.set()
        if self._listener is not None:  # its connections are lost
            for connection in list(self._listener.connections):
                connection.abort()

    # --- calls of a node that serves a shard ---------------------------------------------

    async def open(
        self, shard: int, journal: Journal, blobs: Blobs, lease: OwnerLease
    ) -> RunningRealm:
        """Recover the realm, with limits so small that it seals and trims all the time."""
        world = self.world
        world.log.recovered_by = max(world.log.recovered_by, lease.epoch)
        hurried = SlowOffload(world.random, longest_s=0.002)
        cached = CachedBlobs(blobs, self._disk, CACHE_BYTES, offload=hurried)
        if self.may_freeze("in its recovery", 0.15):
            await asyncio.sleep(0)  # the freeze begins
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
        recovered = realm.recovered
        assert not recovered.damage, f"{self.name} has recovered damage: {recovered.damage[:3]}"
        watch_owner(self, realm, lease.epoch)
        world.serves(self)
        world.recovered(realm)
        self.epoch = lease.epoch
        world.note(f"{self.name} serves epoch {lease.epoch}, {recovered.events} events")
        world.takeovers += 1
        return realm

    async def serve(self, realm: RunningRealm, stopping: asyncio.Event) -> None:
        await self.thaw.wait()
        listener = self._listener = NativeListener(realm, "simulated", NativeLimits())
        if self.world.heartbeat_s:  # only clients that know of owners get a heartbeat interval
            listener.heartbeat_s = self.world.heartbeat_s
            listener.owners = lambda: Owners(0, {})
        try:
            await serve_clients(realm, listener, [self.port, self.port + VISITS], stopping=stopping)
        finally:
            self._listener = None
            self.world.note(f"{self.name} serves no more")
