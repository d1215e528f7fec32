"""Joins, redrives, pauses, maintenance, attributes: what administers a realm."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.sync.sync import Channel, Session


def data(channel: Channel) -> list[bytes]:
    return [event.data for event in channel.browse()]


# --- joins --------------------------------------------------------------------------------


@pytest.mark.spec("L1", "L4")
def test_a_join_copies_what_is_published_from_now_on(session: Session, orders: Channel) -> None:
    archive = session.queues.create("archive")
    orders.publish(b"before", properties={"n": 9})

    made = session.joins.create("orders", "archive", selector="n > 5")
    orders.publish_many([penstock.Event(b"%d" % n, properties={"n": n}) for n in (4, 6)])

    assert (made.source, made.destination, made.selector, made.archive) == (
        "orders",
        "archive",
        "n > 5",
        False,
    )
    [copy] = archive.peek()
    assert copy.data == b"6"
    assert copy.origin is not None
    assert (copy.origin.store, copy.origin.event_id, copy.origin.cause) == ("orders", 2, "join")
    [info] = session.joins.list()
    assert info.copied == 1


@pytest.mark.spec("L1")
def test_joins_are_listed_and_ended(session: Session, orders: Channel) -> None:
    session.channels.create("a")
    session.queues.create("b")
    session.joins.create("orders", "b", archive=True)
    session.joins.create("orders", "a")

    assert [(j.source, j.destination, j.archive) for j in session.joins.list()] == [
        ("orders", "a", False),
        ("orders", "b", True),
    ]

    session.joins.delete("orders", "a")
    orders.publish(b"")

    assert [join.destination for join in session.joins.list()] == ["b"]
    assert session.channels.get("a").info().last_event_id == -1
    with pytest.raises(penstock.NameDoesNotExist):
        session.joins.delete("orders", "a")


@pytest.mark.spec("L1", "L3", "F4")
def test_a_join_that_cannot_be_is_refused(session: Session, orders: Channel) -> None:
    work = session.queues.create("work")
    session.channels.create("a")
    session.joins.create("orders", "work")

    with pytest.raises(penstock.NameDoesNotExist, match="nowhere"):
        session.joins.create("orders", "nowhere")
    with pytest.raises(penstock.NameAlreadyBound):
        session.joins.create("orders", "work")
    with pytest.raises(penstock.PenstockError, match=work.name):
        session.joins.create("work", "orders")
    with pytest.raises(penstock.InvalidArgument):
        session.joins.create("orders", "a", archive=True)
    with pytest.raises(penstock.InvalidSelector, match="column 5"):
        session.joins.create("orders", "a", selector="n > > 7")
    assert [join.destination for join in session.joins.list()] == ["work"]


@pytest.mark.spec("L5", "X5", "X4")
def test_joins_pauses_and_schedules_outlive_a_restart(tmp_path: Path) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        session.queues.create("archive", type="persistent")
        session.joins.create("orders", "archive", selector="n > 5", archive=True)
        number = orders.publish(b"later", deliver_at=later)
        session.pause_publishing()

    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        orders = session.channels.get("orders")
        with pytest.raises(penstock.PublishingPaused):
            orders.publish(b"", properties={"n": 6})
        session.resume_publishing()
        orders.publish(b"six", properties={"n": 6})
        [join] = session.joins.list()
        assert (join.destination, join.selector, join.archive) == ("archive", "n > 5", True)
        assert [event.data for event in session.queues.get("archive").peek()] == [b"six"]
        assert [(s.number, s.deliver_at) for s in orders.scheduled.list()] == [(number, later)]


# --- dead events --------------------------------------------------------------------------


@pytest.fixture
def dead(session: Session) -> Channel:
    """Dead events of ``orders``: three of them, 0 to 2."""
    dead = session.channels.create("dead/orders")
    orders = session.channels.create("orders", capacity=2, dead_event_store="dead/orders")
    orders.publish_many([penstock.Event(b"%d" % n, properties={"n": n}) for n in range(5)])
    assert data(dead) == [b"0", b"1", b"2"]
    return dead


@pytest.mark.spec("T10")
def test_a_redrive_moves_dead_events_where_they_are_wanted(session: Session, dead: Channel) -> None:
    again = session.channels.create("again")

    preview = session.redrive("dead/orders", "again", selector="n > 0", dry_run=True)
    assert (preview.moved, preview.left, preview.dry_run) == (2, 1, True)
    assert again.info().events == 0

    done = session.redrive("dead/orders", "again", selector="n > 0")
    assert (done.moved, done.destinations, done.left) == (2, {"again": 2}, 1)
    assert (data(again), data(dead)) == ([b"1", b"2"], [b"0"])
    assert session.redrive("dead/orders", "again", selector="n > 0").moved == 0


@pytest.mark.spec("T10")
def test_a_redrive_leads_back_to_where_events_came_from(session: Session, dead: Channel) -> None:
    orders = session.channels.get("orders")
    orders.edit(capacity=0)

    done = session.redrive("dead/orders")

    assert (done.moved, done.destinations) == (3, {"orders": 3})
    assert sorted(data(orders)) == [b"0", b"1", b"2", b"3", b"4"]
    assert dead.info().events == 0


def test_a_redrive_that_cannot_be_is_refused(session: Session, dead: Channel) -> None:
    with pytest.raises(penstock.NameDoesNotExist, match="nowhere"):
        session.redrive("nowhere")
    with pytest.raises(penstock.NameDoesNotExist, match="nowhere"):
        session.redrive("dead/orders", "nowhere")
    with pytest.raises(penstock.InvalidSelector):
        session.redrive("dead/orders", selector="n > > 7")
    assert dead.info().events == 3


@pytest.mark.spec("T10")
def test_a_durable_has_a_limit_of_deliveries(session: Session) -> None:
    dead = session.channels.create("dead")
    orders = session.channels.create("orders", dead_event_store="dead")
    durable = orders.durables.create("d", max_deliveries=2)
    orders.publish(b"poison")
    with durable.subscribe(window=1, timeout=5) as subscription:
        for _ in range(2):
            batch = subscription.next_batch()
            assert batch is not None
            batch.rollback()

    assert durable.info().max_deliveries == 2
    [event] = dead.browse()
    assert event.origin is not None
    assert (event.origin.cause, event.origin.durables) == ("redelivery_limit", ("d",))


def test_a_limit_of_deliveries_needs_somewhere_for_the_dead(orders: Channel) -> None:
    with pytest.raises(penstock.InvalidArgument, match="max_deliveries needs a dead event store"):
        orders.durables.create("d", max_deliveries=2)
    assert orders.durables.list() == []


# --- pause --------------------------------------------------------------------------------


@pytest.mark.spec("X5")
def test_a_pause_refuses_publishes_and_nothing_else(session: Session, orders: Channel) -> None:
    orders.publish(b"before")
    durable = orders.durables.create("d")
    session.pause_publishing()

    with pytest.raises(penstock.PublishingPaused, match="paused"):
        orders.publish(b"")
    with pytest.raises(penstock.PublishingPaused):
        session.queues.create("work").push(b"")
    assert session.info().publishing_paused
    assert data(orders) == [b"before"]
    [event] = durable.fetch(1)
    event.ack()
    durable.flush()

    session.resume_publishing()

    assert not session.info().publishing_paused
    assert orders.publish(b"after") == 1


# --- errors without a caller --------------------------------------------------------------


@pytest.mark.spec("T4")
@pytest.mark.parametrize("kind", ["channel", "queue"])
def test_refusals_of_a_producer_without_a_listener_reach_the_session(
    session: Session, kind: str
) -> None:
    errors: list[penstock.PenstockError] = []
    heard = threading.Event()

    def listen(error: penstock.PenstockError) -> None:
        errors.append(error)
        heard.set()

    session.on_error(listen)
    attributes: dict[str, Any] = {"capacity": 1, "storage": {"honour_capacity": True}}
    stores = session.channels if kind == "channel" else session.queues
    store = stores.create("full", **attributes)
    with store.producer(batch_events=1) as producer:
        producer.send(b"fits")
        producer.flush()
        producer.send(b"does not")
        producer.flush()
        assert producer.acknowledged == 1

    assert heard.wait(30)
    assert [type(error) for error in errors] == [penstock.CapacityReached]
    assert errors[0].__notes__ == ["1 pipelined events were not published"]


# --- attributes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"ttl": 1 << 70}, f"^ttl must fit into 64 bits, not {1 << 70}$"),
        (
            {"storage": {"sink": 1}},
            "storage has no property sink; allowed are honour_capacity, sync",
        ),
        ({"storage": {"sync": "always"}}, "^storage.sync must be 'group' or 'none', not 'always'$"),
    ],
)
def test_an_attribute_that_cannot_be_says_what_may(
    session: Session, attributes: dict[str, Any], text: str
) -> None:
    with pytest.raises(penstock.InvalidArgument, match=text):
        session.channels.create("odd", **attributes)

    assert "odd" not in session.channels.list()


@pytest.mark.spec("C3", "K1", "S")
@pytest.mark.parametrize(
    "chosen",
    [
        {"sync": "none", "enable_caching": False},
        {"sync_each_write": True, "cache_on_reload": True},
    ],
)
def test_every_attribute_has_the_value_given(session: Session, chosen: Any) -> None:
    session.channels.create("dead")
    storage: Any = {
        **chosen,
        "honour_capacity": True,
        "sync_max_batch_size": 1 << 16,
        "sync_batch_time": 5,
        "events_per_spindle": 0,
        "auto_maintenance": False,
        "read_buffer_size": 1 << 16,
        "priority": 7,
        "stamp_dictionary": True,
    }
    attributes: dict[str, Any] = {
        "type": "persistent",
        "ttl": 60_000,
        "capacity": 100,
        "dead_event_store": "dead",
        "keys": {"sku": 2},
        "start_event_id": 5,
    }
    orders = session.channels.create("orders", storage=storage, **attributes)
    definition = orders.info().definition

    assert {name: getattr(definition, name) for name in attributes} == attributes
    assert {name: getattr(definition.storage, name) for name in storage} == storage
    for _ in range(3):
        orders.publish(b"", properties={"sku": "a"})
    assert [event.event_id for event in orders.browse()] == [6, 7]
    assert orders.info().counters.replaced == 1


@pytest.mark.spec("C5")
def test_on_a_realm_without_a_cluster_nothing_is_made_cluster_wide(
    session: Session, orders: Channel
) -> None:
    refused: list[Callable[[], object]] = [
        lambda: session.channels.create("a", cluster_wide=True),
        lambda: session.queues.create("a", cluster_wide=True),
        lambda: orders.edit(cluster_wide=True),
        lambda: orders.durables.create("d", cluster_wide=True),
    ]
    for ask in refused:
        with pytest.raises(penstock.InvalidArgument, match="this realm is on one machine"):
            ask()

    assert session.channels.list() == ["orders"]
    assert (session.queues.list(), orders.durables.list()) == ([], [])
    orders.edit(cluster_wide=False, ttl=5)
    assert not orders.info().definition.cluster_wide
    assert not orders.durables.create("d", cluster_wide=False).info().cluster_wide


@pytest.mark.spec("S")
def test_maintenance_rewrites_a_single_file_and_says_what_it_did(session: Session) -> None:
    several = session.channels.create("several")
    single = session.queues.create(
        "single", type="persistent", storage={"events_per_spindle": 0, "auto_maintenance": False}
    )
    single.push_many([penstock.Event(bytes(1_000))] * 20)

    assert several.maintain().reason
    done = single.maintain()
    assert done.bytes_after <= done.bytes_before
    assert [len(event.data) for event in single.peek()] == [1_000] * 20


@pytest.mark.spec("C3", "S")
def test_an_edit_is_refused_when_the_combination_after_it_has_no_effect(session: Session) -> None:
    orders = session.channels.create("orders", storage={"enable_caching": False})
    with pytest.raises(penstock.InvalidArgument, match="cache_on_reload"):
        orders.edit(storage={"cache_on_reload": True})
    orders.edit(storage={"cache_on_reload": True, "enable_caching": True})
    with pytest.raises(penstock.InvalidArgument, match="turn that on, or cache_on_reload off"):
        orders.edit(storage={"enable_caching": False})

    storage = orders.info().definition.storage
    assert (storage.enable_caching, storage.cache_on_reload) == (True, True)
