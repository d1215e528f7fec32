"""Programs that consume over the network: seats at durables, readers of queues, and subscribers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from penstock import aio
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    DurableInUse,
    IllegalState,
    Unavailable,
)
from penstock_testing.loop import pass_time
from tests.sim.programs import Program

if TYPE_CHECKING:
    from tests.sim.promises import Ledger, Receipts
    from tests.sim.wired_world import WiredWorld

IsDone = Callable[[], Awaitable[bool]]


class Seat:
    """Takes a seat at a durable and settles events in every way, whatever breaks in the
    meantime."""

    def __init__(
        self,
        world: WiredWorld,
        receipts: Receipts,
        kind: str,
        is_done: IsDone,
        *,
        number: int = 0,
        by_id: bool = False,
    ) -> None:
        """``by_id``: acknowledge some events by id."""
        self.world = world
        self.receipts = receipts
        self._kind = kind
        self._is_done = is_done
        self._by_id = by_id
        self._store = receipts.ledger.store
        self._last = -1
        """The newest id that the current seat received for the first time."""
        self._place: tuple[object, int] = (None, 0)
        self.program = Program(world, f"seat-{self._store}-{receipts.name}-{number}", self._main)
        self._refusals_left = 0
        """Attempts left to take a seat that a killed program of the same name may still hold: the
        realm does not know yet that it was killed."""

    async def _main(self, session: aio.Session) -> None:
        if self.program.starts > 1:
            self._refusals_left = 100
        durable = await self._find_durable(session)
        while True:
            window = self.world.random.randint(1, 6) if self.receipts.counted else None
            seat = durable.subscribe(window=window)
            try:
                if await self._consume(seat):
                    await seat.close()
                    return
                await seat.close()
            except DurableInUse:
                self._refusals_left -= 1
                assert self._refusals_left > 0, f"{self.program.name}: another has its seat"
                await pass_time(1)
            except ConnectionLost:
                self.world.note(f"{self.program.name} lost what it settled last")
            except Unavailable as error:  # the seat could not be taken again after a reconnect
                self.world.note(f"{self.program.name} has no seat: {error.code}")
                await pass_time(0.2)

    async def _find_durable(self, session: aio.Session) -> aio.Durable:
        """Return the durable, and retry as often as needed: a realm whose disk fails stops
        answering."""
        while True:
            try:
                channel = await session.channels.get(self._store)
                return await channel.durables.get(self.receipts.name)
            except Unavailable as error:
                self.world.note(f"{self.program.name} is not answered: {error.code}")
                await pass_time(0.2)

    async def _consume(self, seat: aio.DurableSubscription) -> bool:
        """Consume until all is done. Return False if the seat is to be closed before."""
        await seat.open()
        self._refusals_left = 0
        while True:
            batch = await seat.next_batch(timeout=1.0)
            if batch is None:
                if await self._is_done():
                    return True
                continue
            self._check(batch)
            await pass_time(self.world.random.expovariate(20))
            try:
                await self._settle(seat, batch)
            except Unavailable as error:
                self.world.note(f"{self.program.name} is not answered: {error.code}")
            if self.world.random.random() < 0.05:
                self.receipts.rollback_requested(batch.event_ids.tolist())
                return False

    def _check(self, batch: aio.DeliveredBatch) -> None:
        ids = batch.event_ids.tolist()
        counts = {i: n for i, n in (batch.redeliveries or {}).items() if i in set(ids)}
        stale = self.world.is_stale(self.program.name)
        self.receipts.delivered(ids, datas_of(batch), counts, stale=stale)
        self.world.note(f"delivered {self.program.name} {ids} {counts}")
        place = (batch._seat, batch._generation)
        if place != self._place:
            self._place, self._last = place, -1
        if not self.receipts.counted:
            order = [self._last, *ids]
            assert order == sorted(set(order)), f"{self.program.name} was given {order}"
            self._last = ids[-1]

    async def _settle(self, seat: aio.DurableSubscription, batch: aio.DeliveredBatch) -> None:
        random, receipts, ids = self.world.random, self.receipts, batch.event_ids.tolist()
        if self._by_id and random.random() < 0.5:
            await self._acknowledge_by_id(seat, ids)
            return
        if batch.is_stale:
            return
        if receipts.counted and random.random() < 0.2:
            lowest_counts = receipts.rollback_requested(ids)
            await batch.rollback()
            receipts.rollback_answered(lowest_counts)
            self.world.note(f"{self.program.name} rolled back {ids}")
            return
        way = random.choice(
            ("batch", "each", "last") if not receipts.counted else ("batch", "each")
        )
        receipts.ack_requested(ids, self.world.now_us)
        if way == "batch":
            await batch.ack()
        elif way == "last":  # an acknowledgement covers all earlier events (SEM D, ack)
            await batch[len(batch) - 1].ack()
            await seat.flush()
        else:
            for event in batch:
                await event.ack()
            await seat.flush()
        if not batch.is_stale:
            receipts.ack_answered(ids, self.world.now_us)
            self.world.note(f"{self.program.name} acked {ids}")

    async def _acknowledge_by_id(self, seat: aio.DurableSubscription, ids: Sequence[int]) -> None:
        """Acknowledge by id, also events from before a reconnect: the client may hold them
        again."""
        self.receipts.ack_requested(ids, self.world.now_us)
        try:
            await seat.ack(ids)
        except IllegalState:
            self.world.note(f"{self.program.name} has {ids} no more")
            return
        self.receipts.ack_answered(ids, self.world.now_us)
        self.world.note(f"{self.program.name} acked by id {ids}")


class Follower:
    """Reads a channel that keeps all its events from the start: every event once, in order."""

    def __init__(
        self, world: WiredWorld, ledger: Ledger, name: str, is_done: Callable[[], bool]
    ) -> None:
        self.world = world
        self.read: list[int] = []
        self._ledger = ledger
        self._is_done = is_done
        self.program = Program(world, f"follower-{ledger.store}-{name}", self._main)

    async def _main(self, session: aio.Session) -> None:
        channel = await session.channels.get(self._ledger.store)
        while not self._is_done():
            async with channel.subscribe(start=len(self.read)) as events:
                while not self._is_done() and self.world.random.random() > 0.01:
                    batch = await events.next_batch(timeout=0.5)
                    if batch is not None:
                        self._check(batch)

    def _check(self, batch: aio.EventBatch) -> None:
        for event_id, data in zip(batch.event_ids.tolist(), datas_of(batch), strict=True):
            assert event_id == len(self.read), f"{event_id} came after {len(self.read)} events"
            self._ledger.check_content(event_id, data)
            self.read.append(event_id)
        self.world.note(f"{self.program.name} has read {len(self.read)}")


class Taker:
    """Takes events from a queue in transactions."""

    def __init__(self, world: WiredWorld, receipts: Receipts, is_done: IsDone, number: int) -> None:
        self.world = world
        self.receipts = receipts
        self._is_done = is_done
        self.program = Program(world, f"taker-{receipts.ledger.store}-{number}", self._main)

    async def _main(self, session: aio.Session) -> None:
        queue = await session.queues.get(self.receipts.ledger.store)
        random = self.world.random
        while True:
            reader = queue.reader(transactional=True, window=random.randint(1, 6))
            try:
                async with reader:
                    if await self._read(reader):
                        return
            except Unavailable as error:  # the seat could not be taken again after a reconnect
                self.world.note(f"{self.program.name} has no seat: {error.code}")
                await pass_time(0.2)

    async def _read(self, reader: aio.Reader) -> bool:
        """Read until all is done. Return False if the reader is to be closed before."""
        while self.world.random.random() > 0.05:
            batch = await reader.next_batch(timeout=1.0)
            if batch is None:
                if await self._is_done():
                    return True
                continue
            try:
                await self._take(reader, batch)
            except Unavailable as error:
                self.world.note(f"{self.program.name} is not answered: {error.code}")
        return False

    async def _take(self, reader: aio.Reader, batch: aio.EventBatch) -> None:
        ids, receipts = batch.event_ids.tolist(), self.receipts
        counts = {i: n for i, n in (batch.redeliveries or {}).items() if i in set(ids)}
        stale = self.world.is_stale(self.program.name)
        receipts.delivered(ids, datas_of(batch), counts, stale=stale)
        self.world.note(f"{self.program.name} has {ids} {counts}")
        await pass_time(self.world.random.expovariate(20))
        if self.world.random.random() < 0.2:
            receipts.rollback_requested(ids)
            await reader.rollback()
            return
        receipts.ack_requested(ids, self.world.now_us)
        await reader.commit()
        receipts.ack_answered(ids, self.world.now_us)
        self.world.note(f"{self.program.name} committed {ids}")


def datas_of(batch: aio.EventBatch) -> list[bytes]:
    return [bytes(data) for data in batch.to_arrow().column("data").to_pylist()]


def unrequested(receipts: Receipts, ids: Sequence[int]) -> list[int]:
    """Return the ids that left a durable or queue although no client has asked for it."""
    return sorted(set(ids) - set(receipts.requested))
