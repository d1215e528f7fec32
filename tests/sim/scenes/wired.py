"""Real sessions over a network that breaks: publishes under an identity and pipelined, seats at
durables of every kind, a reader, a queue, and transactions (SEM D, E6, Q, X1-X3)."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock import aio
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NoSuchTransaction, PenstockError, Refused, Unavailable
from penstock_testing.loop import pass_time
from tests.sim.consumers import Follower, Seat, Taker, unrequested
from tests.sim.programs import Cast, Pipelined, Program, Steady
from tests.sim.promises import Ledger, Receipts
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.wired_world import WiredWorld

KINDS = {
    "alone": ("exclusive", 1),
    "first": ("priority", 2),
    "team": ("shared", 2),
    "row": ("serial", 2),
    "each": ("shared_queued", 2),
}
"""Kinds of durables, and the number of programs at each."""
COUNTED = ("shared", "serial", "shared_queued")
TRANSACTIONS = 6


class Wired:
    def __init__(self, world: WiredWorld) -> None:
        random = world.random
        self._world = world
        type = world.draw_type(("persistent", "persistent", "mixed", "paged"))
        self._definition = Definition(
            type=type, retain_consumed=True, storage=spindles(type, random.choice((0, 10)))
        )
        self._jobs = Definition(kind="queue", type=world.draw_type(("persistent", "mixed")))
        self._ledgers = {name: Ledger(name) for name in ("wired", "tasks")}
        wired = self._ledgers["wired"]
        self._steady = [
            Steady(world, wired, "p", compose=_events),
            Steady(world, wired, "q", compose=_events),
        ]
        self._pipelined = Pipelined(world, wired, "r", compose=_events)
        self._pushing = Steady(world, self._ledgers["tasks"], "p", compose=_events, publishes=8)
        names = ["alone", random.choice(sorted(KINDS.keys() - {"alone"}))]
        self._receipts = {
            name: Receipts(name, wired, counted=KINDS[name][0] in COUNTED, remote=True)
            for name in names
        }
        self._taken = Receipts("takers", self._ledgers["tasks"], remote=True)
        self._committing = Committing(world, wired)
        self._follower = Follower(world, wired, "f", is_done=lambda: self._is_read)
        programs: list[Program] = [
            *(publisher.program for publisher in self._steady),
            self._pipelined.program,
            self._pushing.program,
            self._committing.program,
            self._follower.program,
        ]
        for name in names:
            kind, seats = KINDS[name]
            for number in range(seats):
                is_done = partial(self._is_consumed, "wired", name)
                receipts = self._receipts[name]
                seat = Seat(world, receipts, kind, is_done=is_done, number=number, by_id=True)
                programs.append(seat.program)
        for number in range(2):
            taker = Taker(
                world, self._taken, partial(self._is_consumed, "tasks", ""), number=number
            )
            programs.append(taker.program)
        self._cast = Cast(world, programs)

    async def prepare(self) -> None:
        await self._world.create("wired", self._definition)
        await self._world.create("tasks", self._jobs)
        for name in self._receipts:
            await self._world.create_durable("wired", name, KINDS[name][0])
        self._ledgers["wired"].check_stored(await self._world.stored_on("wired"))

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        self._cast.start(group, quiet=quiet)

    @property
    def _is_published(self) -> bool:
        are_steady_done = all(publisher.is_done for publisher in self._steady)
        return are_steady_done and self._pipelined.is_done and self._committing.is_done

    @property
    def _is_read(self) -> bool:
        ids = self._ledgers["wired"].ids
        return self._is_published and (not ids or len(self._follower.read) > ids[-1])

    async def _is_consumed(self, store: str, durable: str) -> bool:
        is_published = self._is_published if store == "wired" else self._pushing.is_done
        try:
            return is_published and await self._world.is_consumed(store, durable)
        except PenstockError:  # the realm has ended, or has not started yet
            return False

    async def check(self) -> None:
        rows = await self._world.stored_on("wired")
        ledger = self._ledgers["wired"]
        ledger.check_stored(rows)
        self._committing.check({data for _, data in rows})
        ids = [event_id for event_id, _ in rows]
        assert ids == list(range(len(ids))), f"ids have gaps: {ids}"
        assert self._follower.read == ids[: len(self._follower.read)]
        for name, receipts in self._receipts.items():
            lost = unrequested(receipts, ids)
            assert not lost, f"{lost} have left {name}, and nobody has acknowledged them"
        live_count = await self._world.live_on("tasks")
        assert live_count == 0, f"{live_count} events were never committed"
        lost = unrequested(self._taken, self._ledgers["tasks"].ids)
        assert not lost, f"{lost} have left the queue, and nobody has committed them"


class Committing:
    """Transactions whose answers get lost, and whose client is killed (SEM X1, X2)."""

    def __init__(self, world: WiredWorld, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger
        self._unfinished: dict[str, tuple[str, tuple[bytes, ...]]] = {}
        """Label and events of each transaction whose end is unknown."""
        self._found_committed: list[tuple[str, tuple[bytes, ...]]] = []
        """Transactions that were reported as committed only later."""
        self._n = 0
        self.program = Program(world, "committing", self._main)

    @property
    def is_done(self) -> bool:
        return self.program.is_done

    async def _main(self, session: aio.Session) -> None:
        channel = await session.channels.get(self._ledger.store)
        while self._n < TRANSACTIONS:
            await pass_time(self._world.random.expovariate(1))
            try:
                await self._check_unfinished(session)
                await self._commit(channel)
            except (Unavailable, Refused) as error:
                self._world.note(f"committing: {error.code}")
                self._world.check_refusal(error)
        while self._unfinished:
            try:
                await self._check_unfinished(session)
            except Unavailable:
                await pass_time(0.1)

    async def _check_unfinished(self, session: aio.Session) -> None:
        """Ask for the end of transactions that had no answer. One that is not committed by now may
        still be under way, or open for good."""
        for transaction, (label, datas) in list(self._unfinished.items()):
            try:
                is_committed = await session.is_committed(transaction)
            except NoSuchTransaction:
                is_committed = False
            self._world.note(f"{label} is committed: {is_committed}")
            del self._unfinished[transaction]
            if is_committed:
                self._found_committed.append((label, datas))

    async def _commit(self, channel: aio.Channel) -> None:
        label, world, ledger = f"transaction/{self._n}", self._world, self._ledger
        self._n += 1
        events = _events(Random(f"{world.seed}/{label}"), label)
        datas = tuple(event.data for event in events)
        ledger.offered.update(datas)
        ledger.doubtful[label] = datas
        transaction = channel.transaction()
        gives_up = world.random.random() < 0.2
        await transaction.publish_many(events[:1])
        self._unfinished[transaction.id] = (label, datas)
        if len(events) > 1:
            await transaction.publish_many(events[1:])
        if gives_up:
            await transaction.abort()
            del self._unfinished[transaction.id], ledger.doubtful[label]
            ledger.refused.update(datas)
            return
        ids = await transaction.commit()
        del self._unfinished[transaction.id], ledger.doubtful[label]
        ledger.confirm(label, 0, Span(ids.start, ids.stop), datas=datas, life=world.lives)
        ledger.unsure_lives.update(ids)
        world.note(f"committed {label} {ids}")

    def check(self, stored_datas: set[bytes]) -> None:
        for label, datas in self._found_committed:
            assert stored_datas.issuperset(datas), f"{label} was committed, and is not there"


def _events(draw: Random, label: str) -> list[Event]:
    datas = [f"{label}/{i}".encode() * draw.randint(1, 4) for i in range(draw.randint(1, 6))]
    if draw.random() < 0.5:
        return [Event(data) for data in datas]
    return [Event(data, properties={"price": float(len(data))}) for data in datas]
