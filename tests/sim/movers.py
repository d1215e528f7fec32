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
"""Seeks before it rests. A seek without an answer is followed by another one."""


class Mover:
    """Moves a durable all over its channel. Its client repeats a seek whose answer was lost with
    the connection; if the program is killed, the answer stays unknown."""

    def __init__(self, world: WiredWorld, ledger: Ledger, name: str) -> None:
        self.name = name
        self.ledger = ledger
        self.first = 0
        """The position of the durable, if known."""
        self.is_answered = True
        """Whether the last seek was answered; otherwise it may or may not have been done."""
        self.requested: Counter[int] = Counter()
        """Ids whose acknowledgement was requested since the last seek was requested. Refused ones
        do not count."""
        self.settled: set[int] = set()
        """Ids whose acknowledgement was requested after that seek was answered, and was
        answered."""
        self.program = Program(world, f"mover-{name}", self._main)
        self._world = world
        self._random = Random(f"{world.seed}/mover")
        self._moves = 0

    async def _main(self, session: aio.Session) -> None:
        channel = await session.channels.get(self.ledger.store)
        durable = await channel.durables.get(self.name)
        while self._moves < MOVES or not self.is_answered:
            await pass_time(self._random.expovariate(2))
            await self._seek(durable)

    async def _seek(self, durable: aio.Durable) -> None:
        position, requested, settled, was_answered = (
            self._draw(),
            self.requested,
            self.settled,
            self.is_answered,
        )
        self._moves += 1
        self.is_answered, self.requested, self.settled = False, Counter(), set()
        try:
            outcome = await durable.seek(position)
        except (IllegalState, InvalidArgument):
            assert isinstance(position, int), "only an id can be one of nothing"
            assert position not in self.ledger.ids, f"{position} is there, and refused"
            requested.update(self.requested)
            settled |= self.settled
            self.requested, self.settled, self.is_answered = requested, settled, was_answered
            return
        except Unavailable as error:
            self._world.note(f"{self.program.name} is not answered: {error.code}")
            return
        self.first, self.is_answered = outcome.position, True
        self._world.note(f"{self.name} moved {outcome.position} {outcome.again} {outcome.skipped}")
        if isinstance(position, int):
            assert outcome.position == position
        if position == "earliest":
            assert outcome.position == 0, "all is stored"

    def _draw(self) -> StartLike:
        random = self._random
        newest_id = max(self.ledger.ids, default=0)
        ago = timedelta(seconds=random.uniform(0, 5))
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._world.now_us)
        places: tuple[StartLike, ...] = (
            "earliest",
            "latest",
            random.randint(0, newest_id),
            random.randint(0, newest_id),
            newest_id + 1_000,
            now - ago,
        )
        return random.choice(places)


class MovedSeat:
    """The only seat at the moved durable: settles its events, sometimes too late."""

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
        """Consume until all is done. Return False if the seat is to be closed before."""
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
            mover.ledger.check_content(event_id, data)
        repeated = mover.settled.intersection(ids)
        assert not repeated, f"{repeated} came again to {mover.name} after their ack was answered"
        await pass_time(world.random.expovariate(20))
        requested, settled = mover.requested, mover.settled if mover.is_answered else set[int]()
        if batch.is_stale:
            return
        rolls_back = world.random.random() < 0.15
        requested.update(() if rolls_back else ids)
        try:
            await (batch.rollback() if rolls_back else batch.ack())
        except IllegalState:
            world.note(f"too late for {mover.name} {ids}")
            requested.subtract(() if rolls_back else ids)
        except Unavailable as error:
            world.note(f"{self.program.name} is not answered: {error.code}")
        else:
            world.note(f"{self.program.name} settled {ids} {rolls_back}")
            settled.update(() if rolls_back or batch.is_stale else ids)
