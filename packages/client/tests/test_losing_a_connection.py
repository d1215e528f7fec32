"""Unsettled events return to their durable when the connection is lost, not only at the reconnect:
other clients may receive them in between."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock_core.vocabulary.errors import ConnectionLost, IllegalState
from penstock_testing.loop import pass_time

pytestmark = pytest.mark.spec("D13")

KINDS = ("exclusive", "priority", "shared", "serial")


async def parted(world: World, session: aio.Session) -> None:
    """Lose the connection; return before the session has reconnected."""
    world.end_of(session).abort()
    while session.connection.link is not None:
        await pass_time(0)


@pytest.mark.parametrize("kind", KINDS)
@in_world
async def test_what_waits_is_not_handed_out_and_what_was_is_stale(world: World, kind: Any) -> None:
    async with aio.connect(URL) as session, aio.connect(URL) as other_session:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type=kind)
        await orders.publish(b"first")
        async with durable.subscribe(window=None if kind in KINDS[:2] else 10) as subscription:
            batch = await subscription.next_batch(1.0)
            assert batch is not None
            await (await other_session.channels.get("orders")).publish(b"second")
            await pass_time(5)  # it has arrived

            await parted(world, session)

            assert batch.is_stale
            again = await subscription.next_batch(60.0)
            assert again is not None
            assert (again.event_ids.tolist(), again.is_stale) == ([0, 1], False)


@in_world
async def test_an_acknowledgement_of_an_event_of_a_lost_connection_is_refused(
    world: World,
) -> None:
    """A rollback has no effect, as the event has already returned to the durable."""
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type="shared")
        await orders.publish_many([aio.Event()] * 3)
        async with durable.subscribe(window=10) as subscription:
            batch = await subscription.next_batch(1.0)
            assert batch is not None
            await parted(world, session)

            for settle in (
                batch[0].ack,
                partial(batch[0].ack, previous=True),
                partial(batch[0].reject, "late"),
                partial(batch[0].extend, "1m"),
                batch.ack,
                partial(batch.reject, "late"),
                partial(batch.extend, "1m"),
            ):
                with pytest.raises(IllegalState, match="because the connection was lost"):
                    await settle()
            await batch[1].rollback(delay="1h")
            await batch.rollback()
            await subscription.flush()

            again = await subscription.next_batch(60.0)
            assert again is not None
            assert again.event_ids.tolist() == [0, 1, 2]
            assert [event.redelivery_count for event in again] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("auto_ack", [False, True])
@pytest.mark.parametrize("by_loop", [False, True])
@in_world
async def test_an_event_of_a_lost_connection_that_is_given_back_by_id_comes_once(
    world: World, by_loop: bool, auto_ack: bool
) -> None:
    """The event has returned to the durable, and waits here again: in the inbox, or in the batch of
    the loop."""
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type="shared")
        await orders.publish_many([aio.Event()] * 3)
        window = None if auto_ack else 10
        seat = durable.subscribe(window=window, auto_ack=auto_ack, timeout=60.0)
        async with seat as subscription:
            batch = await subscription.next_batch(1.0)
            assert batch is not None
            assert batch.event_ids.tolist() == [0, 1, 2]
            await parted(world, session)
            await pass_time(5)  # all three have arrived again

            got = []
            if not by_loop:
                await subscription.rollback([1, 2])
            async for event in subscription:
                got.append((event.event_id, event.redelivery_count))
                if by_loop and event.event_id == 0:
                    await subscription.rollback([1, 2])
                if not auto_ack:
                    await event.ack()

            assert got == [(0, 1), (1, 1), (2, 1)]
        assert (await durable.info()).outstanding == 0


@in_world
async def test_an_event_in_hands_is_given_back_by_id_while_others_wait(world: World) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type="shared")
        await orders.publish_many([aio.Event()] * 2)
        async with durable.subscribe(window=10) as subscription:
            batch = await subscription.next_batch(1.0)
            assert batch is not None
            await orders.publish(b"waits")
            await pass_time(5)  # it has arrived

            await subscription.rollback([0, 2])

            got: list[tuple[int | None, int]] = []
            while len(got) < 2:
                batch = await subscription.next_batch(60.0)
                assert batch is not None
                got += [(event.event_id, event.redelivery_count) for event in batch]
            assert got == [(2, 0), (0, 1)]


@pytest.mark.spec("Q1", "Q2")
@pytest.mark.parametrize("transactional", [False, True])
@in_world
async def test_a_reader_does_not_hand_out_what_waits_after_its_connection_was_lost(
    world: World, transactional: bool
) -> None:
    async with aio.connect(URL) as session:
        queue = await session.queues.create("work")
        await queue.push_many([aio.Event()] * 4)
        async with queue.reader(transactional=transactional, window=10) as reader:
            events = aiter(reader)  # its first step receives one of the four that have arrived
            assert (await anext(events)).event_id == 0
            await reader.flush()

            await parted(world, session)

            if transactional:
                with pytest.raises(ConnectionLost, match="the connection was lost since 1 of"):
                    await reader.commit()
            got: list[tuple[int | None, int]] = []
            while len(got) < (4 if transactional else 3):
                batch = await reader.next_batch(60.0)
                assert batch is not None
                got += [(event.event_id, event.redelivery_count) for event in batch]
            assert got == [(event_id, 1) for event_id in range(4 - len(got), 4)]


@pytest.mark.spec("Q3")
@in_world
async def test_an_event_of_a_lost_connection_that_waits_again_is_no_stranger_to_a_reader(
    world: World,
) -> None:
    async with aio.connect(URL) as session:
        queue = await session.queues.create("work")
        await queue.push_many([aio.Event()] * 2)
        async with queue.reader(transactional=True, window=10) as reader:
            assert len(await reader.fetch(2, 60.0)) == 2
            await parted(world, session)
            part = await reader._next_part(60.0)
            assert part is not None
            assert len(part) == 2

            await reader.rollback(0, individual=True)  # the event was returned to the durable
            with pytest.raises(ConnectionLost, match="the connection was lost since 1 of"):
                await reader.commit(1, individual=True)

            again = await reader.next_batch(60.0)
            assert again is not None
            assert [(event.event_id, event.redelivery_count) for event in again] == [(0, 1), (1, 1)]
