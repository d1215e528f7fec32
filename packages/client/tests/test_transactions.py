"""Transactions: publishing in one step, and the outcome that is known afterwards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.client.sync.sync import Channel, Session


def data(channel: Channel) -> list[bytes]:
    return [event.data for event in channel.browse()]


@pytest.mark.spec("X1")
def test_what_is_published_is_seen_at_the_commit_and_has_consecutive_ids(orders: Channel) -> None:
    with orders.transaction() as tx:
        tx.publish(b"a", tag="t", properties={"n": 1})
        orders.publish(b"between")
        tx.publish_many([penstock.Event(b"b"), penstock.Event(b"c")])
        tx.publish_table(pa.table({"data": [b"d"], "n": [4]}))
        assert data(orders) == [b"between"]
        assert not tx.is_committed()

    assert data(orders) == [b"between", b"a", b"b", b"c", b"d"]
    assert tx.ids == range(1, 5)
    assert tx.is_committed()
    assert orders.read()["n"].to_pylist() == [None, 1, None, None, 4]


@pytest.mark.spec("X1")
def test_a_commit_inside_the_block_gives_the_ids_and_the_end_does_nothing(orders: Channel) -> None:
    with orders.transaction() as tx:
        tx.publish(b"")
        with pytest.raises(
            penstock.IllegalState, match="is open; its events get ids when it commits"
        ):
            _ = tx.ids

        assert tx.commit() == range(1)

    assert orders.info().events == 1


@pytest.mark.spec("X1")
def test_an_exception_leaves_nothing_behind(session: Session, orders: Channel) -> None:
    tx = orders.transaction()

    def fail() -> None:
        with tx:
            tx.publish(b"")
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fail()

    assert orders.info().last_event_id == -1
    assert not tx.is_committed()
    assert not session.is_committed(tx.id)


@pytest.mark.spec("X2")
def test_what_has_ended_says_how(session: Session, orders: Channel) -> None:
    with orders.transaction() as done:
        done.publish(b"")
    with orders.transaction() as dropped:
        dropped.publish(b"")
        dropped.abort()

    for use in (done.commit, done.abort, lambda: done.publish(b"")):
        with pytest.raises(penstock.AlreadyCommitted, match=done.id):
            use()
    for use in (dropped.commit, dropped.abort, lambda: dropped.publish_many([penstock.Event()])):
        with pytest.raises(penstock.AlreadyAborted, match=dropped.id):
            use()
    assert orders.info().events == 1
    assert session.is_committed(done.id)


@pytest.mark.spec("X2")
def test_another_session_knows_the_outcome_but_not_of_an_unknown_transaction(
    realm: penstock.Realm, orders: Channel
) -> None:
    with orders.transaction() as tx:
        tx.publish(b"")
    with realm.connect() as other_session:
        assert other_session.is_committed(tx.id)
        with pytest.raises(penstock.NoSuchTransaction, match="there is no transaction 4711"):
            other_session.is_committed("4711")


@pytest.mark.spec("X2")
def test_what_was_committed_is_known_after_a_restart(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        with orders.transaction() as done:
            done.publish(b"kept")
        with orders.transaction() as dropped:
            dropped.abort()

    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        assert session.is_committed(done.id)
        assert not session.is_committed(dropped.id)
        assert data(session.channels.get("orders")) == [b"kept"]


def test_an_empty_transaction_commits_nothing(orders: Channel) -> None:
    with orders.transaction() as tx:
        pass

    assert tx.is_committed()
    assert tx.ids == range(0)
    assert orders.info().last_event_id == -1


def test_what_cannot_be_an_event_is_refused_where_it_is_added(orders: Channel) -> None:
    with orders.transaction() as tx:
        with pytest.raises(penstock.InvalidEvent, match="wrong"):
            tx.publish(b"", properties={"wrong": object()})
        with pytest.raises(penstock.InvalidEvent, match="publish at least one"):
            tx.publish_many([])
        with pytest.raises(penstock.InvalidEvent, match="deliver_at cannot be used"):
            tx.publish_table(
                pa.table({"deliver_at": pa.array([1 << 50], pa.timestamp("us", "UTC"))})
            )
        tx.publish(b"good")

    assert data(orders) == [b"good"]


@pytest.mark.spec("T4")
def test_a_commit_to_a_full_channel_is_refused_and_may_be_tried_again(session: Session) -> None:
    full = session.channels.create("full", capacity=1, storage={"honour_capacity": True})
    full.publish(b"first")
    with pytest.raises(penstock.CapacityReached), full.transaction() as refused:
        refused.publish(b"")
    assert not refused.is_committed()
    with full.transaction() as tx:
        tx.publish(b"second")
        with pytest.raises(penstock.CapacityReached):
            tx.commit()
        full.purge()

        assert tx.commit() == range(1, 2)

    assert data(full) == [b"second"]


@pytest.mark.spec("T4")
def test_a_transaction_begun_below_capacity_may_overshoot_as_a_whole(session: Session) -> None:
    full = session.channels.create("full", capacity=2, storage={"honour_capacity": True})
    with full.transaction() as tx:
        full.publish_many([penstock.Event()] * 2)
        tx.publish_many([penstock.Event()] * 5)

    assert tx.ids == range(2, 7)
    assert full.info().events == 7


@pytest.mark.spec("E7")
def test_an_event_that_is_too_large_fails_the_commit_alone() -> None:
    with penstock.Realm(limits__max_event_bytes=1_000_000) as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        with orders.transaction() as tx:
            tx.publish(b"small")
            tx.publish(bytes(2_000_000))
            with pytest.raises(penstock.EventTooLarge):
                tx.commit()
            tx.abort()

        assert orders.publish(b"next") == 0


@pytest.mark.slow
@pytest.mark.spec("X1")
@pytest.mark.parametrize("add", ["many", "runs"])
def test_a_transaction_larger_than_a_frame_is_one_step(orders: Channel, add: str) -> None:
    large = [penstock.Event(data=bytes(1 << 20), properties={"n": n}) for n in range(70)]
    with orders.transaction() as tx:
        if add == "many":
            tx.publish_many(large)
        else:
            for first in range(0, 70, 10):
                tx.publish_many(large[first : first + 10])
                tx.publish(b"", properties={"other": first})

    assert len(tx.ids) == (70 if add == "many" else 77)
    assert orders.read(columns=["n"])["n"].drop_null().to_pylist() == list(range(70))


@pytest.mark.slow
def test_many_events_one_by_one_keep_their_order(orders: Channel) -> None:
    with orders.transaction() as tx:
        for n in range(2_500):
            tx.publish(b"", properties={"n": n})

    assert orders.read()["n"].to_pylist() == list(range(2_500))


# --- several stores -----------------------------------------------------------------------


@pytest.mark.spec("X4")
def test_a_transaction_over_several_stores_is_one_step(session: Session, orders: Channel) -> None:
    work = session.queues.create("work")
    orders.publish(b"earlier")
    with session.transaction() as tx:
        tx.publish(orders, b"o1")
        tx.publish(work, b"w1")
        tx.publish_many(orders, [penstock.Event(b"o2")])
        tx.publish_table(work, pa.table({"n": [7]}))
        assert work.info().events == 0

    assert tx.ids == {"orders": range(1, 3), "work": range(2)}
    assert data(orders) == [b"earlier", b"o1", b"o2"]
    assert [event.data for event in work.peek()] == [b"w1", b""]
    assert session.is_committed(tx.id)


@pytest.mark.spec("X4", "T4")
def test_one_store_that_refuses_keeps_all_of_them_unchanged(
    session: Session, orders: Channel
) -> None:
    full = session.channels.create("full", capacity=1, storage={"honour_capacity": True})
    full.publish(b"")
    with session.transaction() as tx:
        tx.publish(orders, b"")
        tx.publish(full, b"")
        with pytest.raises(penstock.CapacityReached, match="full has no room: 1 of 1 events"):
            tx.commit()
        tx.abort()

    assert (orders.info().last_event_id, full.info().events) == (-1, 1)


@pytest.mark.spec("X4", "T4")
def test_every_store_that_had_room_when_it_was_first_named_may_overshoot(session: Session) -> None:
    stores = [
        session.channels.create(name, capacity=1, storage={"honour_capacity": True})
        for name in ("a", "b")
    ]
    with session.transaction() as tx:
        for store in stores:
            tx.publish_many(store, [penstock.Event()] * 3)

    assert [store.info().events for store in stores] == [3, 3]


@pytest.mark.slow
def test_a_large_transaction_over_several_stores_is_one_step(
    session: Session, orders: Channel
) -> None:
    other_channel = session.channels.create("other")
    with session.transaction() as tx:
        tx.publish_many(orders, [penstock.Event(data=bytes(1 << 20))] * 40)
        tx.publish_many(other_channel, [penstock.Event(data=bytes(1 << 20))] * 3)

    assert tx.ids == {"orders": range(40), "other": range(3)}


def test_where_to_publish_has_to_be_given(session: Session) -> None:
    with (
        session.transaction() as tx,
        pytest.raises(
            penstock.InvalidArgument,
            match="the first argument has type bytes; give the channel or queue to publish on",
        ),
    ):
        tx.publish(b"data")  # type: ignore[arg-type]  # that is the point


def test_a_store_that_is_gone_is_refused_where_it_is_named(
    session: Session, orders: Channel
) -> None:
    session.channels.delete("orders")

    with pytest.raises(penstock.NameDoesNotExist), orders.transaction():
        raise AssertionError("the block was entered")
    with session.transaction() as tx, pytest.raises(penstock.NameDoesNotExist):
        tx.publish(orders, b"")


def test_a_queue_takes_transactions_like_a_channel(session: Session) -> None:
    work = session.queues.create("work")
    with work.transaction() as tx:
        tx.publish(b"1")
        tx.publish(b"2")
        assert work.pop(0.0) is None

    assert tx.ids == range(2)
    assert [event.data for event in work.reader().fetch(5)] == [b"1", b"2"]


@pytest.mark.spec("X5")
def test_while_publishing_is_paused_a_commit_is_refused(session: Session, orders: Channel) -> None:
    with orders.transaction() as tx:
        tx.publish(b"kept")
        session.pause_publishing()
        with pytest.raises(penstock.PublishingPaused):
            tx.commit()
        session.resume_publishing()

    assert data(orders) == [b"kept"]


@pytest.mark.spec("X4")
def test_a_transaction_takes_nothing_that_is_to_wait(session: Session) -> None:
    orders = session.channels.create("orders")
    with (
        orders.transaction() as one,
        pytest.raises(penstock.InvalidEvent, match="deliver_at cannot be used"),
    ):
        one.publish(b"", deliver_at=1e10)
    with (
        session.transaction() as more,
        pytest.raises(penstock.InvalidEvent, match="deliver_at cannot be used"),
    ):
        more.publish(orders, b"", deliver_at=1e10)

    assert (orders.info().events, orders.info().scheduled) == (0, 0)
