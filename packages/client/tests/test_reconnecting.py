"""Effects of a lost connection on each kind of call: carried out once, repeated, or reported as
unknown."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import ConnectionLost, IllegalState
from penstock_testing.relay import Relay

WAIT_S = 30.0


@pytest.fixture
def session(relay: Relay) -> Iterator[Session]:
    with penstock.connect(relay.url) as session:
        yield session


@pytest.fixture
def orders(session: Session) -> Channel:
    return session.channels.create("orders", storage={"events_per_spindle": 1_000})


@pytest.mark.spec("X3")
def test_publishes_without_an_answer_are_sent_again_and_stored_once_in_order(
    relay: Relay, orders: Channel, direct_session: Session
) -> None:
    stored = direct_session.channels.get("orders")
    with orders.producer(batch_events=1) as producer:
        relay.hold_answers()
        for n in range(50):
            producer.send(b"", properties={"n": n})
        eventually(lambda: stored.info().last_event_id >= 10)
        relay.cut()
        relay.release_answers()
        for n in range(50, 100):
            producer.send(b"", properties={"n": n})
        producer.flush()

        assert producer.acknowledged == 100
    assert stored.read()["n"].to_pylist() == list(range(100))


@pytest.mark.slow
@pytest.mark.spec("D11", "D13")
def test_strict_order_outlives_lost_connections(
    relay: Relay, orders: Channel, direct_session: Session
) -> None:
    random, acked = Random(12), list[int | None]()
    orders.publish_many([penstock.Event() for _ in range(120)])
    durable = orders.durables.create("d", type="serial", strict_order=True)
    with (
        # some acknowledgements were in flight, or were refused for events that had been returned
        suppress(ConnectionLost, IllegalState),
        durable.subscribe(window=10, timeout=WAIT_S) as subscription,
    ):
        for event in subscription:
            if event.event_id not in range(100, 120) and random.random() < 0.1:
                relay.cut()
            if random.random() < 0.25:
                event.rollback()
                continue
            with suppress(IllegalState):  # it comes again
                event.ack()
            acked.append(event.event_id)
            if event.event_id == 119:
                break

    first_time = list(dict.fromkeys(acked))  # an ack that was lost is given again
    assert first_time == list(range(120))
    assert direct_session.channels.get("orders").durables.get("d").info().outstanding == 0


@pytest.mark.spec("X3")
def test_what_is_published_without_a_connection_is_stored_when_there_is_one(
    relay: Relay, orders: Channel, direct_session: Session
) -> None:
    relay.close_door()
    relay.cut()
    with ThreadPoolExecutor(1) as pool:
        waiting = [pool.submit(orders.publish, b"%d" % n) for n in range(3)]
        relay.open_door()

        assert [future.result(WAIT_S) for future in waiting] == [0, 1, 2]
    stored = direct_session.channels.get("orders")
    assert [event.data for event in stored.browse()] == [b"0", b"1", b"2"]


@pytest.mark.slow
@pytest.mark.spec("X3")
def test_a_large_publish_whose_answer_is_lost_is_stored_once(
    relay: Relay, orders: Channel, direct_session: Session
) -> None:
    events = [penstock.Event(data=bytes(1 << 20), properties={"n": n}) for n in range(40)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(orders.publish_many, events)
        relay.cut()

        assert waiting.result(WAIT_S) == range(40)
    assert direct_session.channels.get("orders").info().events == 40


def test_a_channel_that_was_created_without_an_answer_is_found(
    relay: Relay, session: Session, direct_session: Session
) -> None:
    relay.hold_answers()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.channels.create, "new", ttl=5_000)
        eventually(lambda: direct_session.channels.list() == ["new"])
        relay.cut()
        relay.release_answers()

        assert waiting.result(WAIT_S).name == "new"
    assert session.channels.list() == ["new"]


def test_what_may_not_be_done_twice_is_reported_as_unknown(
    relay: Relay, orders: Channel, direct_session: Session
) -> None:
    orders.publish(b"a")
    seen = direct_session.channels.get("orders")
    relay.hold_answers()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(orders.purge)
        eventually(lambda: seen.info().events == 0)
        seen.publish(b"later")
        relay.cut()
        relay.release_answers()

        with pytest.raises(penstock.ConnectionLost, match=r"PurgeChannel .* is unknown"):
            waiting.result(WAIT_S)
    assert seen.info().events == 1


@pytest.mark.slow
@pytest.mark.spec("E6")
def test_a_subscription_continues_after_a_reconnect(
    relay: Relay, orders: Channel, direct_session: Session
) -> None:
    writer = direct_session.channels.get("orders")
    ids: list[int] = []
    with orders.subscribe(start="earliest", selector="n <> 7") as subscription:
        for part in range(5):
            writer.publish_many([penstock.Event(properties={"n": n}) for n in range(100)])
            relay.cut()
            while len(ids) < 99 * (part + 1):
                batch = subscription.next_batch(WAIT_S)
                assert batch is not None
                ids += batch.event_ids.tolist()

    assert ids == [event_id for event_id in range(500) if event_id % 100 != 7]


@pytest.mark.spec("D13")
def test_a_durable_subscription_takes_its_seat_again_and_ignores_old_acks(
    relay: Relay, orders: Channel, session: Session
) -> None:
    reports: list[penstock.PenstockError] = []
    session.on_error(reports.append)
    orders.publish_many([penstock.Event()] * 3)
    durable = orders.durables.create("d")
    with durable.subscribe(window=10) as subscription:
        before = subscription.next_batch(WAIT_S)
        assert before is not None
        relay.cut()
        again = subscription.next_batch(WAIT_S)
        assert again is not None

        assert [(e.event_id, e.redelivery_count) for e in again] == [(0, 1), (1, 1), (2, 1)]
        assert (before.is_stale, again.is_stale) == (True, False)
        for settle in (*(event.ack for event in before), before.ack):
            with pytest.raises(IllegalState, match="because the connection was lost"):
                settle()
        before.rollback()
        subscription.flush()
        assert durable.info().outstanding == 3

        again.ack()
    assert durable.info().outstanding == 0
    assert reports == []


@pytest.mark.spec("D13", "D15")
def test_what_is_acknowledged_by_id_while_it_waits_again_is_not_handed_out_again(
    relay: Relay, orders: Channel
) -> None:
    orders.publish_many([penstock.Event()] * 3)
    durable = orders.durables.create("d", type="exclusive")
    with durable.subscribe() as subscription:
        before = subscription.next_batch(WAIT_S)
        assert before is not None
        relay.cut()
        eventually(lambda: before.is_stale and durable.info().in_flight == 3)
        subscription.ack([2])
        orders.publish(b"next")

        batch = subscription.next_batch(WAIT_S)
        assert batch is not None
        assert batch.event_ids.tolist() == [3]


@pytest.mark.spec("D13", "D15")
@pytest.mark.parametrize("by_loop", [False, True])
def test_what_is_given_back_by_id_while_it_waits_again_is_handed_out_once(
    relay: Relay, orders: Channel, by_loop: bool
) -> None:
    orders.publish_many([penstock.Event()] * 3)
    durable = orders.durables.create("d")
    with durable.subscribe(window=10) as subscription:
        before = subscription.next_batch(WAIT_S)
        assert before is not None
        relay.cut()
        eventually(lambda: before.is_stale and durable.info().in_flight == 3)
        if not by_loop:
            subscription.rollback([0, 1, 2])
        got = []
        for event in subscription:
            got.append((event.event_id, event.redelivery_count))
            event.ack()
            if by_loop and event.event_id == 0:
                subscription.rollback([1, 2])
            if event.event_id == 2:
                orders.publish(b"next")
            if event.event_id == 3:
                break

    assert got == [(0, 1), (1, 1), (2, 1), (3, 0)]


@pytest.mark.slow
@pytest.mark.spec("D14")
def test_an_exclusive_seat_survives_its_connection(relay: Relay, orders: Channel) -> None:
    durable = orders.durables.create("d", type="exclusive")
    with durable.subscribe() as subscription:
        for event_id in range(5):
            relay.cut()
            orders.publish(b"")
            batch = subscription.next_batch(WAIT_S)
            assert batch is not None
            assert batch.event_ids.tolist() == [event_id]
            subscription.ack([event_id])


def test_a_fetch_continues_after_a_lost_connection(
    relay: Relay, orders: Channel, direct_session: Session
) -> None:
    durable = orders.durables.create("d")
    assert durable.fetch(1) == []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(durable.fetch, 1, WAIT_S)
        relay.cut()
        direct_session.channels.get("orders").publish(b"late")

        assert [event.data for event in waiting.result(WAIT_S)] == [b"late"]


@pytest.mark.slow
def test_a_fetch_whose_time_is_up_while_there_is_no_connection_ends_with_the_next(
    relay: Relay, orders: Channel
) -> None:
    durable = orders.durables.create("d")
    assert durable.fetch(1) == []
    relay.close_door()
    relay.cut()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(durable.fetch, 1, 0.1)
        relay.open_door()

        assert waiting.result(WAIT_S) == []


def test_closing_does_not_wait_for_a_connection(relay: Relay, session: Session) -> None:
    relay.close_door()
    relay.cut()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.info)
        session.close()

        with pytest.raises(penstock.SessionClosed):
            waiting.result(WAIT_S)


@pytest.mark.slow
def test_a_realm_that_does_not_come_back_is_reported_to_all_who_wait(relay: Relay) -> None:
    reports: list[penstock.PenstockError] = []
    with penstock.connect(relay.url, reconnect_timeout=0.2) as session:
        session.on_error(reports.append)
        orders = session.channels.create("orders")
        subscription = orders.subscribe().open()
        durable = orders.durables.create("d").subscribe().open()
        relay.close_door()
        relay.cut()
        with ThreadPoolExecutor(4) as pool:
            waiting: list[Future[object]] = [
                pool.submit(orders.publish, b""),
                pool.submit(session.info),
                pool.submit(subscription.next_batch),
                pool.submit(durable.next_batch),
            ]
            for call in waiting:
                with pytest.raises(penstock.CannotConnect, match="the connection was lost, and no"):
                    call.result(WAIT_S)
        with pytest.raises(penstock.CannotConnect):
            orders.publish(b"later")

    assert [type(report) for report in reports] == [penstock.CannotConnect]


@pytest.mark.slow
def test_a_different_realm_at_the_same_address_is_refused(relay: Relay) -> None:
    with (
        penstock.Realm() as other_realm,
        penstock.connect(relay.url, reconnect_timeout=0.2) as session,
    ):
        relay.target = other_realm.listen()
        relay.cut()

        with pytest.raises(
            penstock.CannotConnect, match="a different realm answers at this address"
        ):
            session.info()


def test_a_lost_settlement_is_reported_and_makes_flush_say_so(
    relay: Relay, orders: Channel, session: Session, direct_session: Session
) -> None:
    reports: list[penstock.PenstockError] = []
    session.on_error(reports.append)
    orders.publish(b"")
    durable = orders.durables.create("d")
    seen_there = direct_session.channels.get("orders").durables.get("d")
    with durable.subscribe(window=1) as subscription:
        batch = subscription.next_batch(WAIT_S)
        assert batch is not None
        relay.hold_answers()
        batch[0].ack()
        eventually(lambda: seen_there.info().outstanding == 0)
        relay.cut()
        eventually(lambda: bool(reports))
        relay.release_answers()

        with pytest.raises(penstock.ConnectionLost, match=r"Settle .* is unknown"):
            subscription.flush()
        subscription.flush()
