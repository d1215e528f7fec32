"""Lanes over a session: workers run side by side, and the events of each value of a property keep
the order of ids."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import penstock
from packages.client.tests.patience import eventually
from packages.client.tests.received_ids import ids
from penstock import aio
from penstock.client.sync.sync import Channel, Session
from penstock.client.sync.sync_durables import Durable
from penstock_core.vocabulary.errors import ConnectionLost, IllegalState
from penstock_testing.relay import Relay
from tests.loops import on_a_loop

pytestmark = pytest.mark.slow

EVENTS = 240
SKUS = 7


def sku(n: int) -> int | None:
    """Every seventh event has none."""
    return n % SKUS or None


IN_ORDER = {sku(n): [i for i in range(EVENTS) if sku(i) == sku(n)] for n in range(SKUS)}
"""The event ids of each lane."""


def stock(channel: Channel) -> None:
    """An event for each id, some in batches and some alone."""
    events = [penstock.Event(properties={"sku": sku(n)} if sku(n) else {}) for n in range(EVENTS)]
    channel.publish_many(events[: EVENTS - 20])
    for event in events[EVENTS - 20 :]:
        channel.publish_many([event])


@pytest.fixture
def durable(orders: Channel) -> Durable:
    stock(orders)
    return orders.durables.create("d", type="serial", order_by="sku")


def by_lane(acked: list[int | None]) -> dict[int | None, list[int | None]]:
    """Return the acknowledged ids by lane, in order, without repetitions: a lost acknowledgement is
    repeated."""
    events_by_lane: dict[int | None, list[int | None]] = {}
    for event_id in dict.fromkeys(acked):
        assert event_id is not None
        events_by_lane.setdefault(sku(event_id), []).append(event_id)
    return events_by_lane


@pytest.mark.spec("D11", "D12")
def test_workers_beside_each_other_keep_each_lane_in_order(durable: Durable) -> None:
    acked: list[int | None] = []
    served: dict[int, set[int | None]] = {}
    refused: list[penstock.PenstockError] = []

    def work(seed: int) -> None:
        random = Random(seed)
        try:
            with durable.subscribe(window=3, timeout=1.0) as subscription:
                for event in subscription:
                    served.setdefault(seed, set()).add(event.event_id)
                    if random.random() < 0.2:
                        event.rollback()
                        continue
                    acked.append(event.event_id)  # before another can get the next of its lane
                    event.ack()
        except penstock.PenstockError as error:
            refused.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert refused == []
    assert by_lane(acked) == IN_ORDER
    assert len(acked) == EVENTS
    assert len(served) == 3
    assert durable.info().outstanding == 0


@pytest.mark.spec("D11")
def test_a_blocked_lane_does_not_stop_other_lanes(orders: Channel) -> None:
    stock(orders)
    durable = orders.durables.create("d", type="serial", order_by="sku")
    with durable.subscribe(window=1) as stuck:
        held = stuck.next_batch(30)
        assert held is not None
        assert ids(held) == [0]
        others: list[int | None] = []
        with durable.subscribe(window=10, timeout=30) as subscription:
            for event in subscription:
                others.append(event.event_id)
                event.ack()
                if len(others) == EVENTS - len(IN_ORDER[None]):
                    break
        info = durable.info()

    assert by_lane(others) == {
        lane: event_ids for lane, event_ids in IN_ORDER.items() if lane is not None
    }
    assert (info.outstanding, info.in_flight) == (len(IN_ORDER[None]), 1)


@pytest.mark.spec("D11", "D15")
def test_what_was_handed_out_and_recalled_cannot_be_settled(durable: Durable) -> None:
    with durable.subscribe(window=15) as subscription:
        batch = subscription.next_batch(30)
        assert batch is not None
        assert ids(batch) == list(range(15))
        subscription.rollback([1])

        with pytest.raises(IllegalState, match="event 8 of durable d was recalled"):
            subscription.ack([8])
        subscription.ack([0, 2, 9])
        again = subscription.next_batch(30)
        assert again is not None
        first = [(e.event_id, e.redelivery_count) for e in again][:2]

    assert first == [(1, 1), (8, 0)]


@pytest.mark.spec("D11", "D5")
def test_what_is_fetched_keeps_to_lanes(durable: Durable) -> None:
    random, acked = Random(10), list[int | None]()
    while len(acked) < EVENTS:
        given_back = set()
        for event in durable.fetch(20, timeout=0.1):
            lane = event.properties.get("sku")
            if lane in given_back:  # recalled: it comes again, behind the one given back
                continue
            if random.random() < 0.1:
                event.rollback()
                given_back.add(lane)
                continue
            event.ack()
            acked.append(event.event_id)
        durable.flush()

    assert by_lane(acked) == IN_ORDER


@pytest.mark.spec("D11", "D13")
def test_lanes_outlive_lost_connections(
    relay: Relay, realm: penstock.Realm, direct_session: Session
) -> None:
    random, acked = Random(13), list[int | None]()
    with penstock.connect(relay.url) as session:
        orders = session.channels.create("orders")
        stock(orders)
        durable = orders.durables.create("d", type="serial", order_by="sku")
        with (
            # some acknowledgements were in flight, or arrived after their events had been returned
            suppress(ConnectionLost, IllegalState),
            durable.subscribe(window=10, timeout=30) as subscription,
        ):
            for event in subscription:
                if len(acked) < EVENTS - 20 and random.random() < 0.04:
                    relay.cut()
                is_rolled_back = random.random() < 0.1
                with suppress(
                    IllegalState
                ):  # the event was returned with its connection, and is delivered again
                    if is_rolled_back:
                        event.rollback()
                    else:
                        event.ack()
                if is_rolled_back:
                    continue
                acked.append(event.event_id)
                if len(set(acked)) == EVENTS:
                    break
    mine = direct_session.channels.get("orders").durables.get("d")

    assert by_lane(acked) == IN_ORDER
    eventually(lambda: mine.info().outstanding == 0)


@pytest.mark.spec("D11")
@on_a_loop
async def test_the_asyncio_client_takes_lanes_over_tcp(realm: penstock.Realm) -> None:
    url = realm.listen()
    acked: list[int | None] = []

    async def work() -> None:
        async with aio.connect(url) as session:
            durable = await (await session.channels.get("orders")).durables.get("d")
            async with durable.subscribe(window=4, timeout=1.0) as subscription:
                async for event in subscription:
                    acked.append(event.event_id)
                    await event.ack()

    async with aio.connect(url) as session:
        orders = await session.channels.create("orders")
        events = [penstock.Event(properties={"sku": str(n % 5)}) for n in range(EVENTS)]
        await orders.publish_many(events)
        durable = await orders.durables.create("d", type="serial", order_by="sku")
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(work())
        order_by = (await durable.info()).order_by

    assert order_by == "sku"
    assert sorted(acked, key=lambda i: (i or 0) % 5) == sorted(
        range(EVENTS), key=lambda i: (i % 5, i)
    )


@pytest.mark.spec("D11", "K1")
def test_a_newer_event_of_its_publish_key_takes_one_out_of_its_lane(session: Session) -> None:
    prices = session.channels.create("prices", keys={"sku": 1})
    durable = prices.durables.create("d", type="serial", order_by="sku")
    with durable.subscribe(window=1) as first, durable.subscribe(window=1) as second:
        prices.publish(properties={"sku": "a", "price": 1})
        old = first.next_batch(30)
        assert old is not None
        prices.publish(properties={"sku": "a", "price": 2})
        prices.publish(properties={"sku": "b", "price": 3})
        new = second.next_batch(30)
        assert new is not None
        assert ids(new) == [1], "the lane is free: what 1 replaced is gone"
        old.ack()
        last = first.next_batch(30)
        assert last is not None
        assert ids(last) == [2]
        new.ack()
        last.ack()
        second.flush()
        first.flush()

    assert durable.info().outstanding == 0


@pytest.mark.spec("D11", "D4", "C7")
def test_lanes_are_there_after_a_restart_and_in_an_export(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "realm") as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        stock(orders)
        orders.durables.create("d", type="serial", order_by="sku")
        session.channels.export("orders", tmp_path / "orders.penstock")
    with penstock.Realm(tmp_path / "realm") as realm, realm.connect() as session:
        session.channels.import_from(tmp_path / "orders.penstock", "copy")
        delivered = []
        for name in ("orders", "copy"):
            durable = session.channels.get(name).durables.get("d")
            with durable.subscribe(window=2) as one, durable.subscribe(window=2) as second:
                batches = [one.next_batch(30), second.next_batch(30)]
                delivered.append([ids(batch) for batch in batches if batch is not None])
            assert durable.info().order_by == "sku"

    assert delivered == [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]
