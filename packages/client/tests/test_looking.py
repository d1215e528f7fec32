"""Reading channels and queues by id and time, and waiting for new events."""

from __future__ import annotations

from datetime import timedelta

import pytest

import penstock
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import InvalidArgument


@pytest.fixture
def session(realm: penstock.Realm) -> Session:
    return realm.connect()


def test_a_queue_is_browsed_by_id_without_removing_events(session: Session) -> None:
    work = session.queues.create("work")
    work.push_many([penstock.Event(b"%d" % n) for n in range(5)])

    assert [event.data for event in work.browse(start=1, end=3)] == [b"1", b"2", b"3"]
    assert [tuple(span) for span in work.locate(2, 9).tail] == [(2, 5)]
    assert work.info().events == 5
    with pytest.raises(InvalidArgument, match="start is 3 and end is 1"):
        work.browse(start=3, end=1)


def test_the_first_event_of_a_time(session: Session) -> None:
    orders = session.channels.create("orders")
    orders.publish(b"0")
    orders.publish(b"1")
    first, second = orders.read().column("published").to_pylist()

    assert orders.first_id_at(first) == 0
    assert orders.first_id_at(second) == 1
    assert orders.first_id_at(second + timedelta(days=1)) == 2


def test_waiting_for_several_ends_with_the_first_event(session: Session) -> None:
    orders, work = session.channels.create("orders"), session.queues.create("work")
    orders.publish(b"0")

    assert session.wait_for_events({orders: 0, work: 0}, 60)
    assert not session.wait_for_events({orders: 1, work: 0}, 0.01)
    work.push(b"0")
    assert session.wait_for_events({orders: 1, work: 0}, 60)


def test_when_the_next_stored_event_was_published(session: Session) -> None:
    orders = session.channels.create("orders")
    orders.publish(b"0")
    orders.publish(b"1")
    first, second = orders.read().column("published").to_pylist()
    orders.purge(end=0)

    assert first < second
    assert orders.published_at(0) == orders.published_at(1) == second
    assert orders.published_at(2) is None
