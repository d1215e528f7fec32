"""A durable held as a whole, as a client does it."""

from __future__ import annotations

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock.client.sync.sync import Channel, Durable, Session
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.errors import (
    DurableInUse,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
)
from penstock_testing.relay import Relay


@pytest.fixture
def lake(orders: Channel) -> Durable:
    orders.publish_many([penstock.Event(str(n).encode()) for n in range(10)])
    return orders.durables.create("lake", type="serial")


def outstanding(durable: Durable) -> list[int]:
    return list(durable.outstanding().id_set)


def test_events_are_taken_and_acknowledged_by_id(lake: Durable) -> None:
    with lake.hold() as hold:
        assert list(hold.take(2, 4).id_set) == [2, 3, 4]
        info = lake.info()
        assert (info.in_flight, info.outstanding) == (3, 10)
        hold.ack(3)
        assert outstanding(lake) == [4, 5, 6, 7, 8, 9]
        hold.ack(3)
        assert list(hold.take(0, 5).id_set) == [4, 5]
    assert lake.info().in_flight == 0
    assert list(lake.outstanding(5, 6).id_set) == [5, 6]


@pytest.mark.spec("D13", "E9")
def test_what_was_held_comes_back_counted(lake: Durable) -> None:
    with lake.hold() as hold:
        hold.take(0, 1)
    with lake.hold() as hold:
        again = hold.take(0, 2)
    assert again.redelivered == {1: IdSet.from_ids([0, 1])}
    assert lake.outstanding().redelivered == {1: IdSet.from_ids([2]), 2: IdSet.from_ids([0, 1])}
    assert lake.info().redelivered == 3


@pytest.mark.spec("D14")
def test_a_hold_refuses_other_clients(lake: Durable, direct_session: Session) -> None:
    other_durable = direct_session.channels.get("orders").durables.get("lake")
    with lake.hold():
        with pytest.raises(DurableInUse, match="held as a whole"):
            other_durable.hold().open()
        with pytest.raises(DurableInUse, match="held as a whole"):
            other_durable.fetch(1)
    with other_durable.hold() as hold:
        hold.take(0, 0)


@pytest.mark.spec("T7", "T10")
def test_a_buried_event_keeps_the_reason(session: Session) -> None:
    session.channels.create("dead")
    jobs = session.channels.create("jobs", dead_event_store="dead")
    lake = jobs.durables.create("lake", type="serial")
    jobs.publish(b"good")
    jobs.publish(b"bad")
    with lake.hold() as hold:
        assert hold.bury([1], "ValueError: no such airport: XXX") == 1
        assert hold.bury([1], "again") == 0
        assert hold.bury([0], "") == 1

    first, second = session.channels.get("dead").browse()
    assert (first.data, second.data) == (b"bad", b"good")
    assert first.origin is not None
    assert second.origin is not None
    assert (first.origin.cause, first.origin.reason) == (
        "rejected",
        "ValueError: no such airport: XXX",
    )
    assert first.origin.durables == ("lake",)
    assert (second.origin.cause, second.origin.reason) == ("rejected", "")
    assert jobs.info().counters.dead == 2
    assert outstanding(lake) == []


def test_a_very_long_reason_is_cut(session: Session) -> None:
    session.channels.create("dead")
    jobs = session.channels.create("jobs", dead_event_store="dead")
    lake = jobs.durables.create("lake", type="exclusive")
    jobs.publish(b"bad")
    with lake.hold() as hold:
        hold.bury([0], "é" * 100_000)
    (dead,) = session.channels.get("dead").browse()
    assert dead.origin is not None
    assert dead.origin.reason == "é" * 2_000


@pytest.mark.parametrize("kind", ["channel", "other"])
def test_one_buried_for_one_durable_alone_says_so_too(session: Session, kind: str) -> None:
    session.channels.create("dead")
    jobs = session.channels.create("jobs", dead_event_store="dead")
    lake = jobs.durables.create("lake", type="shared")
    if kind == "other":
        jobs.durables.create("other", type="shared")
    jobs.publish(b"bad")
    with lake.hold() as hold:
        hold.bury([0], "no")
    (dead,) = session.channels.get("dead").browse()
    assert dead.origin is not None
    assert (dead.origin.cause, dead.origin.reason) == ("rejected", "no")
    assert dead.origin.durables == ("lake",)
    assert jobs.info().events == (kind == "other")


def test_what_cannot_be_is_refused(lake: Durable, orders: Channel) -> None:
    hold = lake.hold()
    with pytest.raises(penstock.PenstockError, match="open it first"):
        hold.take(0, 1)
    with hold:
        with pytest.raises(InvalidArgument, match="start is 5 and end is 4"):
            hold.take(5, 4)
        with pytest.raises(InvalidArgument, match="give the ids of the events"):
            hold.bury([], "none")
        with pytest.raises(InvalidArgument, match="reason must be a string, not 7"):
            hold.bury([1], 7)  # type: ignore[arg-type]  # what it is about
        with pytest.raises(IllegalState, match="no dead event store"):
            hold.bury([1], "no")
    with pytest.raises(NameDoesNotExist):
        orders.durables.get("none")


def test_whoever_deletes_the_durable_ends_the_hold(lake: Durable, orders: Channel) -> None:
    with lake.hold() as hold:
        hold.take(0, 1)
        orders.durables.delete("lake")
        with pytest.raises(NameDoesNotExist, match="durable lake was deleted"):
            hold.ack(1)


@pytest.mark.slow
def test_a_lost_connection_returns_taken_events_and_the_hold_continues(
    realm: penstock.Realm, relay: Relay, direct_session: Session
) -> None:
    orders = direct_session.channels.create("orders")
    orders.publish_many([penstock.Event(str(n).encode()) for n in range(10)])
    seen = orders.durables.create("lake", type="serial")
    with penstock.connect(relay.url) as session:
        lake = session.channels.get("orders").durables.get("lake")
        with lake.hold() as hold:
            hold.take(0, 4)
            relay.cut()
            eventually(lambda: seen.info().redelivered == 5)
            hold.ack(2)
            assert outstanding(seen) == [3, 4, 5, 6, 7, 8, 9]
            assert list(hold.take(0, 4).id_set) == [3, 4]
            assert seen.info().in_flight == 2
