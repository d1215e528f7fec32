"""What a client has of a durable when its connection is lost belongs to the realm from then on, not
only once the client is connected again: others may have it meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import aio
from penstock.testing.loop import pass_time
from tests.client.simulated import URL, World, in_world

pytestmark = pytest.mark.spec("D13")

KINDS = ("exclusive", "priority", "shared", "serial")


async def parted(world: World, session: aio.Session) -> None:
    """Lose the connection; comes back before there is another one."""
    connection: Any = session._connection
    world.end_of(session).abort()
    while connection._link is not None:
        await pass_time(0)


@pytest.mark.parametrize("kind", KINDS)
@in_world
async def test_what_waits_is_not_handed_out_and_what_was_is_stale(world: World, kind: Any) -> None:
    async with aio.connect(URL) as session, aio.connect(URL) as other:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type=kind)
        await orders.publish(b"first")
        async with durable.subscribe(window=None if kind in KINDS[:2] else 10) as subscription:
            taken = await subscription.next_batch(1.0)
            assert taken is not None
            await (await other.channels.get("orders")).publish(b"second")
            await world.until(lambda: subscription._inbox.rows == 1)

            await parted(world, session)

            assert (taken.is_stale, subscription._inbox.rows) == (True, 0)
            again = await subscription.next_batch(60.0)
            assert again is not None
            assert (again.event_ids.tolist(), again.is_stale) == ([0, 1], False)


@in_world
async def test_an_event_of_a_lost_connection_is_neither_acknowledged_nor_given_back(
    world: World,
) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type="shared")
        await orders.publish_many([aio.Event()] * 3)
        async with durable.subscribe(window=10) as subscription:
            taken = await subscription.next_batch(1.0)
            assert taken is not None
            await parted(world, session)

            await taken[0].ack()
            await taken[1].rollback()
            await taken.ack()

            again = await subscription.next_batch(60.0)
            assert again is not None
            assert again.event_ids.tolist() == [0, 1, 2]
            assert [event.redelivery_count for event in again] == [1, 1, 1]
