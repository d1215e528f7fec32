"""Publishing from generators and other iterables: one step, a part of it in memory at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import repeat

import pyarrow as pa
import pytest

import penstock
from penstock import aio
from penstock.client.connection.connection import RealmConnection
from penstock.client.publishing.publishing import Publisher
from penstock.client.publishing.streamed import (
    CHUNK_BYTES_MAX,
    CHUNK_EVENTS_MAX,
    chunks,
    publish_streamed,
)
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.identities import ChannelId
from tests.loops import on_a_loop

pytestmark = pytest.mark.spec("X1")


TENTH = b"x" * (CHUNK_BYTES_MAX // 10)
"""With its other bytes, an event with this property is a tenth of a chunk."""


def numbered(count: int) -> Iterator[penstock.Event]:
    """Generate events of which ten are a chunk."""
    for n in range(count):
        yield penstock.Event(b"%d" % n, properties={"n": n, "more": TENTH})


def datas(channel: Channel) -> list[bytes]:
    return [event.data for event in channel.browse()]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 35, 40])
def test_a_generator_is_published_in_one_step(orders: Channel, count: int) -> None:
    orders.publish(b"before")

    assert orders.publish_many(numbered(count)) == range(1, count + 1)
    assert datas(orders) == [b"before", *[b"%d" % n for n in range(count)]]


class LoggedPublisher(Publisher):
    """Notes when it stages a chunk."""

    def __init__(self, connection: RealmConnection, channel: ChannelId) -> None:
        super().__init__(connection, channel)
        self.log: list[str] = []

    async def stage(self, bodies: Sequence[pa.RecordBatch]) -> list[str]:
        self.log.append("sent")
        return await super().stage(bodies)


@on_a_loop
async def test_no_more_than_a_chunk_is_taken_before_it_is_sent(realm: penstock.Realm) -> None:
    async with aio.connect(realm.listen()) as session:
        orders = await session.channels.create("orders")
        publisher = LoggedPublisher(session.connection, orders.number)
        log = publisher.log

        def generate_events() -> Iterator[penstock.Event]:
            for event in numbered(35):
                log.append("made")
                yield event

        assert await publish_streamed(publisher, generate_events()) == range(35)
        assert (await orders.info()).events == 35

    waiting = peak = 0
    for word in log:
        waiting = waiting + 1 if word == "made" else waiting - 10
        peak = max(peak, waiting)
    assert peak == 20  # the chunk that is sent next, and the one that is being filled


def test_large_events_make_small_chunks(orders: Channel) -> None:
    part = CHUNK_BYTES_MAX * 6 // 10
    large = [penstock.Event(b"x" * part, properties={"more": "y" * part}) for _ in range(5)]

    assert [len(chunk) for chunk in chunks(iter(large))] == [1] * 5
    assert orders.publish_many(iter(large)) == range(5)


def test_small_events_make_chunks_of_a_bounded_number() -> None:
    events = repeat(penstock.Event(), CHUNK_EVENTS_MAX + 1)

    assert [len(chunk) for chunk in chunks(events)] == [CHUNK_EVENTS_MAX, 1]


def test_a_generator_may_use_the_session_it_is_published_with(session: Session) -> None:
    source, copy = session.channels.create("source"), session.channels.create("copy")
    source.publish_many(list(numbered(25)))

    copy.publish_many(penstock.Event(event.data) for event in source.browse())

    assert datas(copy) == datas(source)


def test_one_that_fails_publishes_nothing(orders: Channel) -> None:
    def fails() -> Iterator[penstock.Event]:
        yield from numbered(25)
        raise ZeroDivisionError

    def invalid() -> Iterator[penstock.Event]:
        yield from numbered(25)
        yield penstock.Event(properties={"n": object()})

    with pytest.raises(ZeroDivisionError):
        orders.publish_many(fails())
    with pytest.raises(penstock.InvalidEvent):
        orders.publish_many(invalid())
    with pytest.raises(penstock.InvalidEvent):
        orders.publish_many(iter(()))
    assert orders.publish(b"first") == 0


def test_queues_and_transactions_take_them_too(session: Session) -> None:
    work, orders = session.queues.create("work"), session.channels.create("orders")

    assert work.push_many(numbered(25)) == range(25)
    assert work.push_many({event.data: event for event in numbered(3)}.values()) == range(25, 28)
    with orders.transaction() as single:
        single.publish_many(numbered(25))
    with session.transaction() as transaction:
        transaction.publish_many(orders, numbered(12))
        transaction.publish_many(work, numbered(12))
    assert (orders.info().events, work.info().events) == (37, 40)


@on_a_loop
async def test_the_asyncio_client_takes_asynchronous_ones_too(realm: penstock.Realm) -> None:
    async def come() -> AsyncIterator[penstock.Event]:
        for event in numbered(35):
            await asyncio.sleep(0)
            yield event

    async def fails() -> AsyncIterator[penstock.Event]:
        async for event in come():
            yield event
        raise ZeroDivisionError

    url = realm.listen()
    async with aio.connect(url) as session:
        orders = await session.channels.create("orders")
        assert await orders.publish_many(numbered(35)) == range(35)
        assert await orders.publish_many(come()) == range(35, 70)
        with pytest.raises(ZeroDivisionError):
            await orders.publish_many(fails())
        async with orders.transaction() as tx:
            await tx.publish_many(come())
        work = await session.queues.create("work")
        assert await work.push_many(come()) == range(35)
        assert [event.data async for event in orders.browse()][35:70] == [
            b"%d" % n for n in range(35)
        ]
        assert (await orders.info()).events == 105
