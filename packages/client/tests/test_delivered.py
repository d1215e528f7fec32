"""Deliveries that wait together are handed out, and settled, together."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock import aio
from penstock.client.sync.sync import Channel, Session
from penstock_core.ids.ids import IdSet, Span

EVENTS = 40


@pytest.mark.slow
@pytest.mark.spec("D9")
def test_what_waits_comes_as_one_batch_with_its_counts_and_publishers(
    session: Session, orders: Channel
) -> None:
    for n in range(EVENTS):
        orders.publish(b"", properties={"n": n})
    durable = orders.durables.create("d")
    with durable.subscribe(window=4, timeout=5.0) as subscription:
        first = subscription.next_batch()
        assert first is not None
        subscription.rollback(first.event_ids.tolist())  # they come again, counted
        seen: dict[int, int] = {}
        batches = 0
        while len(seen) < EVENTS:
            batch = subscription.next_batch()
            assert batch is not None
            batches += 1
            for event in batch:
                assert event.event_id is not None
                assert event.properties == {"n": event.event_id}
                assert event.headers["host"] in ("localhost", "127.0.0.1")
                seen[event.event_id] = event.redelivery_count
            for event_id in batch.event_ids.tolist():  # one by one, as applications do
                subscription.ack([event_id])

    assert [seen[i] for i in first.event_ids.tolist()] == [1] * len(first)
    assert sum(seen.values()) == len(first)
    assert durable.info().outstanding == 0
    assert batches < EVENTS  # credit arrived in small parts, and no events with it


@pytest.mark.spec("E9", "D16", "Q4")
def test_who_looks_without_taking_sees_how_often_events_were_delivered_before(
    session: Session,
) -> None:
    orders, work = session.channels.create("orders"), session.queues.create("work")
    billing = orders.durables.create("billing", type="shared")
    orders.publish_many([penstock.Event(b"")] * 3)
    work.push_many([penstock.Event(b"")] * 3)
    for _ in range(2):
        billing.fetch(1, timeout=1.0)[0].rollback()
    with work.reader(transactional=True) as reader:
        for _ in range(2):
            reader.rollback(reader.fetch(1, timeout=1.0)[0])

    assert [event.redelivery_count for event in billing.browse()] == [2, 0, 0]
    assert [event.redelivery_count for event in work.peek()] == [2, 0, 0]
    assert [event.redelivery_count for event in work.peek(selector="event_id < 2")] == [2, 0]
    assert [event.redelivered for event in orders.browse()] == [False] * 3


@pytest.mark.spec("D11")
def test_what_is_recalled_leaves_a_batch_in_which_an_earlier_event_has_come_again(
    realm: penstock.Realm,
) -> None:
    async def seen_of(url: str) -> list[int | None]:
        async with aio.connect(url) as session:
            orders = await session.channels.create("orders")
            events = [penstock.Event(properties={"sku": sku}) for sku in "abb"]
            await orders.publish_many(events[:1])
            durable = await orders.durables.create("d", type="serial", order_by="sku")
            seen: list[int | None] = []
            async with durable.subscribe(window=3, timeout=5.0) as subscription:
                assert await subscription.next_batch() is not None
                await orders.publish_many(events[1:])
                await durable.info()  # later answers follow the delivery
                await subscription.rollback([0])
                await durable.info()
                async for event in subscription:  # 1, 2 and 0 are one batch
                    seen.append(event.event_id)
                    await (event.rollback() if len(seen) == 1 else event.ack())
                    if len(seen) == 4:
                        break
            return seen

    seen = asyncio.run(seen_of(realm.listen()))

    assert seen[0] == 1
    assert sorted(map(str, seen[1:])) == ["0", "1", "2"]
    assert seen.index(1, 1) < seen.index(2)


@pytest.mark.spec("D9")
def test_a_batch_settles_exactly_its_events(session: Session, orders: Channel) -> None:
    """The ids come from the delivery, from its first and last row, from joined deliveries or from
    the id column: for whole batches, parts of them, and batches without recalled events."""
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(60)])
    orders.purge(start=40, end=44)  # a gap
    orders.publish_many([penstock.Event(properties={"other": "x"})] * 3)  # other columns
    durable = orders.durables.create("d")
    seen: list[int] = []
    is_known: set[bool] = set()
    with durable.subscribe(window=16, timeout=5.0) as subscription:
        while len(seen) < 58:
            batch = subscription.next_batch()
            assert batch is not None
            inner = batch._inner
            looked_up = IdSet.from_ids(batch.event_ids.tolist())
            assert inner._ids() == looked_up
            assert inner._part(1)._ids() == IdSet.from_ids(batch.event_ids.tolist()[1:])
            rest = inner._without(IdSet((Span(3, 5),)))
            looked_up.discard_all(IdSet((Span(3, 5),)))
            assert rest is not None
            assert rest._ids() == looked_up
            is_known.add(bool(inner._spans))
            seen += batch.event_ids.tolist()
            batch.ack()
    assert seen == [*range(40), *range(45, 63)]
    assert is_known == {True, False}
    assert durable.info().outstanding == 0
