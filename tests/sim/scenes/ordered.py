"""Durables that keep an order, whatever is rolled back, cut off and killed: strictly by id, and by
lane (SEM D11, D12), with real sessions over a network that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock import aio
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    DurableInUse,
    IllegalState,
    PenstockError,
    Unavailable,
)
from penstock_testing.loop import pass_time
from tests.sim.consumers import IsDone, unrequested
from tests.sim.programs import Program, Steady
from tests.sim.promises import Ledger, Receipts
from tests.spindles import spindles

if TYPE_CHECKING:
    from penstock.client.reading.delivered import DeliveredEvent
    from tests.sim.wired_world import WiredWorld

STORE = "line"
LANES = 3
DURABLES = {"strict": 2, "laned": 3}
"""Number of programs at each durable."""


class Ordered:
    def __init__(self, world: WiredWorld) -> None:
        random = world.random
        self._world = world
        type = world.draw_type(("persistent", "mixed", "paged"))
        self._definition = Definition(
            type=type, retain_consumed=True, storage=spindles(type, random.choice((0, 10)))
        )
        self._ledger = Ledger(STORE)
        self._lanes: dict[bytes, str | None] = {}
        """Lane by data."""
        self._publishers = [
            Steady(world, self._ledger, name, compose=self._events, publishes=10)
            for name in ("p", "q")
        ]
        self._receipts = {name: Receipts(name, self._ledger, remote=True) for name in DURABLES}
        self._programs = [publisher.program for publisher in self._publishers]
        earlier_ids = {"strict": self._all_before, "laned": self._before_in_lane}
        for name, seats in DURABLES.items():
            is_done = partial(self._is_consumed, name)
            for number in range(seats):
                receipts = self._receipts[name]
                seat = OrderedSeat(
                    world, receipts, earlier_ids[name], is_done=is_done, number=number
                )
                self._programs.append(seat.program)
        self._running: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        await self._world.create(STORE, self._definition)
        await self._world.create_durable(STORE, "strict", "serial", strict_order=True)
        await self._world.create_durable(STORE, "laned", "serial", order_by="lane")
        self._ledger.check_stored(await self._world.stored_on(STORE))

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        if not self._running:
            outside = self._world.outside
            self._running = [outside.create_task(program.run()) for program in self._programs]
        if quiet:
            group.create_task(self._all_done())

    async def _all_done(self) -> None:
        await asyncio.wait(self._running)

    def _all_before(self, event_id: int) -> Iterable[int]:
        return range(event_id)

    def _before_in_lane(self, event_id: int) -> Iterable[int]:
        """Yield the earlier known ids of the event's lane."""
        content = self._ledger.content
        lane = self._lanes[content[event_id]]
        return (i for i in range(event_id) if i in content and self._lanes[content[i]] == lane)

    async def _is_consumed(self, durable: str) -> bool:
        is_published = all(publisher.is_done for publisher in self._publishers)
        try:
            return is_published and await self._world.is_consumed(STORE, durable)
        except PenstockError:  # the realm has ended, or has not started yet
            return False

    async def check(self) -> None:
        self._ledger.check_complete(await self._world.stored_on(STORE))
        ids = self._ledger.ids
        assert ids == list(range(len(ids))), f"ids have gaps: {ids}"
        for name, receipts in self._receipts.items():
            lost = unrequested(receipts, ids)
            assert not lost, f"{lost} have left {name}, and nobody has acknowledged them"

    def _events(self, draw: Random, label: str) -> list[Event]:
        events = []
        for i in range(draw.randint(1, 5)):
            data, lane = f"{label}/{i}".encode(), draw.choice((None, *map(str, range(LANES))))
            self._lanes[data] = lane
            events.append(Event(data, properties={} if lane is None else {"lane": lane}))
        return events


class OrderedSeat:
    """Takes one event after the other, acknowledges it or gives it back, and checks that all events
    that must come before it were acknowledged."""

    def __init__(
        self,
        world: WiredWorld,
        receipts: Receipts,
        earlier: Callable[[int], Iterable[int]],
        is_done: IsDone,
        number: int,
    ) -> None:
        self.world = world
        self.receipts = receipts
        self._earlier = earlier
        self._is_done = is_done
        name = f"ordered-{receipts.name}-{number}"
        self.program = Program(world, name, self._main)

    async def _main(self, session: aio.Session) -> None:
        channel = await session.channels.get(STORE)
        durable = await channel.durables.get(self.receipts.name)
        while True:
            window = self.world.random.randint(1, 8)
            try:
                if await self._consume(durable.subscribe(window=window, timeout=1.0)):
                    return
            except DurableInUse:
                await pass_time(1)
            except (ConnectionLost, Unavailable) as error:
                self.world.note(f"{self.program.name} is not answered: {error.code}")

    async def _consume(self, seat: aio.DurableSubscription) -> bool:
        """Consume until all is done. Return False if the seat is to be closed before."""
        async with seat:
            while True:
                acked: list[int] = []
                async for event in seat:
                    await self._take(event, acked)
                    if self.world.random.random() < 0.2:
                        await self._confirm(seat, acked)
                    if self.world.random.random() < 0.03:
                        return False
                await self._confirm(seat, acked)
                if await self._is_done():
                    return True

    async def _take(self, event: DeliveredEvent, acked: list[int]) -> None:
        event_id, receipts = event.event_id, self.receipts
        assert event_id is not None, "a durable has stored events only"
        stale = self.world.is_stale(self.program.name)
        counts = {event_id: event.redelivery_count} if event.redelivered else {}
        receipts.delivered([event_id], [event.data], counts, stale=stale)
        self.world.note(f"{self.program.name} has {event_id} {counts}")
        if not stale:
            early = [i for i in self._earlier(event_id) if i not in receipts.requested]
            assert not early, f"{self.program.name} was given {event_id} before {early}"
        await pass_time(self.world.random.expovariate(40))
        if self.world.random.random() < 0.25:
            receipts.rollback_requested([event_id])
            await event.rollback()
            self.world.note(f"{self.program.name} gives back {event_id}")
            return
        receipts.ack_requested([event_id], self.world.now_us)
        try:
            await event.ack()
        except IllegalState:  # it went back with a lost connection, and is delivered again
            self.world.note(f"too late for {self.program.name} {event_id}")
            return
        acked.append(event_id)

    async def _confirm(self, seat: aio.DurableSubscription, acked: list[int]) -> None:
        settled, acked[:] = list(acked), []
        await seat.flush()  # raises if a connection was lost with acknowledgements under way
        self.world.note(f"{self.program.name} has acknowledged {settled}")
