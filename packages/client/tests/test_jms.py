"""The JMS engine as a client sees it: what a lost connection costs, and what it does not."""

from __future__ import annotations

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock.client.sync.sync import Channel, Session
from penstock_testing.relay import Relay

WAIT_S = 30.0


@pytest.fixture
def orders(direct_session: Session) -> Channel:
    return direct_session.channels.create("orders", type="persistent", engine="jms")


@pytest.mark.spec("J2", "J3")
def test_events_reach_connected_subscribers_and_are_not_kept(orders: Channel) -> None:
    assert orders.publish(b"nobody") == 0
    with orders.subscribe(start="earliest") as subscription:
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(1_000)])
        got: list[bytes] = []
        while len(got) < 1_000:
            batch = subscription.next_batch(WAIT_S)
            assert batch is not None
            got += [event.data for event in batch]

        assert got == [b"%d" % n for n in range(1_000)]
        eventually(lambda: orders.info().events == 0)
    counters = orders.info().counters
    assert (counters.published, counters.dropped) == (1_001, 1_001)


@pytest.mark.spec("T6", "J2")
@pytest.mark.parametrize("capacity", [1, 10])
def test_what_a_connected_subscriber_receives_is_not_dead(
    direct_session: Session, capacity: int
) -> None:
    dead = direct_session.channels.create("dead", type="persistent")
    orders = direct_session.channels.create(
        "orders", type="persistent", engine="jms", capacity=capacity, dead_event_store="dead"
    )
    with orders.subscribe() as subscription:
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(2_300)])
        count = 0
        while count < 2_300:
            batch = subscription.next_batch(WAIT_S)
            assert batch is not None
            count += len(batch)

        eventually(lambda: orders.info().events == 0)
    assert dead.info().events == 0


@pytest.mark.slow
@pytest.mark.spec("J5")
def test_what_was_published_while_the_connection_was_lost_comes_once(
    relay: Relay, orders: Channel
) -> None:
    with (
        penstock.connect(relay.url) as session,
        session.channels.get("orders").subscribe(selector="tag = 'a'") as subscription,
    ):
        orders.publish(b"0", tag="a")
        first = subscription.next_batch(WAIT_S)
        relay.close_door()
        relay.cut()
        for n in range(1, 20):
            orders.publish(b"%d" % n, tag="a" if n % 2 else "b")
        assert orders.info().events > 0
        relay.open_door()
        got = [event.data for event in first or ()]
        while len(got) < 11:
            batch = subscription.next_batch(WAIT_S)
            assert batch is not None
            got += [event.data for event in batch]

        assert got == [b"0", *[b"%d" % n for n in range(1, 20, 2)]]
        eventually(lambda: orders.info().events == 0)
        orders.publish(b"last", tag="a")
        last = subscription.next_batch(WAIT_S)
        assert [event.data for event in last or ()] == [b"last"]


@pytest.mark.spec("J5")
def test_what_was_on_its_way_as_the_connection_broke_is_sent_again(
    relay: Relay, orders: Channel
) -> None:
    with (
        penstock.connect(relay.url) as session,
        session.channels.get("orders").subscribe() as subscription,
    ):
        relay.hold_answers()
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(100)])
        assert orders.info().events == 100
        relay.cut()
        relay.release_answers()
        got: list[bytes] = []
        while len(got) < 100:
            batch = subscription.next_batch(WAIT_S)
            assert batch is not None
            got += [event.data for event in batch]

        assert got == [b"%d" % n for n in range(100)]
        eventually(lambda: orders.info().events == 0)


@pytest.mark.spec("J5")
def test_a_subscription_or_session_that_is_closed_leaves_nothing_behind(
    relay: Relay, orders: Channel
) -> None:
    with penstock.connect(relay.url) as session:
        subscription = session.channels.get("orders").subscribe().open()
        subscription.close()
        orders.publish(b"nobody")
        assert orders.info().events == 0
        session.channels.get("orders").subscribe().open()
    eventually(lambda: orders.publish(b"nobody") >= 0 and orders.info().events == 0)


@pytest.mark.spec("J7")
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_what_a_durable_is_owed_waits_for_its_next_client(
    relay: Relay, orders: Channel, kind: penstock.DurableType
) -> None:
    orders.durables.create("billing", type=kind)
    with penstock.connect(relay.url) as session:
        durable = session.channels.get("orders").durables.get("billing")
        seat = durable.subscribe(auto_ack=True).open()
        orders.publish(b"0")
        batch = seat.next_batch(WAIT_S)
        assert batch is not None
        batch.ack()
        eventually(lambda: orders.info().events == 0)
        assert orders.info().storage.memory_bytes == 0
        relay.close_door()
        relay.hold_answers()
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(1, 10)])
        assert orders.info().storage.memory_bytes > 0
        relay.cut()
        eventually(lambda: not orders.durables.get("billing").info().clients)

        with orders.durables.get("billing").subscribe(auto_ack=True) as other_subscription:
            got: list[bytes] = []
            while len(got) < 9:
                batch = other_subscription.next_batch(WAIT_S)
                assert batch is not None
                got += [event.data for event in batch]
                batch.ack()
            assert got == [b"%d" % n for n in range(1, 10)]
        eventually(lambda: orders.info().events == 0)
        relay.release_answers()
