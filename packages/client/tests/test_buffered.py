"""A subscriber that does not read: what waits for it is bounded in bytes, from the first on."""

from __future__ import annotations

from typing import Any

import pytest

from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_testing.loop import pass_time

BOUND = 1_000_000
LARGE = b"x" * 100_000

pytestmark = pytest.mark.spec("E6")


def waiting(subscription: Any) -> int:
    """Return the bytes in the client that no caller has taken."""
    size: int = subscription._inbox.buffered.size
    return size


async def subscribed(start: Any, session: aio.Session, **options: Any) -> aio.Subscription:
    orders = await session.channels.get("orders")
    return await orders.subscribe(start=start, buffer_bytes=BOUND, **options).open()


async def take_ids(subscription: aio.Subscription, count: int) -> list[int]:
    """Take ``count`` events; the waiting bytes stay below the bound all the time."""
    ids: list[int] = []
    while len(ids) < count:
        batch = await subscription.next_batch(60.0)
        assert batch is not None, f"nothing came after {ids[-1:]}"
        ids += batch.event_ids.tolist()
        await pass_time(1)
        assert waiting(subscription) <= BOUND
    return ids


@pytest.mark.slow
@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("engine", ["default", "jms"])
@pytest.mark.parametrize("selector", ["", "n >= 0"])
@in_world
async def test_a_subscriber_that_does_not_read_has_no_more_than_its_bound(
    world: World, start: Any, engine: Any, selector: str
) -> None:
    async with aio.connect(URL) as other_session, aio.connect(URL) as session:
        orders = await other_session.channels.create("orders", engine=engine, type="reliable")
        subscription = await subscribed(start, session, selector=selector)
        for n in range(10):
            events = [aio.Event(LARGE, properties={"n": 10 * n + m}) for m in range(10)]
            await orders.publish_many(events)
        await pass_time(5)

        assert BOUND / 2 <= waiting(subscription) <= BOUND
        assert await take_ids(subscription, 100) == list(range(100))


@in_world
async def test_small_events_do_not_let_large_ones_in(world: World) -> None:
    async with aio.connect(URL) as other_session, aio.connect(URL) as session:
        orders = await other_session.channels.create("orders")
        subscription = await subscribed("latest", session)
        await orders.publish_many([aio.Event(b"") for _ in range(5_000)])
        assert len(await take_ids(subscription, 5_000)) == 5_000
        await orders.publish_many([aio.Event(LARGE) for _ in range(60)])
        await pass_time(5)

        assert waiting(subscription) <= BOUND
        assert await take_ids(subscription, 60) == list(range(5_000, 5_060))


@pytest.mark.parametrize("engine", ["default", "jms"])
@in_world
async def test_an_event_larger_than_the_bound_gets_through(world: World, engine: Any) -> None:
    async with aio.connect(URL) as other_session, aio.connect(URL) as session:
        orders = await other_session.channels.create("orders", engine=engine, type="reliable")
        subscription = await subscribed("latest", session)
        for size in (10, 3 * BOUND, 10, 2 * BOUND, 2 * BOUND, 10):
            await orders.publish(b"x" * size)
        got = []
        for _ in range(6):
            batch = await subscription.next_batch(60.0)
            if batch is None:
                break
            got += batch.event_ids.tolist()

        assert got == list(range(6))


@pytest.mark.slow
@in_world
async def test_what_waits_counts_after_a_reconnect_too(world: World) -> None:
    async with aio.connect(URL) as other_session, aio.connect(URL) as session:
        orders = await other_session.channels.create("orders")
        subscription = await subscribed("earliest", session)
        await orders.publish_many([aio.Event(LARGE) for _ in range(60)])
        await pass_time(5)
        for _ in range(3):
            before = session.connection.reconnects
            world.end_of(session).reset()
            await world.until(lambda: session.connection.reconnects > before)  # noqa: B023  awaited here
            await pass_time(5)
            assert waiting(subscription) <= BOUND

        assert await take_ids(subscription, 60) == list(range(60))


@pytest.mark.slow
@in_world
async def test_a_browse_is_bounded_as_well(world: World) -> None:
    async with aio.connect(URL) as other_session, aio.connect(URL) as session:
        orders = await other_session.channels.create("orders")
        billing = await orders.durables.create("billing")
        await orders.publish_many([aio.Event(LARGE) for _ in range(300)])
        durable = await (await session.channels.get("orders")).durables.get("billing")
        browse = await durable.browse().open()
        await pass_time(5)

        assert waiting(browse) <= 16 << 20
        assert len([event async for event in browse]) == 300
        assert (await billing.info()).outstanding == 300


@in_world
async def test_a_bound_of_nothing_is_refused(world: World) -> None:
    async with aio.connect(URL) as other_session:
        orders = await other_session.channels.create("orders")
        with pytest.raises(InvalidArgument, match="buffer_bytes"):
            orders.subscribe(buffer_bytes=0)


# --- seats at durables ------------------------------------------------------------------


def held(seat: aio.DurableSubscription) -> int:
    """Return the bytes in the client that the application has not taken."""
    return seat._seat.inbox.buffered.size


async def seated(session: aio.Session, **options: Any) -> aio.DurableSubscription:
    orders = await session.channels.get("orders")
    durable = await orders.durables.get("billing")
    return await durable.subscribe(buffer_bytes=BOUND, **options).open()


async def acked(seat: aio.DurableSubscription, count: int) -> list[int]:
    """Acknowledge ``count`` events; the waiting bytes stay below the bound all the time."""
    ids: list[int] = []
    while len(ids) < count:
        batch = await seat.next_batch(60.0)
        assert batch is not None, f"nothing came after {ids[-1:]}"
        ids += batch.event_ids.tolist()
        assert not batch.redeliveries, "what was held back was not delivered"
        await batch.ack()
        await pass_time(1)
        assert held(seat) <= BOUND
    return ids


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("shared", {}),
    ("serial", {"strict_order": True}),
    ("serial", {"order_by": "key"}),
    ("shared", {"selector": "n >= 0"}),
    ("serial", {}),
    ("priority", {}),
    ("exclusive", {}),
    ("shared_queued", {}),
]


@pytest.mark.parametrize(
    ("kind", "options"), KINDS, ids=[f"{kind} {' '.join(options)}" for kind, options in KINDS]
)
@in_world
async def test_a_client_of_a_durable_has_no_more_than_its_bound(
    world: World, kind: Any, options: dict[str, Any]
) -> None:
    async with aio.connect(URL) as other_session, aio.connect(URL) as session:
        orders = await other_session.channels.create("orders")
        billing = await orders.durables.create("billing", type=kind, **options)
        seat = await seated(session)
        for n in range(3):
            events = [
                aio.Event(LARGE, properties={"n": 10 * n + m, "key": "same"}) for m in range(10)
            ]
            await orders.publish_many(events)
        await pass_time(5)

        assert BOUND / 2 <= held(seat) <= BOUND
        assert (await billing.info()).outstanding == 30
        assert await acked(seat, 30) == list(range(30))
        assert (await billing.info()).outstanding == 0


@in_world
async def test_an_event_larger_than_the_bound_gets_through_a_durable(world: World) -> None:
    async with aio.connect(URL) as other_session, aio.connect(URL) as session:
        orders = await other_session.channels.create("orders")
        await orders.durables.create("billing", type="shared")
        seat = await seated(session)
        for size in (10, 3 * BOUND, 10, 2 * BOUND, 2 * BOUND, 10):
            await orders.publish(b"x" * size)
        ids: list[int] = []
        while len(ids) < 6 and (batch := await seat.next_batch(60.0)) is not None:
            ids += batch.event_ids.tolist()

        assert ids == list(range(6))


@in_world
async def test_what_one_client_has_no_room_for_goes_to_another(world: World) -> None:
    async with (
        aio.connect(URL) as other_session,
        aio.connect(URL) as session,
        aio.connect(URL) as second,
    ):
        orders = await other_session.channels.create("orders")
        await orders.durables.create("billing", type="shared")
        idle = await seated(session, window=1_000)
        other_seat = await seated(second, window=1_000)
        await orders.publish_many([aio.Event(LARGE) for _ in range(40)])
        await pass_time(5)
        assert held(idle) <= BOUND

        ids = await acked(other_seat, 40 - held(idle) // len(LARGE))
        assert sorted(ids + await acked(idle, 40 - len(ids))) == list(range(40))


@in_world
async def test_a_seat_counts_from_nothing_on_another_connection(world: World) -> None:
    async with aio.connect(URL) as other_session, aio.connect(URL) as session:
        orders = await other_session.channels.create("orders")
        await orders.durables.create("billing", type="shared")
        seat = await seated(session)
        await orders.publish_many([aio.Event(LARGE) for _ in range(60)])
        await pass_time(5)
        for _ in range(3):
            before = session.connection.reconnects
            world.end_of(session).reset()
            await world.until(lambda: session.connection.reconnects > before)  # noqa: B023  awaited here
            await pass_time(5)
            assert BOUND / 2 <= held(seat) <= BOUND

        ids: list[int] = []
        while len(ids) < 60 and (batch := await seat.next_batch(60.0)) is not None:
            ids += batch.event_ids.tolist()
            await batch.ack()
        assert sorted(ids) == list(range(60))


@pytest.mark.slow
@in_world
async def test_what_is_recalled_makes_room(world: World) -> None:
    """The realm takes back what it has sent behind an event that is rolled back."""
    async with aio.connect(URL) as other_session, aio.connect(URL) as session:
        orders = await other_session.channels.create("orders")
        await orders.durables.create("billing", type="serial", strict_order=True)
        seat = await seated(session)
        for _ in range(30):
            await orders.publish(LARGE)
        ids: list[int] = []
        rolled_back = set[int]()
        async for event in seat:
            assert event.event_id is not None
            if event.event_id % 7 == 3 and event.event_id not in rolled_back:
                rolled_back.add(event.event_id)
                await event.rollback()
                continue
            ids.append(event.event_id)
            await event.ack()
            assert held(seat) <= BOUND
            if len(ids) == 30:
                break

        assert ids == list(range(30))


@pytest.mark.slow
@in_world
async def test_who_fetches_gets_as_many_as_were_asked_for(world: World) -> None:
    async with aio.connect(URL) as other_session:
        orders = await other_session.channels.create("orders")
        billing = await orders.durables.create("billing", type="shared")
        await orders.publish_many([aio.Event(LARGE) for _ in range(300)])

        assert len(await billing.fetch(300, 60.0)) == 300  # more than any buffer has


@in_world
async def test_a_bound_of_nothing_is_refused_by_a_durable_too(world: World) -> None:
    async with aio.connect(URL) as other_session:
        orders = await other_session.channels.create("orders")
        billing = await orders.durables.create("billing", type="shared")
        with pytest.raises(InvalidArgument, match="buffer_bytes"):
            billing.subscribe(buffer_bytes=0)
