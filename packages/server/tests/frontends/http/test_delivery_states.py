"""Delivery states of events, read over HTTP (SEM D23)."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.fetches import ARROW, NDJSON, fetch, publish
from penstock_core.columns.events.delivery_table import DELIVERY_SCHEMA
from penstock_server.frontends.http import delivery_states

DELIVERY = "channels/orders/delivery"


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


def brief(rows: Any) -> list[tuple[int, str, str]]:
    return [(row["event_id"], row["durable"], row["state"]) for row in rows]


@pytest.mark.spec("D23")
def test_a_lease_is_shown_with_its_holder_and_end(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team")
    publish(orders, 3)
    lease = fetch(web, count=1, lease_ms=60_000)
    page = web.get(DELIVERY)

    assert page["next"] is None
    assert brief(page["items"]) == [
        (0, "team", "in_flight"),
        (1, "team", "ready"),
        (2, "team", "ready"),
    ]
    held, ready, _ = page["items"]
    assert held["client"].startswith("http lease of ")
    assert held["deliveries"] == 1
    # Times of a lease end later by up to a hundredth of it.
    assert held["lease_end"][:16] >= lease["ends"][:16]
    assert (ready["client"], ready["lease_end"], ready["deliveries"]) == (None, None, 0)


@pytest.mark.spec("D23")
def test_each_format_has_the_same_rows(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team")
    publish(orders, 3)
    document = web.get(DELIVERY)["items"]
    arrow = web.ask("GET", DELIVERY, headers={"accept": ARROW})
    lines = web.ask("GET", DELIVERY, headers={"accept": NDJSON})

    table = pa.ipc.open_stream(arrow.data).read_all()
    assert table.schema == DELIVERY_SCHEMA
    assert brief(table.to_pylist()) == brief(document)
    assert [msgspec.json.decode(line) for line in lines.data.splitlines()] == document
    assert "penstock-next" not in arrow.headers
    assert web.ask("GET", DELIVERY, headers={"accept": "text/html"}).status == 406


@pytest.mark.spec("D23")
def test_pages_lead_on_to_all_rows(web: Web, orders: penstock.Channel) -> None:
    for name in ("a", "b: c", "\u00fc/1"):
        orders.durables.create(name)
    publish(orders, 4)
    rows, after = [], ""
    for _ in range(3):
        answer = web.ask("GET", DELIVERY, limit=5, after=after)
        rows += answer.document["items"]
        after = answer.document["next"]
        assert answer.headers.get("penstock-next") == after

    assert after is None
    assert brief(rows) == brief(web.get(DELIVERY)["items"])
    assert len(rows) == 12


@pytest.mark.spec("D23")
def test_dead_events_follow_in_pages_of_their_own(web: Web, session: penstock.Session) -> None:
    session.channels.create("dead")
    orders = session.channels.create("orders", dead_event_store="dead", capacity=2)
    for name in ("a", "b: c", "dead-1:"):
        orders.durables.create(name)
    publish(orders, 4)
    rows, after = [], ""
    while after is not None:
        answer = web.ask("GET", DELIVERY, limit=2, after=after, state="ready,dead")
        assert len(answer.document["items"]) <= 2
        rows += answer.document["items"]
        after = answer.document["next"]

    names = ("a", "b: c", "dead-1:")
    assert brief(rows) == [(n, name, "ready") for name in names for n in (2, 3)] + [
        (n, name, "dead") for n in (0, 1) for name in names
    ]
    assert {(row["cause"], row["dead_event_id"]) for row in rows[6:]} == {
        ("evicted", 0),
        ("evicted", 1),
    }
    assert brief(web.get(DELIVERY, state="dead", durable="b: c")["items"]) == [
        (0, "b: c", "dead"),
        (1, "b: c", "dead"),
    ]


@pytest.mark.spec("D23")
def test_rows_are_selected_by_durable_and_state(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("team")
    orders.durables.create("other")
    publish(orders, 2)
    fetch(web, count=1)

    assert brief(web.get(DELIVERY, durable="team", state="in_flight")["items"]) == [
        (0, "team", "in_flight")
    ]
    assert len(web.get(DELIVERY, state="in_flight,ready")["items"]) == 4
    assert web.get(DELIVERY, state="acknowledged")["items"] == []


@pytest.mark.spec("D23")
@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ({"durable": "nobody"}, 404, "orders has no durable nobody"),
        ({"state": "lost"}, 400, "state 'lost' is unknown; allowed are ready, in_flight"),
        ({"state": ""}, 400, "state '' is unknown"),
        ({"limit": 0}, 400, "limit"),
        ({"limit": 1_001}, 400, "allowed are 1 to 1,000 rows as application/json"),
        ({"limit": 500_001}, 400, "limit"),
        ({"after": "nowhere"}, 400, "after='nowhere' is not valid"),
        ({"after": "99999999999999999999:a"}, 400, "after="),
        ({"after": "\u0663:a"}, 400, "after="),
        ({"after": "dead-:a"}, 400, "after="),
        ({"after": "dead-dead-1:a"}, 400, "after="),
        ({"after": f"dead-{2**63}:a"}, 400, "after="),
        ({"state": "dead", "durable": "nobody"}, 404, "orders has no durable nobody"),
        ({"after": "dead-0:", "durable": "nobody"}, 404, "orders has no durable nobody"),
    ],
)
def test_a_query_that_does_not_fit_is_refused(
    web: Web, orders: penstock.Channel, query: dict[str, Any], status: int, says: str
) -> None:
    answer = web.ask("GET", DELIVERY, **query)

    assert answer.status == status
    assert says in answer.reason


@pytest.mark.spec("D23")
def test_a_queue_is_shown_and_a_channel_is_not_one(
    web: Web, session: penstock.Session, orders: penstock.Channel
) -> None:
    publish(session.queues.create("jobs"), 2)
    fetch(web, "queues/jobs", count=1)

    assert brief(web.get("queues/jobs/delivery")["items"]) == [
        (0, "", "in_flight"),
        (1, "", "ready"),
    ]
    assert web.ask("GET", "queues/orders/delivery").status == 404
    assert web.ask("GET", "channels/jobs/delivery").status == 404


@pytest.mark.spec("D23")
def test_an_arrow_answer_is_bounded_and_may_be_continued(
    web: Web, orders: penstock.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.durables.create("team")
    orders.publish_table({"n": range(5_000)})
    monkeypatch.setattr(delivery_states, "ROWS_MAX", 3_000)
    first = web.ask("GET", DELIVERY, headers={"accept": ARROW})
    second = web.ask(
        "GET", DELIVERY, headers={"accept": ARROW}, after=first.headers["penstock-next"]
    )

    sizes = [pa.ipc.open_stream(answer.data).read_all().num_rows for answer in (first, second)]
    assert sizes == [3_000, 2_000]
    assert "penstock-next" not in second.headers
