"""Clients of a simulated cluster: they continue with any node that serves, and record what they
were promised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from penstock import aio
from penstock.client.publishing.publishing import Publisher, bodies_of_events
from penstock_core.vocabulary.errors import (
    AlreadyCommitted,
    CannotConnect,
    DurableInUse,
    NameAlreadyBound,
    NameDoesNotExist,
    Unavailable,
)
from penstock_testing.loop import pass_time
from penstock_testing.network import MACHINE

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld

URL: Final = "penstock://somebody@127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003"
FOR_EVER_S: Final = 1e9
ORDERS, COPIES, LEFT, RIGHT = "orders", "copies", "left", "right"
BILLING, ALONE = "billing", "alone"


class Promises:
    """The confirmations that clients received, and the checks that follow from them."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.end = asyncio.Event()
        self.acked: dict[int, bytes] = {}
        """Data of events published on ``orders``, by id."""
        self.consumed: set[int] = set()
        """Ids acknowledged at ``billing`` with a confirmation."""
        self.settled = -1
        """The highest id that was acknowledged with all before it at ``alone``, with a
        confirmation."""
        self._places: list[tuple[str, int, int]] = []
        """Clients that held the seat at ``alone``, in order; the last one is the holder."""
        self.committed: set[bytes] = set()
        self.tried: set[bytes] = set()
        self.broken: list[str] = []
        """Violations that the log of the engine and the machines reported."""
        self.tasks: list[asyncio.Task[None]] = []
        self.clients = 0

    def stored(self, ids: list[int], datas: list[bytes]) -> None:
        for event_id, data in zip(ids, datas, strict=True):
            first_data = self.acked.setdefault(event_id, data)
            assert first_data == data, f"id {event_id} was given to {first_data!r} and to {data!r}"

    def delivered(self, ids: list[int]) -> None:
        repeated = sorted(self.consumed.intersection(ids))
        assert not repeated, f"{repeated[:5]} came again after their acknowledgement was confirmed"

    def sits(self, place: tuple[str, int, int], ids: list[int]) -> None:
        """Check that a client has the seat from its attach until another client gets an event
        there."""
        if place not in self._places:
            self._places.append(place)
        assert place == self._places[-1], f"{place} has a seat with {self._places[-1]}"
        repeated = [event_id for event_id in ids if event_id <= self.settled]
        assert not repeated, f"{repeated[:5]} came to {place} after {self.settled} was acknowledged"

    async def check(self) -> None:
        """Check all stored events against the promises."""
        assert not self.broken, self.broken[:3]
        session = await connected()
        orders, copies, lefts, rights = [
            await _all_of(session, name) for name in (ORDERS, COPIES, LEFT, RIGHT)
        ]
        lost = {i: data for i, data in self.acked.items() if orders.get(i) != data}
        assert not lost, f"{len(lost)} of {len(self.acked)} are lost: {sorted(lost.items())[:3]}"
        for name, events in ((ORDERS, orders), (COPIES, copies), (LEFT, lefts), (RIGHT, rights)):
            assert len(set(events.values())) == len(events), f"{name} has events twice"
        assert set(copies.values()) == set(orders.values()), "copies of a join are missing"
        assert set(lefts.values()) == set(rights.values()), "a transaction was stored in part"
        missing = self.committed - set(lefts.values())
        assert not missing, f"committed, and not there: {sorted(missing)[:3]}"
        invented = set(lefts.values()) - self.tried
        assert not invented, f"nobody has sent {sorted(invented)[:3]}"
        durable = await (await session.channels.get(ORDERS)).durables.get(BILLING)
        outstanding = {event.event_id or 0 async for event in durable.browse()}
        repeated = outstanding & self.consumed
        assert not repeated, f"acknowledged, and outstanding again: {sorted(repeated)[:5]}"
        await session.close()
        self.world.note(f"{len(orders)} orders, {len(lefts)} transactions")


async def _all_of(session: aio.Session, name: str) -> dict[int, bytes]:
    channel = await session.channels.get(name)
    return {event.event_id or 0: bytes(event.data) async for event in channel.browse()}


async def connected() -> aio.Session:
    while True:
        try:
            return await aio.connect(URL, reconnect_timeout=FOR_EVER_S)
        except CannotConnect:
            await pass_time(0.2)


async def retried(request: Callable[[], Awaitable[object]]) -> None:
    """Repeat a request until it succeeds or the name is bound already, by whichever node."""
    while True:
        try:
            await request()
        except NameAlreadyBound:
            return
        except Unavailable:
            await pass_time(0.2)
        else:
            return


async def created(world: ClusterWorld) -> None:
    """Create the channels, durables and a join while nodes already fail."""
    session = await connected()
    for name in (ORDERS, COPIES, LEFT, RIGHT):
        await retried(
            lambda name=name: session.channels.create(  # type: ignore[misc]
                name, type="persistent", retain_consumed=True, storage={"events_per_spindle": 20}
            )
        )
    orders = await session.channels.get(ORDERS)
    await retried(lambda: orders.durables.create(BILLING, type="shared"))
    await retried(lambda: orders.durables.create(ALONE, type="exclusive"))
    await retried(lambda: session.joins.create(ORDERS, COPIES))
    await session.close()
    world.note("everything is made")


def elsewhere(
    client: Callable[[ClusterWorld, str], Coroutine[Any, Any, None]],
) -> Callable[[ClusterWorld], Coroutine[Any, Any, None]]:
    """Return a function that runs a client on a separate machine under a new name."""

    async def run(world: ClusterWorld) -> None:
        world.promises.clients += 1
        name = f"{client.__name__.strip('_')} {world.promises.clients}"
        context = copy_context()
        context.run(MACHINE.set, name)
        task = world.loop.create_task(client(world, name), context=context)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        task.result()

    return run


async def _publisher(world: ClusterWorld, name: str) -> None:
    """Publish repeatedly under one identity. The publisher does not notice takeovers."""
    session, promises, sequence = await connected(), world.promises, 0
    channel = await session.channels.get(ORDERS)
    publisher = Publisher(session.connection, channel.number, name, published=0)
    while not promises.end.is_set():
        count = world.random.randint(1, 4)
        datas = [f"{name}/{sequence}/{i}".encode() for i in range(count)]
        events = [aio.Event(data=data) for data in datas]
        ids = await publisher.publish(bodies_of_events(events))
        promises.stored(list(ids), datas)
        world.note(f"{name} has {list(ids)}")
        sequence += 1
        await pass_time(world.pause_s(6))
    await session.close()


async def _consumer(world: ClusterWorld, name: str) -> None:
    """Consume at a shared durable and check that acknowledged events do not return."""
    session, promises = await connected(), world.promises
    channel = await session.channels.get(ORDERS)
    durable = await channel.durables.get(BILLING)
    while not promises.end.is_set():
        try:
            async with durable.subscribe(window=5) as seat:
                while not promises.end.is_set():
                    batch = await seat.next_batch(timeout=0.5)
                    if batch is None:
                        continue
                    ids = batch.event_ids.tolist()
                    if world.is_listened_to(name):
                        promises.delivered(ids)
                    await pass_time(world.random.expovariate(20))
                    if batch.is_stale:
                        continue
                    await batch.ack()
                    if not batch.is_stale:
                        promises.consumed.update(ids)
                        world.note(f"{name} acked {ids}")
        except Unavailable as error:
            world.note(f"{name} is not answered: {error.code}")
            await pass_time(0.2)
    await session.close()


async def _holder(world: ClusterWorld, name: str) -> None:
    """Take the seat of an exclusive durable now and then, and settle what it receives."""
    session, promises, opens = await connected(), world.promises, 0
    durable = await (await session.channels.get(ORDERS)).durables.get(ALONE)
    while not promises.end.is_set():
        opens += 1
        leaves_at_s = world.loop.time() + world.random.expovariate(1 / 4)
        try:
            async with durable.subscribe() as seat:
                while not promises.end.is_set() and world.loop.time() < leaves_at_s:
                    if (batch := await seat.next_batch(timeout=0.5)) is not None:
                        sitting = name, opens, batch._generation
                        await _settle(world, sitting, batch)
        except DurableInUse:
            await pass_time(0.3)
        except Unavailable as error:
            world.note(f"{name} is not answered: {error.code}")
            await pass_time(0.2)
    await session.close()


async def _settle(
    world: ClusterWorld, sitting: tuple[str, int, int], batch: aio.DeliveredBatch
) -> None:
    name, promises, ids = sitting[0], world.promises, batch.event_ids.tolist()
    if not world.is_stale(name):
        promises.sits(sitting, ids)
    await pass_time(world.random.expovariate(20))
    if batch.is_stale:
        return
    await batch.ack()
    if not batch.is_stale:
        promises.settled = max(promises.settled, ids[-1])
        world.note(f"{name} has settled {ids[-1]}")


async def _visitor(world: ClusterWorld, name: str) -> None:
    """Visit the nodes in turn, even those that the other nodes cannot reach. A node that answers
    must not refuse existing names, nor show an older state."""
    while not world.promises.end.is_set():
        await pass_time(world.pause_s(3))
        try:
            async with asyncio.timeout(1.5):
                sits = world.random.random() < 0.1
                await _visit(world, name, 9_200 + world.random.randint(1, 3), sits=sits)
        except (TimeoutError, Unavailable):
            world.loop.network.kill(name)


async def _visit(world: ClusterWorld, name: str, port: int, *, sits: bool) -> None:
    """Read the newest id and sometimes take a seat for a moment: the seat makes the owner
    append."""
    promises = world.promises
    session = await aio.connect(f"penstock://somebody@127.0.0.1:{port}", reconnect_timeout=0)
    newest_stored = max(promises.acked, default=-1)
    try:
        channel = await session.channels.get(ORDERS)
        newest = (await channel.info()).last_event_id
    except NameDoesNotExist as error:
        raise AssertionError(f"{name} was told that there is no {ORDERS}") from error
    assert newest >= newest_stored, (
        f"{name} was shown {newest} as the newest, {newest_stored} is stored"
    )
    durable = await channel.durables.get(BILLING)
    if sits:
        async with durable.subscribe(window=3) as seat:
            batch = await seat.next_batch(timeout=0.2)
            if batch is not None and world.is_listened_to(name):
                promises.delivered(batch.event_ids.tolist())
    await session.close()


async def _committer(world: ClusterWorld, name: str) -> None:
    """Commit transactions over two channels: both parts or neither. A transaction that a takeover
    interrupts is repeated without the application's notice."""
    session, promises, number = await connected(), world.promises, 0
    left_channel, right_channel = (
        await session.channels.get(LEFT),
        await session.channels.get(RIGHT),
    )
    while not promises.end.is_set():
        number += 1
        data = f"{name}/{number}".encode()
        promises.tried.add(data)
        try:
            async with session.transaction() as transaction:
                await transaction.publish(left_channel, data)
                await transaction.publish(right_channel, data)
        except AlreadyCommitted:
            promises.committed.add(data)
        except Unavailable as error:
            world.note(f"{name} does not know of {number}: {error.code}")
        else:
            promises.committed.add(data)
            world.note(f"{name} has committed {number}")
        await pass_time(world.pause_s(3))
    await session.close()


CLIENTS: Final = tuple(map(elsewhere, (_publisher, _consumer, _holder, _visitor, _committer)))
