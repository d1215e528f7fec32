"""An orderly close keeps settlements, returns unsettled events and leaves no task (SEM D13).

Client, realm and network are simulated, so that the tests control which frames are in transit.
"""

from __future__ import annotations

import asyncio

import pytest

from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    IllegalState,
    PenstockError,
    SessionClosed,
)

MUCH = 60
"""Events of :data:`LARGE`: more than both ends and the way between them hold."""
LARGE = b"x" * 100_000

pytestmark = pytest.mark.spec("D13")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@in_world
async def test_what_was_acknowledged_is_though_deliveries_are_on_their_way(
    world: World, seed: int
) -> None:
    async def orders_of(session: aio.Session) -> aio.Durable:
        return await (await session.channels.get("orders")).durables.get("billing")

    async with aio.connect(URL) as other_session:
        orders = await other_session.channels.create("orders")
        billing = await orders.durables.create("billing")
        await orders.publish_many([aio.Event(b"%d" % n) for n in range(10)])
        await other_session.channels.create("news")
        session = await aio.connect(URL)
        subscription = (await orders_of(session)).subscribe(window=10)
        await subscription.open()
        batch = await subscription.next_batch(5.0)
        assert batch is not None
        await (await session.channels.get("news")).subscribe().open()
        news = await other_session.channels.get("news")
        await world.full(
            session, lambda: news.publish_many([aio.Event(LARGE) for _ in range(MUCH)])
        )

        for event in list(batch)[:5]:
            await event.ack()
        world.end_of(session).resume_reading()
        await session.close()

        info = await billing.info()
        assert (info.outstanding, info.in_flight, info.clients) == (5, 0, ())
        assert (await other_session.info()).connections == 1


@pytest.mark.spec("J5")
@pytest.mark.parametrize("seed", range(5))
@in_world
async def test_nobody_waits_for_a_subscriber_that_has_closed(world: World, seed: int) -> None:
    """A lost connection keeps its place for a minute; a close gives it up."""
    async with aio.connect(URL) as other_session:
        news = await other_session.channels.create("news", engine="jms", type="reliable")
        session = await aio.connect(URL)
        await (await session.channels.get("news")).subscribe().open()
        await world.full(
            session, lambda: news.publish_many([aio.Event(LARGE) for _ in range(MUCH)])
        )
        world.end_of(session).resume_reading()
        await session.close()

        assert (await news.info()).events == 0
        await news.publish(b"nobody")
        assert (await news.info()).events == 0


@in_world
async def test_a_close_waits_for_a_slow_realm(world: World) -> None:
    """Settlements are on disk when close returns, however long that takes."""
    async with aio.connect(URL) as other_session:
        orders = await other_session.channels.create("orders")
        billing = await orders.durables.create("billing")
        await orders.publish(b"0")
        session = await aio.connect(URL)
        durable = await (await session.channels.get("orders")).durables.get("billing")
        subscription = await durable.subscribe(window=1).open()
        batch = await subscription.next_batch(5.0)
        assert batch is not None
        world.end_of(session).peer.held_until_s = world.loop.time() + 20.0

        await batch[0].ack()
        began_s = world.loop.time()
        await session.close()

        assert 20.0 <= world.loop.time() - began_s < 25.0
        assert (await billing.info()).outstanding == 0


@pytest.mark.slow
@in_world
async def test_a_close_without_confirmation_raises_an_error(world: World) -> None:
    async with aio.connect(URL) as other_session:
        orders = await other_session.channels.create("orders")
        await orders.durables.create("billing")
        await orders.publish_many([aio.Event(b"0"), aio.Event(b"1")])
        session = await aio.connect(URL)
        heard: list[PenstockError] = []
        session.on_error(heard.append)
        durable = await (await session.channels.get("orders")).durables.get("billing")
        subscription = await durable.subscribe(window=2).open()
        batch = await subscription.next_batch(5.0)
        assert batch is not None
        world.end_of(session).is_silent = True  # the peer does not notice

        for event in batch:
            await event.ack()
        began_s = world.loop.time()
        with pytest.raises(ConnectionLost, match="had confirmed"):
            await session.close()
        assert world.loop.time() - began_s < 60
        await world.until(lambda: bool(heard))
        await session.close()  # once is enough


@pytest.mark.slow
@in_world
async def test_an_error_that_leaves_the_block_is_not_hidden_by_one_of_the_close(
    world: World,
) -> None:
    async with aio.connect(URL) as other_session:
        orders = await other_session.channels.create("orders")
        await orders.durables.create("billing")
        await orders.publish(b"0")

        async def fails() -> None:
            async with aio.connect(URL) as session:
                durable = await (await session.channels.get("orders")).durables.get("billing")
                subscription = await durable.subscribe(window=2).open()
                batch = await subscription.next_batch(5.0)
                assert batch is not None
                world.end_of(session).is_silent = True
                await batch[0].ack()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()


@in_world
async def test_where_nobody_answers_a_close_ends_all_the_same(world: World) -> None:
    session = await aio.connect(URL)
    world.end_of(session).peer.is_silent = True
    began_s = world.loop.time()

    await session.close()

    assert world.loop.time() - began_s < 10


@pytest.mark.parametrize("seed", range(5))
@in_world
async def test_an_unclosed_session_ends_in_order_with_its_loop(world: World, seed: int) -> None:
    """``asyncio.run`` cancels the session's task at its end; the session then closes in order."""
    async with aio.connect(URL) as other_session:
        orders = await other_session.channels.create("orders")
        billing = await orders.durables.create("billing")
        await orders.publish(b"0")
        others = asyncio.all_tasks()
        session = await aio.connect(URL)
        (root,) = (task for task in asyncio.all_tasks() - others if "session" in task.get_name())
        durable = await (await session.channels.get("orders")).durables.get("billing")
        subscription = await durable.subscribe(window=2).open()
        batch = await subscription.next_batch(5.0)
        assert batch is not None
        await batch[0].ack()

        root.cancel()
        await asyncio.wait([root])

        assert (await billing.info()).outstanding == 0
        assert (await other_session.info()).connections == 1
        with pytest.raises(SessionClosed):
            await session.info()


# --- settling after the end ---------------------------------------------------------------


async def one_event(other_session: aio.Session) -> tuple[aio.Durable, aio.DeliveredEvent]:
    orders = await other_session.channels.create("orders")
    billing = await orders.durables.create("billing")
    await orders.publish_many([aio.Event(b"0"), aio.Event(b"1")])
    return billing, (await billing.fetch(1, 5.0))[0]


@in_world
async def test_an_acknowledgement_after_the_durable_was_closed_raises(world: World) -> None:
    async with aio.connect(URL) as other_session:
        billing, event = await one_event(other_session)
        await billing.close()

        with pytest.raises(SessionClosed, match="event 0 has returned to durable billing"):
            await event.ack()
        with pytest.raises(SessionClosed):
            await event.ack(previous=True)
        await event.rollback()  # it is back already
        assert (await billing.info()).outstanding == 2


@in_world
async def test_so_it_does_after_the_subscription_was_closed_or_opened_again(world: World) -> None:
    async with aio.connect(URL) as other_session:
        orders = await other_session.channels.create("orders")
        billing = await orders.durables.create("billing")
        await orders.publish(b"0")
        subscription = await billing.subscribe(window=2).open()
        batch = await subscription.next_batch(5.0)
        assert batch is not None
        event = batch[0]
        await subscription.close()
        for _ in range(2):
            with pytest.raises(SessionClosed, match="acknowledge events before"):
                await event.ack()
            with pytest.raises(SessionClosed):
                await batch.ack()
            await subscription.open()
        again = await subscription.next_batch(5.0)
        assert again is not None
        await again[0].ack()
        await subscription.flush()
        assert (await billing.info()).outstanding == 0
        await subscription.close()
        with pytest.raises(SessionClosed):
            await subscription.ack([0])


@in_world
async def test_so_it_does_after_the_session_was_closed(world: World) -> None:
    async with aio.connect(URL) as other_session:
        session = await aio.connect(URL)
        _, event = await one_event(session)
        await session.close()

        with pytest.raises(SessionClosed, match="the session is closed"):
            await event.ack()
        assert (await other_session.info()).connections == 1


@pytest.mark.spec("Q2", "Q3")
@in_world
async def test_a_commit_after_the_reader_was_closed_raises(world: World) -> None:
    async with aio.connect(URL) as other_session:
        work = await other_session.queues.create("work")
        await work.push(b"0")
        reader = work.reader(transactional=True, timeout=0.0)
        read_events = [event async for event in reader]  # closes what iterating opened

        with pytest.raises(SessionClosed, match=r"1 uncommitted events, which returned"):
            await reader.commit()
        with pytest.raises((SessionClosed, IllegalState)):
            await reader.commit(read_events[0])
        await reader.rollback()
        assert (await work.info()).events == 1
