"""Refused and lost acknowledgements are raised: by the acknowledgement itself if the client already
knows, otherwise by the next flush or close, or by the end of a block, a loop or a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

import penstock
from packages.client.tests.patience import eventually
from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock.client.sync.sync import Channel, Session
from penstock.client.sync.sync_durable_subscription import DurableSubscription
from penstock.client.sync.sync_pattern_subscription import PatternDurableSubscription
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    DurableUnbound,
    IllegalState,
    PenstockError,
)
from penstock_testing.relay import Relay

pytestmark = pytest.mark.spec("D15")

WAIT_S = 30.0
Seat = DurableSubscription | PatternDurableSubscription
AioSeat = aio.DurableSubscription | aio.PatternDurableSubscription


@pytest.fixture
def orders(session: Session) -> Channel:
    session.on_error(lambda error: None)
    orders = session.channels.create("orders")
    orders.publish_many([penstock.Event(b"%d" % n) for n in range(3)])
    orders.durables.create("d")
    return orders


@pytest.fixture(params=["channel", "pattern"])
def seat(orders: Channel, session: Session, request: pytest.FixtureRequest) -> Seat:
    if request.param == "pattern":
        return session.subscribe("ord*", durable="d", window=3, timeout=WAIT_S)
    return orders.durables.get("d").subscribe(window=3, timeout=WAIT_S)


def refused(events: Iterator[Any], orders: Channel) -> None:
    """Acknowledge an event that the realm has taken back."""
    event = next(events)
    orders.durables.get("d").seek("latest")
    event.ack()


REFUSED = "moved|seek|recalled"


def test_a_loop_that_is_left_keeps_a_refusal_for_the_next_flush(
    seat: Seat, orders: Channel
) -> None:
    for event in seat:
        orders.durables.get("d").seek("latest")
        event.ack()
        break

    with pytest.raises(IllegalState, match=REFUSED):
        seat.flush()
    seat.close()


def test_a_loop_that_is_left_keeps_a_refusal_for_the_next_close(
    seat: Seat, orders: Channel, session: Session
) -> None:
    for event in seat:
        orders.durables.get("d").seek("latest")
        event.ack()
        break

    with pytest.raises(IllegalState, match=REFUSED):
        seat.close()
    seat.close()
    session.close()  # it was raised


def test_the_end_of_a_block_raises_what_was_refused(seat: Seat, orders: Channel) -> None:
    with pytest.raises(IllegalState, match=REFUSED), seat:
        refused(iter(seat), orders)


def test_an_error_of_the_block_is_not_replaced(seat: Seat, orders: Channel) -> None:
    def work() -> None:
        with seat:
            refused(iter(seat), orders)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()

    with pytest.raises(IllegalState, match=REFUSED):
        seat.flush()


def test_a_loop_that_ends_by_itself_raises_what_was_refused(orders: Channel) -> None:
    loop = iter(orders.durables.get("d").subscribe(window=1, timeout=0.2))
    refused(loop, orders)

    with pytest.raises(IllegalState, match=REFUSED):
        next(loop)


def test_the_session_raises_what_nothing_else_has(orders: Channel, session: Session) -> None:
    for event in orders.durables.get("d").subscribe(window=3):
        orders.durables.get("d").seek("latest")
        event.ack()
        break

    with pytest.raises(IllegalState, match=REFUSED):
        session.close()
    session.close()


def test_the_close_of_a_durable_that_was_fetched_from_raises_what_was_refused(
    orders: Channel,
) -> None:
    durable = orders.durables.get("d")
    event = durable.fetch(1, WAIT_S)[0]
    orders.durables.get("d").seek("latest")
    event.ack()

    with pytest.raises(IllegalState, match=REFUSED):
        durable.close()
    durable.close()


def test_an_acknowledgement_after_the_durable_was_unbound_says_why(orders: Channel) -> None:
    durable = orders.durables.get("d")
    with durable.subscribe(window=3, timeout=WAIT_S) as subscription:
        events = iter(subscription)
        event = next(events)
        durable.unbind()
        with pytest.raises(DurableUnbound):
            subscription.next_batch(WAIT_S)

        with pytest.raises(IllegalState, match="because the subscription has ended: an admin"):
            event.ack()
        event.rollback()


# --- connections that are lost -----------------------------------------------------------


def interrupt(relay: Relay, session: Session) -> None:
    """Cut the connection, and wait until the session has another: what it had in hand has gone
    back."""
    heard: list[PenstockError | None] = []
    session.on_interruption(heard.append)
    relay.cut()
    eventually(lambda: None in heard)


@pytest.mark.parametrize("kind", ["loop", "fetch"])
def test_an_event_in_hand_when_the_connection_was_lost_is_not_acknowledged_silently(
    relay: Relay, direct_session: Session, kind: str
) -> None:
    orders = direct_session.channels.create("orders")
    orders.publish(b"0")
    orders.durables.create("d")
    with penstock.connect(relay.url) as session:
        durable = session.channels.get("orders").durables.get("d")
        events = iter(durable.subscribe()) if kind == "loop" else iter(durable.fetch(1, WAIT_S))
        event = next(events)
        interrupt(relay, session)

        with pytest.raises(IllegalState, match="durable d, because the connection was lost"):
            event.ack()
    assert orders.durables.get("d").info().outstanding == 1


@pytest.mark.parametrize("by_batch", [False, True])
def test_a_loop_that_acknowledges_by_itself_goes_on_over_a_lost_connection(
    relay: Relay, direct_session: Session, by_batch: bool
) -> None:
    orders = direct_session.channels.create("orders")
    orders.publish(b"0")
    orders.durables.create("d")
    heard: list[PenstockError] = []
    with penstock.connect(relay.url) as session:
        session.on_error(heard.append)
        durable = session.channels.get("orders").durables.get("d")
        with durable.subscribe(auto_ack=True, timeout=WAIT_S) as subscription:
            counts: list[int] = []
            for delivery in subscription.batches() if by_batch else subscription:
                event: Any = delivery[0] if by_batch else delivery  # type: ignore[index]  # a batch
                counts.append(event.redelivery_count)
                if len(counts) == 2:
                    break
                interrupt(relay, session)

    assert counts == [0, 1]
    assert [type(error) for error in heard] == [IllegalState]


async def lost_on_its_way(world: World, session: aio.Session, event: aio.DeliveredEvent) -> None:
    """Acknowledge, and lose the connection before the answer."""
    world.end_of(session).pause_reading()
    await event.ack()
    world.loop.call_later(1, world.end_of(session).abort)
    await world.until(lambda: session.connection.reconnects > 0)


Ending = Callable[[aio.Session, AioSeat], Awaitable[None]]


async def by_flush(session: aio.Session, seat: AioSeat) -> None:
    await seat.flush()


async def by_close(session: aio.Session, seat: AioSeat) -> None:
    await seat.close()


async def by_block(session: aio.Session, seat: AioSeat) -> None:
    await seat.__aexit__(None, None, None)


async def by_session(session: aio.Session, seat: AioSeat) -> None:
    await session.close()


@pytest.mark.parametrize("pattern", [False, True])
@pytest.mark.parametrize("end", [by_flush, by_close, by_block, by_session])
@in_world
async def test_an_acknowledgement_that_was_on_its_way_is_raised_once(
    world: World, end: Ending, pattern: bool
) -> None:
    session = await aio.connect(URL)
    orders = await session.channels.create("orders")
    durable = await orders.durables.create("d")
    await orders.publish(b"0")
    seat: AioSeat = durable.subscribe(window=3)
    if pattern:
        seat = session.subscribe("ord*", durable="d", window=3)
    await seat.open()
    batch = await seat.next_batch(WAIT_S)
    assert batch is not None
    await lost_on_its_way(world, session, batch[0])

    with pytest.raises(ConnectionLost, match="before Settle was answered"):
        await end(session, seat)

    if end is not by_session:
        await seat.close()
    await session.close()


@pytest.mark.parametrize("pattern", [False, True])
@in_world
async def test_an_asyncio_loop_that_is_left_keeps_a_refusal(world: World, pattern: bool) -> None:
    async with aio.connect(URL) as session:
        session.on_error(lambda error: None)
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d")
        await orders.publish(b"0")
        seat: AioSeat = durable.subscribe(window=3)
        if pattern:
            seat = session.subscribe("ord*", durable="d", window=3)
        loop: Any = aiter(seat)
        event = await anext(loop)
        await durable.seek("latest")
        await event.ack()
        await loop.aclose()  # as Python does for a loop that is left

        with pytest.raises(IllegalState, match=REFUSED):
            await seat.flush()


@pytest.mark.spec("Q1")
@pytest.mark.parametrize("by_pop", [False, True])
@in_world
async def test_a_plain_reader_that_closes_says_that_a_removal_was_on_its_way(
    world: World, by_pop: bool
) -> None:
    async with aio.connect(URL) as session:
        queue = await session.queues.create("work")
        await queue.push(b"0")
        reader: Any = queue if by_pop else queue.reader()
        if not by_pop:
            await reader.open()
        taking = queue.pop if by_pop else reader.next_batch
        assert await taking(WAIT_S) is not None
        world.end_of(session).abort()

        with pytest.raises(ConnectionLost):
            await reader.close()
        await reader.close()


@pytest.mark.spec("Q2")
@in_world
async def test_a_reader_neither_rejects_nor_extends_what_went_back_with_its_connection(
    world: World,
) -> None:
    async with aio.connect(URL) as session:
        heard: list[PenstockError | None] = []
        session.on_interruption(heard.append)
        await session.channels.create("dead")
        queue = await session.queues.create("work", dead_event_store="dead")
        await queue.push(b"0")
        async with queue.reader(transactional=True, ack_timeout="1h") as reader:
            for settle in (
                partial(reader.reject, reason="late"),
                partial(reader.extend, time="1m"),
            ):
                assert len(await reader.fetch(1, WAIT_S)) == 1
                heard.clear()
                world.end_of(session).abort()
                await world.until(lambda: bool(heard))

                with pytest.raises(ConnectionLost, match="the connection was lost since 1 of"):
                    await settle()
        assert (await queue.info()).events == 1


@in_world
async def test_a_handler_continues_after_a_lost_connection(world: World) -> None:
    heard: list[str] = []
    counts: list[int] = []
    async with aio.connect(URL) as session:
        session.on_error(lambda error: heard.append(str(error)))
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d")
        await orders.publish(b"0")

        async def handle(event: aio.DeliveredEvent) -> None:
            counts.append(event.redelivery_count)
            if len(counts) == 1:
                world.end_of(session).abort()
                await world.until(lambda: session.connection.reconnects > 0)

        async with durable.subscribe(handle, auto_ack=True):
            await world.until(lambda: len(counts) == 2)

        assert (await durable.info()).outstanding == 0
    assert counts == [0, 1]
    assert [error for error in heard if "event 0 has returned to durable d" in error]
