"""A realm on a disk that loses power, fills up and is killed, behind a network that breaks, and the
scenes played on it.

Everything is drawn from one seed: the scenes, the interleaving, the faults, what clients do. The
oracles are the clients themselves: each remembers what it was promised.
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
"""Small worlds, many of them: each seed has some of the scenes."""

WIRED = frozenset({"asked", "followed", "jms", "ordered", "wired"})
"""Scenes whose clients are programs on other machines, which outlive the realm's lives."""
CONNECTED = WIRED | {"sought"}
"""Those with such programs among their clients, behind a network that breaks."""
KEEPS_TIME = frozenset({"chain", "dead", "paused", "scheduled", "travel"})
"""Scenes that reckon with the time: in a world of others the realm's clock may jump."""

WITH_FILES = ("persistent", "mixed")
"""Types of channels that keep events in files."""
COMPRESSIONS: tuple[Compression, ...] = ("none", "none", "zstd", "lz4")

REALM = "realm"
"""The machine the realm runs on."""
PORT = 9_000
QUIET_S_MAX = 400.0
"""What is not done in the quiet life by then will never be."""

End = Literal["power cut", "kill", "close"]


class World:
    _forward_us = 0
    """By how much the machine's clock was set forward, all in all."""

    def __init__(self, seed: int, names: Sequence[str] = ()) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.disk = FaultyDisk(seed, on_halt=self._go_dark)
        self.lives = 0
        self.gate = Gate()
        self.realm: RunningRealm
        self.numbers: dict[str, int] = {}
        """Numbers of all stores, in the realm's present life."""
        self.is_quiet = False
        """Nothing happens to the realm any more."""
        self._definitions: dict[str, Definition] = {}
        self._has_lost_writes = False
        """Whether caches and disk may differ for good: only the machine's restart tells."""
        self.trace: list[tuple[float, str]] = []
        """What has happened, and when."""
        self.clock: SystemClock
        """The realm's, in its present life."""
        self.outside: asyncio.TaskGroup
        """What runs elsewhere, and goes on when the realm ends."""
        self._clocks = Random(f"{seed}/clocks")
        """What jumps of the clock are drawn from: a world without any is as it was before."""
        self._jump_us = 0
        self._latest_us = 0
        """What the machine's clock has shown before it was set, at the latest."""
        self._ended_us = 0
        """What the realm's clock showed when its last life ended."""
        self._set_back_us = 0
        """By how much the clocks of later lives were behind those of the lives before."""
        self._dark = asyncio.Event()
        """The power is gone, in the middle of what the disk was about to do."""
        self._sessions = 0
        self.network_faults: Counter[str] = Counter()
        """What the network has done, to be read after the end of the simulation."""
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
        """A number no session has had."""
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
        """Part of what a seed's hash is made of."""
        self.trace.append((self._loop.time(), what))

    @property
    def hash(self) -> str:
        """Hash of everything that was noted."""
        told = "\n".join(f"{at_s:.6f} {what}" for at_s, what in self.trace)
        return sha256(told.encode()).hexdigest()

    # --- lives of the realm --------------------------------------------------------------

    async def live(self) -> str:
        """Several lives that end badly, then a quiet one in which all is checked."""
        self._loop.shuffles = not self.is_wired
        self.network_faults = self._loop.network.faults
        self._loop.network.kept_bytes = 4_096 if self.is_connected else 0
        with nothing_unforeseen():
            async with asyncio.TaskGroup() as self.outside:
                await self.lives_before(self.random.randint(3, 6))
                self.set_right()
                await self._one_life(None)
        return self.hash

    async def lives_before(self, count: int) -> None:
        """Lives that end badly."""
        longest_s = 4.0 if self.is_wired else 1.5
        for _ in range(count):
            end: End = self.random.choices(("power cut", "kill", "close"), (75, 15, 10))[0]
            await self._one_life(self.random.expovariate(1 / longest_s), end)
            if self.may_jump and self.random.random() < 0.2:
                self.jump()
            if self.is_wired:
                await pass_time(self.random.expovariate(1))

    def jump(self) -> None:
        """Set the machine's clock to another time, far or near."""
        longest_s = self._clocks.choice((3_600, 3))
        self.set_clock(int(self._clocks.uniform(-longest_s, longest_s) * 1_000_000))

    def set_clock(self, by_us: int) -> None:
        """Set the machine's clock forward, or back."""
        self._latest_us = self.latest_us
        self._jump_us += by_us
        self._forward_us += max(0, by_us)
        self.note(f"the clock jumps, by {by_us / 1e6:.3f} s")

    def set_right(self) -> None:
        """What waits for a time that was before the clock was set back need not wait for long."""
        by_us = self.latest_us - self._machine_ns() // 1_000
        if by_us:
            self.set_clock(by_us)

    @property
    def latest_us(self) -> int:
        """The latest time the machine's clock has ever shown."""
        return max(self._latest_us, self._machine_ns() // 1_000)

    @property
    def lived_us(self) -> int:
        """The realm's clock, as if one that begins behind the one of the life before went on with
        that: waits are as long as they are on this clock (SEM D18)."""
        return self.clock.now_us() + self._set_back_us

    @property
    def passed_us(self) -> int:
        """How much time has passed at most, as the machine's clock shows it. A realm that starts
        under a clock that was set back counts from there."""
        return self._loop.now_us() + self._forward_us

    async def _set_clocks(self) -> None:
        """While the realm runs: then its own time does not go back."""
        while True:
            await pass_time(self._clocks.expovariate(1 / 2))
            self.jump()

    def _machine_ns(self) -> int:
        return (START_US + self._jump_us) * 1_000 + int(self._loop.time() * 1e9)

    async def _one_life(self, span_s: float | None, end: End = "close") -> None:
        """Up to ``span_s`` seconds; without an end: until everything is done and checked."""
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
                assert clients.done() or serving.done(), f"still not done: {self._left()}"
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
                self._fall(end)
            tasks = (clients, serving, listening, dark)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                self._note_end(task, is_cut_off=serving.cancelled())
            self.note(f"life {self.lives} ended")
            self.disk.fail_writes(0)
            if not is_closed:
                self._find_disk(end)

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
        """Mostly the power goes in the middle of what is being written."""
        random, disk = self.random, self.disk
        where = random.choices(("here", "in a call", "in a sync"), (2, 3, 5))[0]
        if where == "here":
            return
        if where == "in a call":
            disk.halt_after(random.randint(1, 6))
        else:
            disk.halt_in_sync(random.randint(1, 3), least_bytes=random.choice((1, 1, 600)))
        await asyncio.wait(tasks, timeout=3.0, return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_dark(self) -> bool:
        """The power is gone: what the realm says from here on, nobody hears."""
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
        """Let clients come over the network."""
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
        """An orderly end; whether it was one: the disk may have failed."""
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

    def _fall(self, end: End) -> None:
        """What the realm does from here on reaches nobody."""
        self.disk.halt()
        if end == "power cut":
            self.network.power_off(REALM)
        else:
            self.network.kill(REALM)

    def _find_disk(self, end: End) -> None:
        """As the next life finds it."""
        if end == "power cut" or self._has_lost_writes:
            self.disk.power_cut()
        else:
            self.disk.kill()
        self.note(end)

    def _left(self) -> str:
        return ", ".join(sorted({str(task) for task in self._loop.tasks}))

    def _note_end(self, task: asyncio.Task[None], *, is_cut_off: bool) -> None:
        """A realm may stop because of its disk; nothing else may go wrong. One that is cut off
        refuses who still asks, a moment before those are cut off themselves."""
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

    # --- what scenes ask for -------------------------------------------------------------

    async def create(self, name: str, definition: Definition) -> None:
        """Make a store, or find the one an earlier life has made. A few have compressed files."""
        definition = self._packed(name, definition)
        try:
            opened = await self.realm.create_channel(name, definition)
        except NameAlreadyBound:
            opened = await self.realm.open_channel(name, _kind(definition))
        self.numbers[name] = opened.channel
        self._definitions[name] = definition

    def _packed(self, name: str, definition: Definition) -> Definition:
        """Drawn apart, so that the world draws what it drew before."""
        if definition.type not in WITH_FILES or definition.engine == "merge":
            return definition
        drawn = Random(f"{self.seed}/files of {name}").choice(COMPRESSIONS)
        return replace(definition, storage=replace(definition.storage, compression=drawn))

    async def number_of(self, store: str) -> int:
        """Its number, once its scene has found it in this life."""
        while store not in self.numbers:
            await pass_time(0.01)
        return self.numbers[store]

    def draw_type(self, types: Sequence[str]) -> str:
        return self.random.choice(types)

    def life_of(self, machine: str) -> int:
        """See :class:`~tests.sim.wired_world.WiredWorld`: there is one realm at a time."""
        return self.lives

    def is_stale(self, machine: str) -> bool:
        """Whether the realm has ended the connection of a machine that was not told yet: what comes
        over it has been sent before that."""
        return all(near.machine != machine for near, _ in self.network.connections())

    def hear(self, error: PenstockError) -> None:
        """A disk that is full makes a realm refuse what it would take at other times."""

    async def stored_on(self, store: str) -> list[tuple[int, bytes]]:
        """All that a store holds, in order: ids and content."""
        return [(row.event_id, row.data) for row in await stored(self, store)]

    async def live_on(self, store: str) -> int:
        """How many events a store has."""
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
        """Whether nobody waits for anything; unknown before its scene has found the store."""
        number = self.numbers.get(store)
        if number is None:
            return False
        info = await self.realm.subscriptions.durable(ChannelId(number), durable)
        return not info.outstanding

    # --- clients -------------------------------------------------------------------------

    async def clients(self, *, quiet: bool) -> None:
        self.numbers.clear()
        self.gate.found(paused=(await self.realm.describe("")).publishing_paused)
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
        """Fills the disk for a while, or lets it fail."""
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

    # --- what always holds ---------------------------------------------------------------

    async def _check_counters(self) -> None:
        """Every event published on a store is there, or left for one known reason (SEM T8); so
        is every event that waits for its time on a store's schedule."""
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
    """The hash of everything that happened. Raises what went wrong.

    ``scenes``: the names of those to play, instead of drawn ones.
    """
    world = World(seed, scenes)
    return simulate(world.live(), world.random)


@contextlib.contextmanager
def nothing_unforeseen() -> Iterator[None]:
    """What nobody foresaw is to end a seed also where the realm survives it, and only logs it."""
    with capture_logs() as logged:
        yield
    incidents = [each for each in logged if "incident" in each]
    assert not incidents, f"the realm has logged {incidents}"
