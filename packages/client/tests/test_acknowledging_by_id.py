"""Acknowledging by id across a lost connection: confirmed events are not delivered to the
application again, although the realm had delivered them to the client again."""

from __future__ import annotations

from typing import Any

import pytest

from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock_core.vocabulary.errors import IllegalState

pytestmark = pytest.mark.spec("D13", "D15")

KINDS = ("exclusive", "priority", "shared", "serial")
CUMULATIVE = ("exclusive", "priority")
COUNT = 4


async def seated(
    session: aio.Session, kind: Any, window: int = 2 * COUNT
) -> aio.DurableSubscription:
    """Return a subscription to a durable with a few events."""
    orders = await session.channels.create("orders")
    durable = await orders.durables.create("d", type=kind)
    await orders.publish_many([aio.Event()] * COUNT)
    return durable.subscribe(window=None if kind in CUMULATIVE else window)


async def take_ids(subscription: aio.DurableSubscription) -> list[int]:
    """Return the ids of all events that arrive."""
    ids: list[int] = []
    while (batch := await subscription.next_batch(1.0)) is not None:
        ids += batch.event_ids.tolist()
    return ids


async def come_again(
    world: World, session: aio.Session, subscription: aio.DurableSubscription
) -> list[int]:
    """Receive a batch, lose the connection, and wait until the same events are delivered again and
    wait in the inbox. Return the ids of the batch."""
    batch = await subscription.next_batch(1.0)
    assert batch is not None
    world.end_of(session).abort()
    await world.until(lambda: batch.is_stale and subscription._inbox.rows == COUNT)
    return [int(event_id) for event_id in batch.event_ids]


@pytest.mark.parametrize("kind", KINDS)
@in_world
async def test_what_is_acknowledged_while_it_waits_again_is_not_handed_out(
    world: World, kind: str
) -> None:
    async with aio.connect(URL) as session, await seated(session, kind) as subscription:
        ids = await come_again(world, session, subscription)

        await subscription.ack(ids)

        assert await take_ids(subscription) == []
        orders = await session.channels.get("orders")
        assert (await (await orders.durables.get("d")).info()).outstanding == 0
        await orders.publish(b"next")
        assert await take_ids(subscription) == [COUNT]


@pytest.mark.parametrize("kind", KINDS)
@in_world
async def test_what_the_acknowledgement_does_not_cover_comes(world: World, kind: str) -> None:
    async with aio.connect(URL) as session, await seated(session, kind) as subscription:
        await come_again(world, session, subscription)

        await subscription.ack([1])

        assert await take_ids(subscription) == ([2, 3] if kind in CUMULATIVE else [0, 2, 3])


@pytest.mark.parametrize("kind", ["shared", "serial"])
@in_world
async def test_what_is_refused_takes_nothing_away(world: World, kind: str) -> None:
    async with aio.connect(URL) as session, await seated(session, kind, COUNT) as subscription:
        orders = await session.channels.get("orders")
        await orders.publish(b"beyond the window")
        ids = await come_again(world, session, subscription)

        with pytest.raises(IllegalState):
            await subscription.ack([*ids, COUNT])

        assert await take_ids(subscription) == ids
