"""A program that moves a durable over the network, and one that consumes it meanwhile (SEM D20)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from penstock import aio
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    IllegalState,
    InvalidArgument,
    Unavailable,
)
from penstock_testing.loop import pass_time
from tests.sim.consumers import datas_of
from tests.sim.programs import Program

if TYPE_CHECKING:
    from penstock.client.reading.start_positions import StartLike
    from tests.sim.promises import Ledger
    from tests.sim.wired_world import WiredWorld

MOVES = 10
"""Seeks before it rests; one that nobody answered is followed by another."""


class Mover:
    """Sends a durable to places all over its channel. An answer that is lost with the connection
    is asked for again by its client; one that is lost with the program, nobody ever hears."""

    def __init__(self, world: WiredWorld, ledger: Ledger, name: str) -> None:
        self.name = name
        self.ledger = ledger
        self.first = 0
        """From where the durable goes on, if that is known."""
        self.is_known = True
        """Else a seek is under way, or was never answered: it may have been done."""
        self.asked: Counter[int] = Counter()
        """Acknowledged since the last seek was asked for, answered or not, and not refused."""
        self.settled: set[int] = set()
        """Those whose acknowledgement was asked for after that seek was answered, and answered."""
        self.program = Program(world, f"mover-{name}", self._main)
        self._world = world
        self._random = Random(f"{world.seed}/mover")
        self._moves = 0

    async def _main(self, session: aio.Session) -> None:
        channel = await session.channels.get(self.ledger.store)
        durable = await channel.durables.get(self.name)
        while self._moves < MOVES or not self.is_known:
            await pass_time(self._random.expovariate(2))
            await self._seek(durable)

    async def _seek(self, durable: aio.Durable) -> None:
        to, asked, settled, was_known = self._draw(), self.asked, self.settled, self.is_known
        self._moves += 1
        self.is_known, self.asked, self.settled = False, Counter(), set()
        try:
            outcome = await durable.seek(to)
        except (IllegalState, InvalidArgument):
            assert isinstance(to, int), "only an id can be one of nothing"
            assert to not in self.ledger.ids, f"{to} is there, and refused"
            asked.update(self.asked)
            settled |= self.settled
            self.asked, self.settled, self.is_known = asked, settled, was_known
            return
        except Unavailable as error:
            self._world.note(f"{self.program.name} is not answered: {error.code}")
            return
        self.first, self.is_known = outcome.position, True
        self._world.note(f"{self.name} moved {outcome.position} {outcome.again} {outcome.skipped}")
        if isinstance(to, int):
            assert outcome.position == to
        if to == "earliest":
            assert outcome.position == 0, "all is stored"

    def _draw(self) -> StartLike:
        random = self._random
        known = max(self.ledger.ids, default=0)
        ago = timedelta(seconds=random.uniform(0, 5))
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._world.now_us)
        places: tuple[StartLike, ...] = (
            "earliest",
            "latest",
            random.randint(0, known),
            random.randint(0, known),
            known + 1_000,
            now - ago,
        )
        return random.choice(places)


class MovedSeat:
    """The only seat at a durable that is moved: settles what it gets, too late as well."""

    def __init__(
        self, world: WiredWorld, mover: Mover, is_done: Callable[[], Awaitable[bool]]
    ) -> None:
        self.program = Program(world, f"seat-{mover.name}", self._main)
        self._world = world
        self._mover = mover
        self._is_done = is_done

    async def _main(self, session: aio.Session) -> None:
        channel = await session.channels.get(self._mover.ledger.store)
        durable = await channel.durables.get(self._mover.name)
        while True:
            try:
                if await self._consume(durable.subscribe(window=self._world.random.randint(1, 5))):
                    return
            except ConnectionLost:
                self._world.note(f"{self.program.name} lost what it settled last")

    async def _consume(self, seat: aio.DurableSubscription) -> bool:
        """Until all is done; false when the seat is to be left before."""
        async with seat:
            while self._world.random.random() > 0.05:
                batch = await seat.next_batch(timeout=0.5)
                if batch is not None:
                    await self._take(batch)
                elif await self._is_done():
                    return True
        return False

    async def _take(self, batch: aio.DeliveredBatch) -> None:
        world, mover, ids = self._world, self._mover, batch.event_ids.tolist()
        for event_id, data in zip(ids, datas_of(batch), strict=True):
            mover.ledger.is_content(event_id, data)
        again = mover.settled.intersection(ids)
        assert not again, f"{again} came again to {mover.name} after their ack was answered"
        await pass_time(world.random.expovariate(20))
        asked, settled = mover.asked, mover.settled if mover.is_known else set[int]()
        if batch.is_stale:
            return
        back = world.random.random() < 0.15
        asked.update(() if back else ids)
        try:
            await (batch.rollback() if back else batch.ack())
        except IllegalState:
            world.note(f"too late for {mover.name} {ids}")
            asked.subtract(() if back else ids)
        except Unavailable as error:
            world.note(f"{self.program.name} is not answered: {error.code}")
        else:
            world.note(f"{self.program.name} settled {ids} {back}")
            settled.update(() if back or batch.is_stale else ids)
