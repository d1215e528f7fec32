"""A realm on a disk that loses power, fills up and fails, behind a network that breaks, and the
scenes played on it.

Everything is drawn from one seed: the scenes, the interleaving, the faults and the actions of
clients. The oracles are the clients: each remembers what it was promised.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextvars import copy_context
from hashlib import sha256
from random import Random
from typing import Any, Literal

from msgspec.structs import replace
from structlog.testing import capture_logs

from penstock_core.api.requests import Kind
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import (
    NameAlreadyBound,
    PenstockError,
    RealmStopping,
    StorageFailed,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.bootstrap import rules
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.runtime.upkeep.compaction import MaintenanceLimits
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.storage.embedded import Embedded, JournalLimits, PageLimits, open_embedded
from penstock_testing.disk import FaultyDisk
from penstock_testing.loop import START_US, SimLoop, SlowOffload, pass_time, simulate
from penstock_testing.network import MACHINE, SimNetwork
from tests.sim.clients import stored
from tests.sim.gate import Gate
from tests.sim.nemesis import Nemesis
from tests.sim.scenes import SCENES
from tests.sim.scenes.scene import Scene

SCENES_MAX = 3
"""Worlds are small and many: each seed plays up to this number of scenes."""

WIRED = frozenset({"asked", "followed", "jms", "ordered", "wired"})
"""Scenes whose clients are programs on other machines, which outlive the lives of the realm."""
CONNECTED = WIRED | {"sought"}
"""Scenes with such programs among their clients, behind a network that breaks."""
KEEPS_TIME = frozenset({"chain", "dead", "paused", "scheduled", "travel"})
"""Scenes that rely on the time: the clock jumps only in worlds without them."""

WITH_FILES = ("persistent", "mixed")
"""Types of channels that keep events in files."""
COMPRESSIONS: tuple[Compression, ...] = ("none", "none", "zstd", "lz4")

REALM = "realm"
"""The machine that the realm runs on."""
PORT = 9_000
QUIET_S_MAX = 400.0
"""Clients that have not finished in the quiet life by then wait for ever."""

End = Literal["power cut", "kill", "close"]


class World:
    _forward_us = 0
    """Sum of all jumps forward of the machine's clock."""

    def __init__(self, seed: int, names: Sequence[str] = ()) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.disk = FaultyDisk(seed, on_halt=self._go_dark)
        self.lives = 0
        self.gate = Gate()
        self.realm: RunningRealm
        self.numbers: dict[str, int] = {}
        """Numbers of all stores in the current life of the realm."""
        self.is_quiet = False
        """Whether no more failures happen to the realm."""
        self._definitions: dict[str, Definition] = {}
        self._has_lost_writes = False
        """Whether cached and stored bytes may differ for good, which only a restart of the machine
        ends."""
        self.trace: list[tuple[float, str]] = []
        """Notes with their times."""
        self.clock: SystemClock
        """The realm's clock in its current life."""
        self.outside: asyncio.TaskGroup
        """Tasks of other machines, which continue when the realm ends."""
        self._clocks = Random(f"{seed}/clocks")
        """Source of clock jumps. It is separate, so that worlds without jumps draw the same values
        as before."""
        self._jump_us = 0
        self._latest_us = 0
        """The latest time that the machine's clock has shown before it was set."""
        self._ended_us = 0
        """Time of the realm's clock when its last life ended."""
        self._set_back_us = 0
        """Sum of the steps by which the clock of a life began behind that of the life before."""
        self._dark = asyncio.Event()
        """Set when the power is lost during a call to the disk."""
        self._sessions = 0
        self.network_faults: Counter[str] = Counter()
        """Faults of the network; kept here because the network ends with the simulation."""
        if not names:
            names = self.random.sample(sorted(SCENES), self.random.randint(1, SCENES_MAX))
        self.names = list(names)
        self.is_wired = bool(WIRED.intersection(names))
        self.is_connected = bool(CONNECTED.intersection(names))
        self.may_jump = not KEEPS_TIME.intersection(names)
        self.scenes: list[Scene] = [SCENES[name](self) for name in names]

    @property
    def now_us(self) -> int:
        return self._loop.now_us()

    @property
    def sessions(self) -> int:
        """A number for a new session, never used before."""
        self._sessions += 1
        return self._sessions

    @property
    def _loop(self) -> SimLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop), "a world is simulated"
        return loop

    @property
    def network(self) -> SimNetwork:
        return self._loop.network

    @property
    def loop(self) -> SimLoop:
        return self._loop

    @property
    def url(self) -> str:
        return f"penstock://somebody@127.0.0.1:{PORT}"

    def note(self, what: str) -> None:
        """Record a step in the trace, which determines the seed's hash."""
        self.trace.append((self._loop.time(), what))

    @property
    def hash(self) -> str:
        """Hash of the trace."""
        trace = "\n".join(f"{at_s:.6f} {what}" for at_s, what in self.trace)
        return sha256(trace.encode()).hexdigest()

    # --- lives of the realm --------------------------------------------------------------

    async def live(self) -> str:
        """Play several lives that end with failures, then a quiet one in which everything is
        checked."""
        self._loop.shuffles = not self.is_wired
        self.network_faults = self._loop.network.faults
        self._loop.network.kept_bytes = 4_096 if self.is_connected else 0
        with no_incidents():
            async with asyncio.TaskGroup() as self.outside:
                await self.play_failing_lives(self.random.randint(3, 6))
                self.restore_clock()
                await self._one_life(None)
        return self.hash

    async def play_failing_lives(self, count: int) -> None:
        """Play lives that end with failures."""
        longest_s = 4.0 if self.is_wired else 1.5
        for _ in range(count):
            end: End = self.random.choices(("power cut", "kill", "close"), (75, 15, 10))[0]
            await self._one_life(self.random.expovariate(1 / longest_s), end)
            if self.may_jump and self.random.random() < 0.2:
                self.jump()
            if self.is_wired:
                await pass_time(self.random.expovariate(1))

    def jump(self) -> None:
        """Set the machine's clock to a near or distant time."""
        longest_s = self._clocks.choice((3_600, 3))
        self.set_clock(int(self._clocks.uniform(-longest_s, longest_s) * 1_000_000))

    def set_clock(self, by_us: int) -> None:
        """Set the machine's clock forward or back."""
        self._latest_us = self.latest_us
        self._jump_us += by_us
        self._forward_us += max(0, by_us)
        self.note(f"the clock jumps, by {by_us / 1e6:.3f} s")

    def restore_clock(self) -> None:
        """Set the clock to the latest time it has shown, so that timed events need not wait
        long."""
        by_us = self.latest_us - self._machine_ns() // 1_000
        if by_us:
            self.set_clock(by_us)

    @property
    def latest_us(self) -> int:
        """The latest time that the machine's clock has ever shown, in µs."""
        return max(self._latest_us, self._machine_ns() // 1_000)

    @property
    def lived_us(self) -> int:
        """The realm's clock in µs, continued over its lives even if a life begins with an earlier
        time than the one before ended: waits are measured on this clock (SEM D18)."""
        return self.clock.now_us() + self._set_back_us

    @property
    def passed_us(self) -> int:
        """The most time that can have passed by the machine's clock, in µs. A realm that starts
        after the clock was set back counts from the earlier time."""
        return self._loop.now_us() + self._forward_us

    async def _set_clocks(self) -> None:
        """Set the clock now and then while the realm runs; the realm's own time must not go
        back."""
        while True:
            await pass_time(self._clocks.expovariate(1 / 2))
            self.jump()

    def _machine_ns(self) -> int:
        return (START_US + self._jump_us) * 1_000 + int(self._loop.time() * 1e9)

    async def _one_life(self, span_s: float | None, end: End = "close") -> None:
        """Play a life of ``span_s`` seconds, or, if it is None, until everything is done and
        checked."""
        self.is_quiet = span_s is None
        await self._begin()
        serving = self._on_realm(self.realm.run())
        listener, listening = await self.listen()
        clients = self._loop.create_task(self.clients(quiet=span_s is None))
        dark = self._loop.create_task(self._until_dark())
        is_closed = False
        try:
            await asyncio.wait(
                [serving, clients, dark],
                timeout=QUIET_S_MAX if span_s is None else span_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if span_s is None:
                assert clients.done() or serving.done(), (
                    f"still not done: {self._unfinished_tasks()}"
                )
                await clients
                await self._check_all()
            if span_s is not None and end == "power cut" and not serving.done():
                await self._break_off([serving, clients, dark])
            if self._dark.is_set():
                end = "power cut"
            if end == "close" and not (serving.done() or (clients.done() and span_s)):
                is_closed = await self._close(clients, listener, serving)
        finally:
            self._ended_us = self.clock.now_us()
            if not is_closed:
                self._crash(end)
            tasks = (clients, serving, listening, dark)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                self._note_end(task, is_cut_off=serving.cancelled())
            self.note(f"life {self.lives} ended")
            self.disk.fail_writes(0)
            if not is_closed:
                self._prepare_disk(end)

    async def _begin(self) -> None:
        self.lives += 1
        self.disk.free_bytes = None
        self.disk.fail_syncs(0)
        self.disk.fail_writes(0)
        self._has_lost_writes = False
        self._dark.clear()
        self.clock = SystemClock(self._machine_ns)
        self._set_back_us += max(0, self._ended_us - self.clock.now_us())
        self.realm = await self.open_realm(self.open_store())
        assert not self.realm.recovered.has_gaps, self.realm.recovered.damage
        self.note(f"life {self.lives} begins")

    async def _break_off(self, tasks: list[asyncio.Task[None]]) -> None:
        """Prepare a power cut, which in most cases interrupts a write."""
        random, disk = self.random, self.disk
        moment = random.choices(("here", "in a call", "in a sync"), (2, 3, 5))[0]
        if moment == "here":
            return
        if moment == "in a call":
            disk.halt_after(random.randint(1, 6))
        else:
            disk.halt_in_sync(random.randint(1, 3), least_bytes=random.choice((1, 1, 600)))
        await asyncio.wait(tasks, timeout=3.0, return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_dark(self) -> bool:
        """Whether the power is lost, so that the realm's messages no longer arrive."""
        return self._dark.is_set()

    async def _until_dark(self) -> None:
        await self._dark.wait()

    def _go_dark(self) -> None:
        self.note("dark")
        self.network.power_off(REALM)
        self._dark.set()

    def _on_realm(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        context = copy_context()
        context.run(MACHINE.set, REALM)
        return self._loop.create_task(work, context=context)

    async def listen(self) -> tuple[NativeListener, asyncio.Task[None]]:
        """Start the listener, so that clients can connect over the network."""
        listener = NativeListener(self.realm, "simulated", NativeLimits())
        ready = asyncio.Event()
        listening = self._on_realm(listener.run(ready))
        await ready.wait()
        self.network.power_on(REALM)
        opening = self._on_realm(_open(listener))
        await asyncio.wait([opening])
        opening.result()
        return listener, listening

    async def _close(
        self,
        clients: asyncio.Task[None],
        listener: NativeListener,
        serving: asyncio.Task[None],
    ) -> bool:
        """End the realm in order. Return whether that succeeded; the disk may have failed."""
        clients.cancel()
        await asyncio.wait([clients])
        self.note("closing")
        try:
            await listener.close()
            await self.realm.close()
            await asyncio.wait([serving])
            await self.realm.release()
        except StorageFailed:
            return False
        return not self._has_lost_writes and serving.exception() is None

    def _crash(self, end: End) -> None:
        """Stop the disk and the network, so that the realm has no further effect."""
        self.disk.halt()
        if end == "power cut":
            self.network.power_off(REALM)
        else:
            self.network.kill(REALM)

    def _prepare_disk(self, end: End) -> None:
        """Leave the disk as the next life finds it."""
        if end == "power cut" or self._has_lost_writes:
            self.disk.power_cut()
        else:
            self.disk.kill()
        self.note(end)

    def _unfinished_tasks(self) -> str:
        return ", ".join(sorted({str(task) for task in self._loop.tasks}))

    def _note_end(self, task: asyncio.Task[None], *, is_cut_off: bool) -> None:
        """Raise the error of a task unless the disk has caused it. A realm that is cut off refuses
        requests a moment before its clients are cut off, too."""
        expected = (StorageFailed, RealmStopping) if is_cut_off else StorageFailed
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BaseExceptionGroup):
            _, error = error.split(expected)
        if error is not None and not isinstance(error, expected):
            raise error

    def open_store(self) -> Embedded:
        return open_embedded(
            "/realm",
            disk=self.disk,
            offload=SlowOffload(self.random, longest_s=0.01),
            clock=self.clock,
            identity=lambda: 0x5EED,
            holder="the simulation",
            limits=JournalLimits(file_bytes_max=6_000, allocation_bytes=512),
            page_limits=PageLimits(page_bytes_min=4_096, page_bytes_max=16_384),
        )

    async def open_realm(self, store: Embedded) -> RunningRealm:
        return await RunningRealm.open(
            store.journal,
            store.blobs,
            store.pages,
            rules(),
            self.clock,
            SlowOffload(self.random, longest_s=0.05),
            identity="simulated",
            limits=Limits(sweep_interval_s=0.2),
            sealing=SealingLimits(
                segment_bytes_max=2_000,
                journal_bytes_max=4_000,
                snapshot_tail_bytes_max=4_000,
                interval_s=0.05,
                retry_s=0.1,
                retry_max_s=3.0,
                maintenance=MaintenanceLimits(
                    dead_bytes=500, interval_s=0.1, retry_s=0.1, retry_max_s=3.0
                ),
            ),
        )

    # --- operations of scenes -------------------------------------------------------------

    async def create(self, name: str, definition: Definition) -> None:
        """Create a store, or open the one that an earlier life created. Some have compressed
        files."""
        definition = self._with_compression(name, definition)
        try:
            opened = await self.realm.create_channel(name, definition)
        except NameAlreadyBound:
            opened = await self.realm.open_channel(name, _kind(definition))
        self.numbers[name] = opened.channel
        self._definitions[name] = definition

    def _with_compression(self, name: str, definition: Definition) -> Definition:
        """Draw a compression from a separate source, so that the world's other draws stay the
        same."""
        if definition.type not in WITH_FILES or definition.engine == "merge":
            return definition
        compression = Random(f"{self.seed}/files of {name}").choice(COMPRESSIONS)
        return replace(definition, storage=replace(definition.storage, compression=compression))

    async def number_of(self, store: str) -> int:
        """Wait until the scene has opened the store in this life, and return its number."""
        while store not in self.numbers:
            await pass_time(0.01)
        return self.numbers[store]

    def draw_type(self, types: Sequence[str]) -> str:
        return self.random.choice(types)

    def life_of(self, machine: str) -> int:
        """See :class:`~tests.sim.wired_world.WiredWorld`: this world has one realm at a time."""
        return self.lives

    def is_stale(self, machine: str) -> bool:
        """Whether the realm has ended the connection of a machine that does not know it yet: its
        events were sent before."""
        return all(near.machine != machine for near, _ in self.network.connections())

    def check_refusal(self, error: PenstockError) -> None:
        """Accept every refusal: a realm with a full disk refuses requests that it accepts at other
        times."""

    async def stored_on(self, store: str) -> list[tuple[int, bytes]]:
        """Return all events of a store in order, as ids and data."""
        return [(row.event_id, row.data) for row in await stored(self, store)]

    async def live_on(self, store: str) -> int:
        """Return the number of events of a store."""
        info = await self.realm.describe_channel(store, _kind(self._definitions[store]))
        return info.events

    async def create_durable(
        self,
        store: str,
        name: str,
        kind: str = "shared",
        selector: str = "",
        *,
        strict_order: bool = False,
        order_by: str = "",
        backoff: Backoff | None = None,
        ack_timeout_ms: int = 0,
    ) -> None:
        number = self.numbers[store]
        with contextlib.suppress(NameAlreadyBound):
            await self.realm.subscriptions.create_durable(
                ChannelId(number),
                name,
                kind,
                start=FromEarliest(),
                selector=selector,
                persistent=None,
                attributes=DurableAttributes(
                    strict_order=strict_order,
                    order_by=order_by,
                    backoff=backoff,
                    ack_timeout=ack_timeout_ms,
                ),
            )

    async def is_consumed(self, store: str, durable: str) -> bool:
        """Return whether no event is outstanding; False before the scene has opened the store."""
        number = self.numbers.get(store)
        if number is None:
            return False
        info = await self.realm.subscriptions.durable(ChannelId(number), durable)
        return not info.outstanding

    # --- clients -------------------------------------------------------------------------

    async def clients(self, *, quiet: bool) -> None:
        self.numbers.clear()
        self.gate.recovered(paused=(await self.realm.describe("")).publishing_paused)
        for scene in self.scenes:
            await scene.prepare()
        await self._check_counters()
        async with asyncio.TaskGroup() as group:
            for scene in self.scenes:
                scene.start(group, quiet=quiet)
            if not quiet:
                group.create_task(self._saboteur())
                if self.may_jump and self._clocks.random() < 0.3:
                    group.create_task(self._set_clocks())
            if self.is_connected:
                group.create_task(Nemesis(self, ("127.0.0.1", 9_000)).run(5.0 if quiet else None))

    async def _saboteur(self) -> None:
        """Fill the disk for a while, or let it fail."""
        await pass_time(self.random.random() * 2)
        fate = self.random.random()
        if fate < 0.5:
            self.disk.free_bytes = self.random.randint(0, 3_000)
            self.note("disk full")
            await pass_time(self.random.random())
            self.disk.free_bytes = None
            self.note("disk has room")
        elif fate < 0.6:
            self.disk.fail_syncs()
            self._has_lost_writes = True
            self.note("sync fails")
        elif fate < 0.7:
            self.disk.fail_writes(self.random.randint(1, 3))
            self.note("write fails")

    # --- invariants ------------------------------------------------------------------------

    async def _check_counters(self) -> None:
        """Check that every published event of a store is stored or has left for one counted reason
        (SEM T8), also on the schedule of a store."""
        for name, number in list(self.numbers.items()):
            info = await self.realm.describe_channel(name, _kind(self._definitions[name]))
            _check_conserved(name, info.counters, info.events + info.overdue)
            assert not info.storage.quarantined, f"{name}: {info.storage.quarantined}"
            schedule = await self.realm.schedule_of(ChannelId(number))
            if schedule is not None:
                state = self.realm.directory.channels[schedule.channel].state
                _check_conserved(schedule.name, state.counters, len(state.stored))

    async def _check_all(self) -> None:
        for scene in self.scenes:
            await scene.check()
        await self._check_counters()
        self.note(f"checked after {self.lives} lives")


def _check_conserved(name: str, counters: Counters, live: int) -> None:
    assert counters.published == live + counters.departed_count, (
        f"{name}: {live} are live of {counters}"
    )


def _kind(definition: Definition) -> Kind:
    return "queue" if definition.kind == "queue" else "channel"


async def _open(listener: NativeListener) -> None:
    await listener.listen("127.0.0.1", PORT)


def life_of(seed: int, scenes: Sequence[str] = ()) -> str:
    """Return the hash of the trace. Raises the error of a failed life.

    ``scenes`` are the names of the scenes to play, instead of drawn ones.
    """
    world = World(seed, scenes)
    return simulate(world.live(), world.random)


@contextlib.contextmanager
def no_incidents() -> Iterator[None]:
    """Fail a seed if the realm logged an incident, even if it survived that."""
    with capture_logs() as logged:
        yield
    incidents = [entry for entry in logged if "incident" in entry]
    assert not incidents, f"the realm has logged {incidents}"
