"""A realm on a disk that loses power, fills up and is killed, and the scenes played on it.

Everything is drawn from one seed: the scenes, the interleaving, the faults, what clients do. The
oracles are the clients themselves: each remembers what it was promised.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from hashlib import sha256
from random import Random

from penstock.bootstrap import rules
from penstock.core.counters import Counters
from penstock.core.errors import NameAlreadyBound, StorageFailed
from penstock.core.messages import Definition
from penstock.core.starts import FromEarliest
from penstock.runtime.maintaining import MaintenanceLimits
from penstock.runtime.realm import Limits, RunningRealm
from penstock.runtime.sealing import SealingLimits
from penstock.storage.embedded import Embedded, JournalLimits, PageLimits, open_embedded
from penstock.testing.disk import FaultyDisk
from penstock.testing.loop import SimLoop, SlowOffload, pass_time, simulate
from penstock.wire.native.messages import Kind
from tests.sim.gate import Gate
from tests.sim.scenes import SCENES
from tests.sim.scenes.scene import Scene

SCENES_MAX = 3
"""Small worlds, many of them: each seed has some of the scenes."""


class World:
    def __init__(self, seed: int, names: Sequence[str] = ()) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.disk = FaultyDisk(seed)
        self.lives = 0
        self.gate = Gate()
        self.realm: RunningRealm
        self.numbers: dict[str, int] = {}
        """Of every store, in the realm's present life."""
        self._definitions: dict[str, Definition] = {}
        self._has_lost_writes = False
        """Whether caches and disk may differ for good: only the machine's restart tells."""
        self._trace: list[str] = []
        self._sessions = 0
        if not names:
            names = self.random.sample(sorted(SCENES), self.random.randint(1, SCENES_MAX))
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

    def note(self, what: str) -> None:
        """Part of what a seed's hash is made of."""
        self._trace.append(what)

    # --- lives of the realm --------------------------------------------------------------

    async def live(self) -> str:
        """Several lives that end badly, then a quiet one in which all is checked."""
        await self.lives_before(self.random.randint(3, 6))
        await self._one_life(None)
        return sha256("\n".join(self._trace).encode()).hexdigest()

    async def lives_before(self, count: int) -> None:
        """Lives that end badly."""
        for _ in range(count):
            await self._one_life(self.random.expovariate(1 / 1.5))
            if self.random.random() < 0.8 or self._has_lost_writes:
                self.disk.power_cut()
            else:
                self.disk.kill()

    async def _one_life(self, span_s: float | None) -> None:
        """Up to ``span_s`` seconds; without an end: until everything is done and checked."""
        self.lives += 1
        self.disk.free_bytes = None
        self.disk.fail_syncs(0)
        self._has_lost_writes = False
        store = self.open_store()
        self.realm = await self.open_realm(store)
        assert not self.realm.recovered.has_gaps, self.realm.recovered.damage
        serving = self._loop.create_task(self.realm.run())
        clients = self._loop.create_task(self._clients(quiet=span_s is None))
        try:
            await asyncio.wait(
                [serving, clients], timeout=span_s, return_when=asyncio.FIRST_COMPLETED
            )
            if span_s is None:
                await clients
                await self._check_all()
                await self.realm.close()
                await serving
                await self.realm.release()
        finally:
            for task in (clients, serving):
                task.cancel()
            ends = await asyncio.wait([clients, serving])
            for task in ends[0]:
                self._note_end(task)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A realm may stop because of its disk; nothing else may go wrong."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BaseExceptionGroup):
            _, error = error.split(StorageFailed)
        if error is not None and not isinstance(error, StorageFailed):
            raise error
        self.note(f"life {self.lives} ended")

    def open_store(self) -> Embedded:
        return open_embedded(
            "/realm",
            disk=self.disk,
            offload=SlowOffload(self.random, longest_s=0.01),
            clock=self._loop,
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
            self._loop,
            SlowOffload(self.random, longest_s=0.05),
            identity="simulated",
            limits=Limits(sweep_interval_s=0.2),
            sealing=SealingLimits(
                segment_bytes_max=2_000,
                journal_bytes_max=4_000,
                snapshot_tail_bytes_max=4_000,
                interval_s=0.05,
                retry_s=0.1,
                maintenance=MaintenanceLimits(dead_bytes=500, interval_s=0.1, retry_s=0.1),
            ),
        )

    # --- what scenes ask for -------------------------------------------------------------

    async def create(self, name: str, definition: Definition) -> None:
        """Make a store, or find the one an earlier life has made."""
        try:
            opened = await self.realm.create_channel(name, definition)
        except NameAlreadyBound:
            opened = await self.realm.open_channel(name, _kind(definition))
        self.numbers[name] = opened.channel
        self._definitions[name] = definition

    async def create_durable(
        self, store: str, name: str, kind: str = "shared", selector: str = ""
    ) -> None:
        number = self.numbers[store]
        with contextlib.suppress(NameAlreadyBound):
            await self.realm.subscriptions.create_durable(
                number, name, kind, FromEarliest(), selector, persistent=None
            )

    async def is_consumed(self, store: str, durable: str) -> bool:
        info = await self.realm.subscriptions.durable(self.numbers[store], durable)
        return not info.outstanding

    # --- clients -------------------------------------------------------------------------

    async def _clients(self, *, quiet: bool) -> None:
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

    async def _saboteur(self) -> None:
        """Fills the disk for a while, or lets it fail."""
        await pass_time(self.random.random() * 2)
        fate = self.random.random()
        if fate < 0.5:
            self.disk.free_bytes = self.random.randint(0, 3_000)
            self.note("disk full")
            await pass_time(self.random.random())
            self.disk.free_bytes = None
        elif fate < 0.6:
            self.disk.fail_syncs()
            self._has_lost_writes = True
            self.note("sync fails")

    # --- what always holds ---------------------------------------------------------------

    async def _check_counters(self) -> None:
        """Every event published on a store is there, or left for one known reason (SEM T8); so
        is every event that waits for its time on a store's schedule."""
        for name, number in list(self.numbers.items()):
            info = await self.realm.describe_channel(name, _kind(self._definitions[name]))
            _check_conserved(name, info.counters, info.events + info.overdue)
            assert not info.storage.quarantined, f"{name}: {info.storage.quarantined}"
            schedule = await self.realm.schedule_of(number)
            if schedule is not None:
                state = self.realm.directory.channels[schedule.channel].state
                _check_conserved(schedule.name, state.counters, len(state.stored))

    async def _check_all(self) -> None:
        for scene in self.scenes:
            await scene.check()
        await self._check_counters()
        self.note(f"checked after {self.lives} lives")


def _check_conserved(name: str, counters: Counters, live: int) -> None:
    assert counters.published == live + counters.gone, f"{name}: {live} are live of {counters}"


def _kind(definition: Definition) -> Kind:
    return "queue" if definition.kind == "queue" else "channel"


def life_of(seed: int, scenes: Sequence[str] = ()) -> str:
    """The hash of everything that happened. Raises what went wrong.

    ``scenes``: the names of those to play, instead of drawn ones.
    """
    world = World(seed, scenes)
    return simulate(world.live(), world.random)
