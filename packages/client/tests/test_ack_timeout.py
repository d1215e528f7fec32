"""Acknowledging in time, over a session."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import penstock
from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_testing.loop import pass_time

WAIT_S = 30.0
SECOND = 1.0


@pytest.mark.spec("D19")
@in_world
async def test_an_event_of_a_hanging_client_goes_to_another(world: World) -> None:
    async with aio.connect(URL) as hanging, aio.connect(URL) as other_session:
        orders = await hanging.channels.create("orders")
        team = await orders.durables.create("team", ack_timeout="10s")
        await orders.publish_many([aio.Event(), aio.Event()])
        theirs = (
            await (await other_session.channels.get("orders")).durables.get("team")
        ).subscribe(window=2, timeout=60)
        async with team.subscribe(window=2) as mine, theirs:
            begun = world.loop.time()
            first = await mine.next_batch(timeout=1)
            assert first is not None
            delivered = [event async for event in _some(theirs, 1)]
            assert 10.0 <= world.loop.time() - begun <= 10.5
            assert delivered[0].redelivery_count == 1
            event = first[0]
            await event.ack()
            with pytest.raises(
                IllegalState, match=r"was recalled because .* it was not acknowledged in time"
            ):
                await mine.flush()
            await delivered[0].ack()
            await theirs.flush()


async def _some(subscription: Any, count: int) -> Any:
    async for event in subscription:
        if event.redelivered:
            yield event
            count -= 1
        else:
            await event.ack()
        if not count:
            return


@pytest.mark.spec("D19")
@in_world
async def test_one_that_came_too_late_is_no_reason_to_refuse_the_others(world: World) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        team = await orders.durables.create("team", ack_timeout="10s", backoff={"first": "20s"})
        await orders.publish_many([aio.Event() for _ in range(9)])
        async with team.subscribe(window=9) as subscription:
            batch = await subscription.next_batch(timeout=1)
            assert batch is not None
            events = list(batch)
            await pass_time(9)
            for event in events:
                if event.event_id != 4:
                    await event.extend(timedelta(seconds=30))
            await pass_time(2)
            for event in events:
                await event.ack()
            with pytest.raises(IllegalState, match="event 4 of durable team was recalled"):
                await subscription.flush()
            info = await team.info()
            assert (info.outstanding, info.redelivered) == (1, 1)
            again = await subscription.next_batch(timeout=60)
            assert again is not None
            assert again.event_ids.tolist() == [4]
            await again.ack()
        assert (await team.info()).outstanding == 0


@pytest.mark.spec("D19")
@in_world
async def test_more_time_in_each_way(world: World) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        team = await orders.durables.create("team", ack_timeout=10, backoff={"first": "1m"})
        await orders.publish_many([aio.Event() for _ in range(4)])
        async with team.subscribe(window=4) as subscription:
            batch = await subscription.next_batch(timeout=1)
            assert batch is not None
            await batch.extend("1m")
            assert await subscription.extend([2, 3], 100) == 2
            await pass_time(50)
            assert (await team.info()).redelivered == 0
            await pass_time(20)
            assert (await team.info()).redelivered == 2
            with pytest.raises(IllegalState, match="has been taken back"):
                await subscription.extend([0], "1m")
            await subscription.ack([2, 3])
        plain = await orders.durables.create("plain", start="earliest")
        await orders.publish(b"x")
        (event,) = await plain.fetch(1, timeout=1)
        with pytest.raises(IllegalState, match="has no ack_timeout to extend"):
            await event.extend("1m")
        await plain.close()


@pytest.mark.spec("D19", "Q2")
@in_world
async def test_a_reader_has_its_events_for_so_long(world: World) -> None:
    async with aio.connect(URL) as session:
        work = await session.queues.create("work")
        for n in range(3):
            await work.push(b"%d" % n)
        async with work.reader(transactional=True, ack_timeout="10s") as reader:
            events = await reader.fetch(3, timeout=1)
            await pass_time(5)
            await reader.extend(events[0], time="1m", individual=True)
            await pass_time(6)
            assert (await work.info()).redelivered == 2
            with pytest.raises(
                IllegalState, match=r"2 of these events .* not committed within 10 s"
            ):
                await reader.commit()
            await reader.commit()
            again = await reader.fetch(2, timeout=1)
            assert [event.redelivery_count for event in again] == [1, 1]
            await reader.commit(again[0], individual=True)
        assert (await work.info()).events == 1
        with pytest.raises(InvalidArgument, match="ack_timeout has no effect on a plain reader"):
            work.reader(ack_timeout=5)


def test_a_blocking_client_has_all_of_it(session: Session, orders: Channel) -> None:
    team = orders.durables.create("team", ack_timeout="1h")
    assert team.info().ack_timeout == 3_600_000
    orders.publish_many([penstock.Event() for _ in range(3)])
    with team.subscribe(window=3) as subscription:
        batch = subscription.next_batch(WAIT_S)
        assert batch is not None
        batch.extend("2h")
        batch[0].extend(3 * 3_600)
        assert subscription.extend([1], "2h") == 1
        batch.ack()
        with pytest.raises(InvalidArgument, match="time is 'long'; give seconds"):
            subscription.extend([1], "long")
    work = session.queues.create("work")
    work.push(b"x")
    with work.reader(transactional=True, ack_timeout="1h") as reader:
        reader.fetch(1, timeout=WAIT_S)
        reader.extend(time="2h")
        reader.commit()


@pytest.mark.parametrize(
    ("timeout", "said"),
    [
        ("long", "ack_timeout is 'long'; give seconds"),
        (0.05, "ack_timeout is 50 ms; allowed are 100 to"),
        ("400d", "ack_timeout is 34560000000 ms"),
    ],
)
def test_a_timeout_that_cannot_be_is_refused(orders: Channel, timeout: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        orders.durables.create("team", ack_timeout=timeout)
    assert orders.durables.list() == []
