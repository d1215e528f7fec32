"""Who has which event, over a session (SEM D23)."""

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
