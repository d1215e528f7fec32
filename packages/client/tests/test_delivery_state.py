"""Delivery states of events, read over a session (SEM D23)."""

from __future__ import annotations

import duckdb
import pytest

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import InvalidArgument, NameDoesNotExist


@pytest.mark.spec("D23")
def test_a_query_tells_what_is_stuck_with_whom(session: Session, orders: Channel) -> None:
    billing = orders.durables.create("billing", ack_timeout="1m")
    orders.durables.create("audit", type="serial")
    orders.publish_many([penstock.Event() for _ in range(6)])
    first, *_ = billing.fetch(2, timeout=5)
    first.rollback(delay="1h")
    billing.flush()
    state = session.delivery_state("orders")
    rows = duckdb.sql(
        "SELECT durable, state, client, count(*), count(lease_end), count(delayed_until) "
        "FROM state GROUP BY ALL ORDER BY ALL"
    ).fetchall()

    me = session.session_id
    assert rows == [
        ("audit", "ready", None, 6, 0, 0),
        ("billing", "delayed", None, 1, 0, 1),
        ("billing", "in_flight", me, 1, 1, 0),
        ("billing", "ready", None, 4, 0, 0),
    ]
    assert state["since"].null_count == 0
    assert orders.delivery_state(durable="billing", states=["delayed"])["event_id"].to_pylist() == [
        first.event_id
    ]
    assert orders.delivery_state(limit=4).num_rows == 4
    assert orders.delivery_state(limit=7).to_pylist() == state.slice(0, 7).to_pylist()


@pytest.mark.spec("D23")
def test_a_queue_has_delivery_states_too(session: Session) -> None:
    work = session.queues.create("work")
    work.push_many([penstock.Event(), penstock.Event()])
    with work.reader(transactional=True, window=1, timeout=5) as reader:
        next(iter(reader))
        states = session.delivery_state("work").to_pylist()

    assert [(row["durable"], row["state"], row["client"]) for row in states] == [
        ("", "in_flight", session.session_id),
        ("", "ready", None),
    ]


@pytest.mark.spec("D23")
def test_dead_events_are_shown_with_their_durable_and_cause(session: Session) -> None:
    session.channels.create("dead")
    mail = session.channels.create("mail", dead_event_store="dead")
    team = mail.durables.create("team", max_deliveries=2)
    mail.durables.create("audit")
    session.channels.get("dead").publish(b"published here")
    mail.publish_many([penstock.Event() for _ in range(4)])
    with team.subscribe(window=4, timeout=0.2) as subscription:
        for event in subscription:
            if event.event_id == 0:
                event.reject("no recipient")
            elif event.event_id == 2:
                event.rollback()
    rows = mail.delivery_state(states=["dead"]).to_pylist()

    assert [
        (row["event_id"], row["durable"], row["cause"], row["deliveries"], row["dead_event_id"])
        for row in rows
    ] == [(0, "team", "rejected", 1, 1), (2, "team", "redelivery_limit", 2, 2)]
    dead = list(session.channels.get("dead").browse(start=1))
    assert [row["since"] for row in rows] == [event.origin.at for event in dead if event.origin]
    assert {row["client"] for row in rows} == {None}
    states = mail.delivery_state(durable="team", states=["in_flight", "ready", "dead"]).to_pylist()
    assert [(row["event_id"], row["state"]) for row in states] == [
        (1, "ready"),
        (3, "ready"),
        (0, "dead"),
        (2, "dead"),
    ]
    assert mail.delivery_state(durable="audit", states=["dead"]).num_rows == 0
    assert mail.delivery_state(states=["dead"], limit=1).to_pylist() == rows[:1]
    session.redrive("dead")
    assert mail.delivery_state(states=["dead"]).num_rows == 0


@pytest.mark.spec("D23")
def test_dead_events_of_a_queue_and_without_durables_have_no_durable(session: Session) -> None:
    session.queues.create("dead")
    work = session.queues.create("work", dead_event_store="dead")
    news = session.channels.create("news", dead_event_store="dead", capacity=1)
    work.push(b"a")
    with work.reader(transactional=True, timeout=5) as reader:
        next(iter(reader))
        reader.reject(reason="broken")
        reader.commit()
    news.publish_many([penstock.Event(), penstock.Event()])

    for name, cause in (("work", "rejected"), ("news", "evicted")):
        (row,) = session.delivery_state(name, states=["dead"]).to_pylist()
        assert (row["event_id"], row["durable"], row["cause"]) == (0, "", cause)
    assert work.delivery_state(durable="", states=["dead"]).num_rows == 1
    news.edit(dead_event_store="")
    assert news.delivery_state(states=["dead"]).num_rows == 0
    with pytest.raises(NameDoesNotExist, match="has no durable nobody"):
        news.delivery_state(durable="nobody", states=["dead"])


@pytest.mark.spec("D23")
@pytest.mark.slow
def test_many_dead_events_are_read_in_pages(session: Session) -> None:
    session.channels.create("dead")
    old = session.channels.create("old", dead_event_store="dead", capacity=1_000)
    old.durables.create("a")
    old.durables.create("b")
    for _ in range(3):
        old.publish_table({"n": range(10_000)})
    table = old.delivery_state(states=["dead"])

    for name in ("a", "b"):
        ids = [row["event_id"] for row in table.to_pylist() if row["durable"] == name]
        assert ids == list(range(29_000))


@pytest.mark.spec("D23")
def test_names_and_limits_that_do_not_fit_are_refused(session: Session, orders: Channel) -> None:
    with pytest.raises(NameDoesNotExist, match="order"):
        session.delivery_state("order")
    with pytest.raises(NameDoesNotExist, match="orders has no durable nobody"):
        orders.delivery_state(durable="nobody")
    with pytest.raises(InvalidArgument, match="limit"):
        orders.delivery_state(limit=0)
    assert orders.delivery_state().num_rows == 0


@pytest.mark.spec("D23")
@pytest.mark.slow
def test_a_million_ready_events_are_read_in_pages(session: Session, orders: Channel) -> None:
    orders.durables.create("far-behind")
    for _ in range(10):
        orders.publish_table({"n": range(100_000)})
    states = session.delivery_state("orders")

    assert states["event_id"].to_numpy().tolist() == list(range(1_000_000))
