"""A connection is lost while subscriptions are being opened: each is open once on the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock_core.api.subscriptions import Attach, Subscribe
from penstock_testing.loop import pass_time


async def wait_for_request(world: World, session: aio.Session, opening: asyncio.Task[Any]) -> None:
    """The request of an opening is on its way, and its connection is lost before the answer."""
    pending = session.connection.pending
    kinds = Subscribe | Attach
    while not any(isinstance(request.message, kinds) for request in pending.values()):
        await pass_time(0)
    assert not opening.done()
    world.end_of(session).abort()


@pytest.mark.spec("E6")
@in_world
async def test_one_that_its_opener_asks_for_again_is_not_opened_twice(world: World) -> None:
    async with aio.connect(URL) as session, aio.connect(URL) as other_session:
        first, second = [await session.channels.create(name) for name in ("first", "second")]
        async with first.subscribe(), first.subscribe() as before:
            subscription = second.subscribe()
            opening = world.loop.create_task(subscription.open())
            await wait_for_request(world, session, opening)
            await opening

            await (await other_session.channels.get("first")).publish(b"1")
            await (await other_session.channels.get("second")).publish(b"2")
            got = [await reader.next_batch(60.0) for reader in (before, subscription)]
            assert [batch and batch.event_ids.tolist() for batch in got] == [[0], [0]]
            await subscription.close()


@pytest.mark.parametrize("kind", ["exclusive", "serial"])
@pytest.mark.spec("D14")
@in_world
async def test_a_seat_that_its_opener_asks_for_again_is_taken_once(world: World, kind: Any) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type=kind)
        async with orders.subscribe():
            seat = durable.subscribe()
            opening = world.loop.create_task(seat.open())
            await wait_for_request(world, session, opening)
            await opening

            await orders.publish(b"")
            batch = await seat.next_batch(60.0)
            assert batch is not None
            assert (batch.event_ids.tolist(), batch.is_stale) == ([0], False)
            await batch.ack()
            await seat.close()


@pytest.mark.spec("D21")
@in_world
async def test_a_pattern_goes_on_being_watched_when_its_connection_is_lost_while_it_is_opened(
    world: World,
) -> None:
    async with aio.connect(URL) as session, aio.connect(URL) as other_session:
        await session.channels.create("orders/eu")
        subscription = session.subscribe("orders/*")
        opening = world.loop.create_task(subscription.open())
        await world.until(lambda: subscription._ring.new_from is not None)
        assert not opening.done()
        world.end_of(session).abort()
        await opening

        await (await other_session.channels.create("orders/us")).publish(b"new")
        batch = await subscription.next_batch(60.0)
        assert batch is not None
        assert [(event.channel, event.data) for event in batch] == [("orders/us", b"new")]
        await subscription.close()


@pytest.mark.spec("D13", "D14")
@in_world
async def test_a_durable_is_held_when_its_connection_is_lost_while_the_hold_is_opened(
    world: World,
) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type="serial")
        await orders.publish(b"")
        hold = durable.hold()
        opening = world.loop.create_task(hold.open())
        await wait_for_request(world, session, opening)
        await opening

        async with asyncio.timeout(60.0):
            assert list((await hold.take(0, 0)).id_set) == [0]
            await hold.ack(0)
        await hold.close()
