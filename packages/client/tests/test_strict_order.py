"""Strict order over a session: an application that settles what it gets, as it gets it, settles
in id order, whatever it rolls back."""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Any

import pytest

import penstock
from packages.client.tests.received_ids import ids
from penstock import aio
from penstock.client.sync.sync import Channel
from penstock.client.sync.sync_delivered import DeliveredEvent
from penstock.client.sync.sync_durables import Durable
from penstock_core.vocabulary.errors import IllegalState
from penstock_testing.relay import Relay
from tests.loops import on_a_loop

EVENTS = 120
ALL = list(range(EVENTS))
LAST = EVENTS - 1


@pytest.fixture
def durable(orders: Channel) -> Durable:
    orders.publish_many([penstock.Event(properties={"n": n}) for n in ALL])
    return orders.durables.create("d", type="serial", strict_order=True)


def settle(event: DeliveredEvent, random: Random, acked: list[int]) -> bool:
    """Acknowledge, or one time in four give back."""
    assert event.event_id is not None
    if random.random() < 0.25:
        event.rollback()
        return False
    event.ack()
    acked.append(event.event_id)
    return True


@pytest.mark.slow
@pytest.mark.spec("D11")
@pytest.mark.parametrize(("window", "seed"), [(1, 1), (3, 2), (10, 3), (10, 4), (1_000, 5)])
def test_every_event_is_acknowledged_in_id_order(durable: Durable, window: int, seed: int) -> None:
    random, acked = Random(seed), list[int]()
    with durable.subscribe(window=window, timeout=30) as subscription:
        for event in subscription:
            if settle(event, random, acked) and event.event_id == LAST:
                break
        subscription.flush()  # nothing was refused

    assert acked == ALL
    assert durable.info().outstanding == 0


@pytest.mark.spec("D11", "D13")
def test_the_order_stays_when_the_client_leaves_and_comes_again(durable: Durable) -> None:
    random, acked = Random(6), list[int]()
    while LAST not in acked:
        turn = random.randint(1, 12)
        with durable.subscribe(window=10, timeout=30) as subscription:
            for event in subscription:
                settle(event, random, acked)
                turn -= 1
                if not turn or LAST in acked:
                    break

    assert acked == ALL


@pytest.mark.slow
@pytest.mark.spec("D11", "D12")
def test_two_clients_keep_one_order(durable: Durable) -> None:
    acked: list[int] = []
    served: set[int] = set()
    refused: list[penstock.PenstockError] = []

    def work(seed: int) -> None:
        random = Random(seed)
        try:
            with durable.subscribe(window=4, timeout=0.5) as subscription:
                for event in subscription:
                    served.add(seed)
                    settle(event, random, acked)
        except penstock.PenstockError as error:
            refused.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (7, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert (acked, refused) == (ALL, [])
    assert served == {7, 8}


@pytest.mark.slow
@pytest.mark.spec("D11", "D5")
def test_a_handler_that_fails_now_and_then_sees_every_event_in_order(durable: Durable) -> None:
    random, handled = Random(9), list[int | None]()
    done = threading.Event()

    def handle(event: DeliveredEvent) -> None:
        if random.random() < 0.25:
            raise ValueError("not today")
        handled.append(event.event_id)
        if event.event_id == LAST:
            done.set()

    with durable.subscribe(handle, auto_ack=True):
        assert done.wait(60)

    assert handled == ALL


@pytest.mark.slow
@pytest.mark.spec("D11", "D5")
def test_what_is_fetched_keeps_the_order(durable: Durable) -> None:
    random, acked = Random(10), list[int]()
    while LAST not in acked:
        for event in durable.fetch(7, timeout=0.1):
            if not settle(event, random, acked):
                break  # the others are recalled
    durable.flush()

    assert acked == ALL


@pytest.mark.spec("D11")
def test_what_was_handed_out_and_recalled_cannot_be_settled(durable: Durable) -> None:
    with durable.subscribe(window=5) as subscription:
        batch = subscription.next_batch(30)
        assert batch is not None
        assert ids(batch) == [0, 1, 2, 3, 4]
        subscription.rollback([1])

        with pytest.raises(IllegalState, match="event 2 of durable d was recalled"):
            subscription.ack([2, 3])
        batch[4].ack()
        with pytest.raises(IllegalState, match="event 4 of durable d was recalled"):
            subscription.flush()
        subscription.rollback([2])  # it is back already
        batch[3].rollback()
        batch[0].ack()
        subscription.flush()

        again = subscription.next_batch(30)
        assert again is not None
        assert [(e.event_id, e.redelivery_count) for e in again][:3] == [(1, 1), (2, 0), (3, 0)]
        subscription.ack([1, 2])

    assert durable.info().outstanding == EVENTS - 3


@pytest.mark.spec("D11")
def test_what_waits_to_be_handed_out_is_dropped(orders: Channel) -> None:
    durable = orders.durables.create("d", type="serial", strict_order=True)
    with durable.subscribe(window=10) as subscription:
        orders.publish(b"first")
        first = subscription.next_batch(30)
        assert first is not None
        for _ in range(5):
            orders.publish(b"later")
        while durable.info().in_flight < 6:
            subscription.flush()
        first.rollback()

        deliveries: list[tuple[int | None, int]] = []
        while len(deliveries) < 6:
            batch = subscription.next_batch(30)
            assert batch is not None
            deliveries += [(event.event_id, event.redelivery_count) for event in batch]

    assert deliveries == [(0, 1), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0)]


@pytest.mark.slow
@pytest.mark.spec("D11")
@on_a_loop
async def test_the_asyncio_client_keeps_the_order_too(realm: penstock.Realm) -> None:
    url = realm.listen()

    random, acked = Random(11), list[int | None]()
    async with aio.connect(url) as session:
        orders = await session.channels.create("orders")
        await orders.publish_many([penstock.Event(properties={"n": n}) for n in ALL])
        durable = await orders.durables.create("d", type="serial", strict_order=True)
        async with durable.subscribe(window=10, timeout=30) as subscription:
            async for event in subscription:
                if random.random() < 0.25:
                    await event.rollback()
                    continue
                await event.ack()
                acked.append(event.event_id)
                if event.event_id == LAST:
                    break
            await subscription.flush()
    assert acked == ALL


def test_a_durable_says_that_it_orders_strictly(orders: Channel) -> None:
    orders.durables.create("d", type="serial", strict_order=True)
    orders.durables.create("e", type="serial")

    assert [info.strict_order for info in orders.durables.list()] == [True, False]


@pytest.mark.spec("D11", "D13")
@on_a_loop
async def test_what_is_recalled_before_the_seat_is_known_again_is_not_handed_out(
    realm: penstock.Realm, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The realm may deliver, and recall, before the client hears that it has its seat again."""
    async with aio.connect(relay.url) as session:
        orders = await session.channels.create("orders")
        durable = await orders.durables.create("d", type="serial", strict_order=True)
        closed = asyncio.get_running_loop().create_future()
        async with durable.subscribe(window=10) as seat:
            request = seat._seat.request

            async def heard_late(*arguments: Any) -> Any:
                answer = await request(*arguments)
                batch = await seat.next_batch(30)
                assert batch is not None
                await batch[0].rollback()
                await seat._seat.settlements.rolled_back()
                closed.set_result(batch)
                return answer

            monkeypatch.setattr(seat._seat, "request", heard_late)
            relay.cut()
            with realm.connect() as other_session:
                other_session.channels.get("orders").publish_many([penstock.Event()] * 3)
            batch = await closed
            await session.channels.get("orders")  # answered once the seat is known

            assert await batch._current_from(1) is None
            again = await seat.next_batch(30)
    assert again is not None
    assert again.event_ids.tolist() == [0, 1, 2]
