"""A hand-over in order costs no answer: what the owner has begun it answers before it says goodbye,
and what it has not begun is asked of the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from packages.cluster.tests.machines import NodeMachine, end, until
from packages.cluster.tests.serving import HOST
from penstock import aio
from penstock_core.vocabulary.errors import ConnectionLost, NameAlreadyBound
from penstock_testing.engine import EngineServers
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop

SLOW_S = 0.3


class SlowEngine:
    """Does at once what it is asked, and answers late while it ``is_slow``."""

    def __init__(self) -> None:
        self.is_slow = False

    async def __call__(self, call: Callable[[], Any]) -> Any:
        answer = call()
        if self.is_slow:
            await pass_time(SLOW_S)
        return answer


class Pair:
    """The owner, another node, and a session that knows both."""

    def __init__(self, engine: SlowEngine, owner: NodeMachine, other: NodeMachine) -> None:
        self.engine = engine
        self.owner = owner
        self.other = other
        self.session: aio.Session

    @classmethod
    async def made(cls) -> Pair:
        servers, engine = EngineServers(), SlowEngine()
        owner = NodeMachine(servers, 1, call=engine)
        await until(lambda: owner.serves)
        standby = NodeMachine(servers, 2)
        await until(lambda: standby.reported_owners[-1:] == [owner.name])
        pair = cls(engine, owner, standby)
        pair.session = await aio.connect(f"{owner.url},{HOST}:{standby.native}")
        return pair

    async def throughout(self, ask: Callable[[int], Awaitable[Any]]) -> list[Any]:
        """The answers of all that is asked while the owner hands over, before and after."""
        self.engine.is_slow = True
        asking: list[asyncio.Task[Any]] = []
        while not self.other.serves or len(asking) < 40:
            if len(asking) == 10:
                self.owner.node.hand_over(0)
            asking.append(the_loop().create_task(_answer_of(ask(len(asking)))))
            await pass_time(0.02)
        self.engine.is_slow = False
        return [await request for request in asking]

    async def ends(self) -> None:
        await self.session.close()
        await end(self.owner, self.other)


async def _answer_of(request: Awaitable[Any]) -> Any:
    return await request


@pytest.mark.spec("N4")
@simulated
async def test_what_is_created_while_the_owner_hands_over_is_answered() -> None:
    pair = await Pair.made()

    def create(n: int) -> Awaitable[aio.Channel]:
        return pair.session.channels.create(f"orders {n}", type="persistent")

    made = await pair.throughout(create)

    assert [channel.name for channel in made] == [f"orders {n}" for n in range(len(made))]
    await pair.ends()


@pytest.mark.spec("N4")
@simulated
async def test_purges_under_way_are_done_once_and_counted() -> None:
    pair = await Pair.made()
    channel = await pair.session.channels.create("orders", type="persistent")
    await channel.publish_many([aio.Event()] * 500)

    counts = await pair.throughout(lambda n: channel.purge(start=n, end=n))

    assert counts == [1] * len(counts)
    assert (await channel.info()).events == 500 - len(counts)
    await pair.ends()


@pytest.mark.spec("N4")
@simulated
async def test_so_is_every_other_change() -> None:
    pair = await Pair.made()
    orders = await pair.session.channels.create("orders", type="persistent")
    durable = await orders.durables.create("all")

    async def change(n: int) -> None:
        here = pair.session
        match n % 3:
            case 0:
                await orders.durables.create(f"mine {n}")
                await orders.durables.delete(f"mine {n}")
            case 1:
                await here.queues.create(f"work {n}", type="persistent")
                await here.joins.create("orders", f"work {n}")
                await here.joins.delete("orders", f"work {n}")
                await here.queues.delete(f"work {n}")
            case _:
                await orders.edit(capacity=n)
                await durable.purge()

    answers = await pair.throughout(change)

    assert answers == [None] * len(answers)
    assert [durable.name for durable in await orders.durables.list()] == ["all"]
    assert await pair.session.queues.list() == []
    assert await pair.session.joins.list() == []
    await pair.ends()


@pytest.mark.spec("N4")
@simulated
async def test_what_was_stored_by_an_owner_that_was_killed_before_it_could_say_so() -> None:
    pair = await Pair.made()
    orders = await pair.session.channels.create("orders", type="persistent")
    await pair.session.queues.create("work", type="persistent")
    await orders.durables.create("old")
    await orders.publish(b"a")
    changes = [
        pair.session.channels.create("more", type="persistent", ttl=5_000),
        pair.session.queues.create("jobs", type="persistent"),
        orders.durables.create("new", type="serial"),
        orders.durables.delete("old"),
        pair.session.joins.create("orders", "work", selector="a > 1"),
        orders.edit(capacity=7),
    ]

    pair.engine.is_slow = True
    tasks = [the_loop().create_task(_answer_of(change)) for change in changes]
    purging = the_loop().create_task(orders.purge())
    await pass_time(SLOW_S / 2)
    pair.owner.kill()
    for task in tasks:
        await task
    with pytest.raises(ConnectionLost, match="it is unknown whether it was done"):
        await purging  # a second one might remove what came after the first

    assert await pair.session.channels.list() == ["more", "orders"]
    assert await pair.session.queues.list() == ["jobs", "work"]
    assert [durable.name for durable in await orders.durables.list()] == ["new"]
    assert (await orders.info()).definition.capacity == 7
    await pair.session.close()
    await end(pair.other)


@pytest.mark.spec("N4")
@simulated
async def test_what_has_other_attributes_was_created_by_somebody_else() -> None:
    pair = await Pair.made()
    await pair.session.channels.create("orders", type="persistent", ttl=1_000)

    async def create() -> aio.Channel:
        return await pair.session.channels.create("orders", type="persistent", ttl=5_000)

    task = the_loop().create_task(create())
    await asyncio.sleep(0)
    pair.owner.kill()
    with pytest.raises(NameAlreadyBound, match="ttl is 1000, not 5000"):
        await task

    await pair.session.close()
    await end(pair.other)


@pytest.mark.spec("N4")
@simulated
async def test_an_owner_does_not_wait_long_for_what_it_has_begun() -> None:
    pair = await Pair.made()
    channel = await pair.session.channels.create("orders", type="persistent")
    durable = await channel.durables.create("mine", type="exclusive")
    subscription = durable.subscribe(timeout=60)
    waiting = the_loop().create_task(_first(subscription))
    await pass_time(1)

    pair.owner.node.hand_over(0)
    took_s = await until(lambda: pair.other.serves)

    assert took_s < 1
    await channel.publish(b"a")
    assert await waiting == b"a"
    await pair.ends()


@pytest.mark.spec("N4", "D13")
@simulated
async def test_an_acknowledgement_the_owner_has_not_begun_is_told_that_nothing_was_done() -> None:
    pair = await Pair.made()
    channel = await pair.session.channels.create("orders", type="persistent")
    durable = await channel.durables.create("mine", type="exclusive")
    await channel.publish(b"a")
    async with durable.subscribe(timeout=60) as seat:
        batch = await seat.next_batch()
        assert batch is not None
        listener = pair.owner.listener
        assert listener is not None
        pair.engine.is_slow = True
        pair.owner.node.hand_over(0)
        tasks: list[asyncio.Task[Any]] = []
        while not listener.is_draining:  # what it has begun it answers before it ends
            tasks.append(
                the_loop().create_task(_answer_of(channel.durables.create(f"{len(tasks)}")))
            )
            await pass_time(0.02)

        with pytest.raises(ConnectionLost, match="before Settle was begun: nothing was done"):
            await batch.ack()

        pair.engine.is_slow = False
        again = await seat.next_batch()
        assert again is not None
        assert (batch.is_stale, again.event_ids.tolist()) == (True, [0])
        await again.ack()
    for task in tasks:
        await task
    assert (await durable.info()).outstanding == 0
    await pair.ends()


async def _first(subscription: Any) -> bytes:
    async for event in subscription:
        await event.ack()
        await subscription.close()
        data: bytes = event.data
        return data
    raise AssertionError("it ends with an event")
