"""Transactions and readers of queues over connections that end: done once, and known."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock.client.sync.sync import Channel, Queue, Session
from penstock_core.vocabulary.errors import ConnectionLost
from penstock_testing.relay import Relay

pytestmark = pytest.mark.slow

WAIT_S = 30.0


@pytest.fixture
def session(relay: Relay) -> Iterator[Session]:
    with penstock.connect(relay.url) as session:
        yield session


@pytest.fixture
def work(session: Session) -> Queue:
    return session.queues.create("work")


# --- transactions -------------------------------------------------------------------------


@pytest.mark.spec("X2")
def test_a_commit_whose_answer_is_lost_is_done_once_and_its_ids_are_known(
    relay: Relay, orders: Channel, direct_session: Session
) -> None:
    stored = direct_session.channels.get("orders")
    stored.publish(b"earlier")
    with orders.transaction() as tx, ThreadPoolExecutor(1) as pool:
        tx.publish_many([penstock.Event()] * 3)
        relay.hold_answers()
        waiting = pool.submit(tx.commit)
        eventually(lambda: stored.info().events == 4)
        relay.cut()
        relay.release_answers()

        assert waiting.result(WAIT_S) == range(1, 4)
    assert tx.is_committed()
    assert stored.info().events == 4


@pytest.mark.spec("X2", "X4")
def test_so_is_one_over_several_stores(
    relay: Relay, session: Session, orders: Channel, work: Queue, direct_session: Session
) -> None:
    with session.transaction() as tx, ThreadPoolExecutor(1) as pool:
        tx.publish(orders, b"")
        tx.publish_many(work, [penstock.Event()] * 2)
        relay.hold_answers()
        waiting = pool.submit(tx.commit)
        eventually(lambda: direct_session.queues.get("work").info().events == 2)
        relay.cut()
        relay.release_answers()

        assert waiting.result(WAIT_S) == {"orders": range(1), "work": range(2)}
    assert direct_session.channels.get("orders").info().events == 1


@pytest.mark.spec("X1")
@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_commit_goes_through_a_connection_that_ends_meanwhile(
    relay: Relay, orders: Channel, direct_session: Session, size: int
) -> None:
    with ThreadPoolExecutor(1) as pool, orders.transaction() as tx:
        tx.publish_many([penstock.Event(data=bytes(size))] * 40)
        waiting = pool.submit(tx.commit)
        relay.cut()

        assert waiting.result(WAIT_S) == range(40)
    assert direct_session.channels.get("orders").info().events == 40


@pytest.mark.spec("X2")
def test_an_abort_whose_answer_is_lost_is_an_abort(
    relay: Relay, orders: Channel, direct_session: Session
) -> None:
    with orders.transaction() as tx, ThreadPoolExecutor(1) as pool:
        tx.publish(b"")
        relay.hold_answers()
        waiting = pool.submit(tx.abort)
        relay.cut()
        relay.release_answers()
        waiting.result(WAIT_S)

    assert not direct_session.is_committed(tx.id)
    assert direct_session.channels.get("orders").info().last_event_id == -1


@pytest.mark.spec("X1", "X2")
@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_transaction_outlives_a_restart_of_the_realm(tmp_path: Path, size: int) -> None:
    realm = penstock.Realm(tmp_path)
    with Relay(realm.listen()) as relay, penstock.connect(relay.url) as session:
        orders = session.channels.create("orders", type="persistent")
        with orders.transaction() as committed, orders.transaction() as tx:
            tx.publish_many([penstock.Event(data=bytes(size))] * 40)
            committed.publish(b"")
            committed.commit()
            relay.close_door()
            realm.close()
            with penstock.Realm(tmp_path) as again:
                relay.target = again.listen()
                relay.open_door()

                assert tx.commit() == range(1, 41)
                assert tx.is_committed()
                assert committed.is_committed()
                assert orders.info().events == 41


# --- readers ------------------------------------------------------------------------------


@pytest.mark.spec("Q3")
def test_a_commit_of_events_returned_with_the_connection_raises_an_error(
    relay: Relay, work: Queue
) -> None:
    work.push_many([penstock.Event()] * 3)
    with work.reader(transactional=True) as reader:
        assert len(reader.fetch(3, WAIT_S)) == 3
        relay.cut()
        again = reader.fetch(1, WAIT_S)
        assert [(e.event_id, e.redelivery_count) for e in again] == [(0, 1)]

        with pytest.raises(penstock.ConnectionLost, match=r"2 of these events .* first is 1"):
            reader.commit()
        assert work.info().events == 3

        reader.commit()
        assert work.info().events == 2
        assert [event.event_id for event in reader.fetch(2, WAIT_S)] == [1, 2]
        reader.commit()
    assert work.info().events == 0


@pytest.mark.spec("Q3")
def test_a_rollback_of_what_went_back_with_the_connection_is_done_already(
    relay: Relay, session: Session, work: Queue
) -> None:
    work.push_many([penstock.Event()] * 3)
    with work.reader(transactional=True, timeout=WAIT_S) as reader:
        events = iter(reader)
        next(events)
        next(events)
        relay.cut()
        session.info()  # answered over the next connection

        reader.rollback()
        again = [next(events), next(events), next(events)]

        assert [(e.event_id, e.redelivery_count) for e in again] == [(0, 1), (1, 1), (2, 1)]
        reader.commit()
    assert work.info().events == 0


def test_a_commit_whose_answer_is_lost_is_said_to_be_unknown(
    relay: Relay, work: Queue, direct_session: Session
) -> None:
    work.push(b"")
    stored = direct_session.queues.get("work")
    with work.reader(transactional=True) as reader, ThreadPoolExecutor(1) as pool:
        reader.fetch(1, WAIT_S)
        relay.hold_answers()
        waiting = pool.submit(reader.commit)
        eventually(lambda: stored.info().events == 0)
        relay.cut()
        relay.release_answers()

        with pytest.raises(penstock.ConnectionLost, match=r"Settle .* is unknown"):
            waiting.result(WAIT_S)
        assert reader.fetch(1) == []
        reader.commit()


@pytest.mark.spec("Q1")
def test_a_plain_reader_continues_after_lost_connections(
    relay: Relay, work: Queue, direct_session: Session
) -> None:
    writer = direct_session.queues.get("work")
    seen: list[int | None] = []
    with suppress(ConnectionLost), work.reader(window=5, timeout=WAIT_S) as reader:
        events = iter(reader)
        for part in range(4):
            writer.push_many([penstock.Event()] * 20)
            relay.cut()
            while len({*seen}) < 20 * (part + 1):
                seen.append(next(events).event_id)

    assert {*seen} == set(range(80))


def test_a_pop_waits_over_a_lost_connection(
    relay: Relay, work: Queue, direct_session: Session
) -> None:
    assert work.pop(0.0) is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(work.pop)
        relay.cut()
        direct_session.queues.get("work").push(b"late")

        event = waiting.result(WAIT_S)

    assert event is not None
    assert event.data == b"late"


def test_a_fetch_whose_time_is_up_while_there_is_no_connection_ends_with_the_next(
    relay: Relay, work: Queue
) -> None:
    with work.reader() as reader, ThreadPoolExecutor(1) as pool:
        relay.close_door()
        relay.cut()
        waiting = pool.submit(reader.fetch, 1, 0.1)
        relay.open_door()

        assert waiting.result(WAIT_S) == []


def test_a_window_that_was_full_is_empty_after_a_lost_connection(relay: Relay, work: Queue) -> None:
    work.push_many([penstock.Event()] * 2)
    with work.reader(transactional=True, window=1, timeout=WAIT_S) as reader:
        events = iter(reader)
        next(events)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, events)
            relay.cut()

            event = waiting.result(WAIT_S)

        assert isinstance(event, penstock.Event)
        assert (event.event_id, event.redelivery_count) == (0, 1)
