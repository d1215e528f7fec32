"""Durables and queues by HTTP: made, looked into without taking, emptied, unbound, popped."""

from __future__ import annotations

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web, part

EVENTS = [penstock.Event(str(n).encode(), properties={"n": n}) for n in range(5)]


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


@pytest.fixture
def jobs(session: penstock.Session) -> penstock.Queue:
    return session.queues.create("jobs")


def test_a_durable_is_made_listed_shown_and_removed(web: Web, orders: penstock.Channel) -> None:
    orders.publish_many(EVENTS)

    made = web.send(
        "POST",
        "channels/orders/durables",
        {"name": "billing", "type": "serial", "start": "earliest", "selector": "n > 1"},
    )

    assert (made["type"], made["outstanding"], made["selector"]) == ("serial", 3, "n > 1")
    assert web.get("channels/orders/durables")["items"][0]["name"] == "billing"
    assert web.get("channels/orders/durables/billing")["channel"] == "orders"
    assert web.send("DELETE", "channels/orders/durables/billing") == {"done": True}
    assert web.ask("GET", "channels/orders/durables/billing").code == "name-does-not-exist"


@pytest.mark.spec("D3")
def test_a_durable_begins_with_the_oldest_event_by_default(
    web: Web, orders: penstock.Channel
) -> None:
    orders.publish_many(EVENTS)

    made = web.send("POST", "channels/orders/durables", {"name": "billing"})

    assert made["outstanding"] == len(EVENTS)


@pytest.mark.spec("D22")
def test_a_durable_over_a_pattern_is_made_listed_shown_and_ended(
    web: Web, session: penstock.Session
) -> None:
    attributes = {
        "pattern": "branch/*",
        "name": "audit",
        "type": "serial",
        "backoff": {"first": 10},
    }
    session.channels.create("branch/north").publish(b"before")

    made = web.send("POST", "durables", attributes)
    session.channels.create("branch/south").publish(b"paid")

    assert (made["pattern"], made["type"], made["channels"]) == ("branch/*", "serial", 1)
    [listed] = web.get("durables")["items"]
    one = f"durables/{part('branch/*')}/audit"
    assert listed == web.get(one) == {**made, "channels": 2}
    north = web.get(f"channels/{part('branch/north')}/durables/audit")
    fetched = web.send("POST", f"channels/{part('branch/south')}/durables/audit/fetch", {})
    assert (north["outstanding"], fetched["items"][0]["data"]) == (1, "paid")
    belongs = web.ask("DELETE", f"channels/{part('branch/north')}/durables/audit")
    assert belongs.status == 409
    assert web.send("DELETE", one) == {"done": True}
    assert web.ask("GET", one).code == web.ask("DELETE", one).code == "name-does-not-exist"
    assert web.get(f"channels/{part('branch/south')}/durables")["items"] == []


@pytest.mark.spec("D22")
def test_an_empty_pattern_is_refused_and_lists_have_pages(
    web: Web, session: penstock.Session
) -> None:
    for name in ("a", "b", "c"):
        web.send("POST", "durables", {"pattern": f"{name}/*", "name": "audit"})

    first = web.get("durables?limit=2")
    rest = web.get(f"durables?limit=2&after={first['next']}")

    assert [item["pattern"] for item in first["items"] + rest["items"]] == ["a/*", "b/*", "c/*"]
    assert rest["next"] is None
    assert web.ask("POST", "durables", {"pattern": "", "name": "audit"}).status == 400
    assert web.ask("POST", "durables", {"name": "audit"}).status == 400
    assert (
        web.ask("POST", "durables", {"pattern": "plain", "name": "a", "type": "odd"}).status == 400
    )


def test_outstanding_events_are_browsed_in_pages_without_a_change(
    web: Web, orders: penstock.Channel
) -> None:
    orders.durables.create("billing", start="earliest")
    orders.publish_many(EVENTS)

    first = web.get("channels/orders/durables/billing/events", limit=3)
    second = web.get("channels/orders/durables/billing/events", limit=3, after=first["next"])

    assert [item["event_id"] for item in first["items"] + second["items"]] == [0, 1, 2, 3, 4]
    assert second["next"] is None
    assert web.get("channels/orders/durables/billing")["outstanding"] == 5
    assert web.get("channels/orders/durables/billing")["last_read_ms"] is None


def test_a_durable_is_emptied_after_it_was_counted(web: Web, orders: penstock.Channel) -> None:
    orders.durables.create("billing", start="earliest")
    orders.publish_many(EVENTS)
    path = "channels/orders/durables/billing/purge"

    assert web.send("POST", path, {"selector": "n < 2", "dry_run": True})["count"] == 2
    assert web.get("channels/orders/durables/billing")["outstanding"] == 5
    assert web.send("POST", path, {"selector": "n < 2"})["count"] == 2
    assert web.get("channels/orders/durables/billing")["outstanding"] == 3


def test_a_durables_subscriptions_are_ended(web: Web, orders: penstock.Channel) -> None:
    durable = orders.durables.create("billing", start="earliest")
    orders.publish_many(EVENTS)
    with durable.subscribe() as subscription:
        next(iter(subscription))

        assert web.send("POST", "channels/orders/durables/billing/unbind") == {"count": 1}
        assert web.get("channels/orders/durables/billing")["clients"] == []


def test_durables_come_in_pages(web: Web, orders: penstock.Channel) -> None:
    for name in ("a", "b", "c"):
        orders.durables.create(name)

    first = web.get("channels/orders/durables", limit=2)

    assert [item["name"] for item in first["items"]] == ["a", "b"]
    after = web.get("channels/orders/durables", limit=2, after=first["next"])
    assert [item["name"] for item in after["items"]] == ["c"]


# --- queues -------------------------------------------------------------------------------


def test_a_queue_is_pushed_to_peeked_and_popped(web: Web, jobs: penstock.Queue) -> None:
    web.send("POST", "queues/jobs/events", {"events": [{"data": "a"}, {"data": "b"}]})

    peeked = web.get("queues/jobs/events")["items"]
    [popped] = web.send("POST", "queues/jobs/pop", {})["items"]

    assert [item["data"] for item in peeked] == ["a", "b"]
    assert popped["data"] == "a"
    assert [event.data for event in jobs.peek()] == [b"b"]
    assert web.get("queues/jobs")["counters"]["consumed"] == 1


def test_a_pop_takes_matching_events_up_to_its_count(web: Web, jobs: penstock.Queue) -> None:
    jobs.push_many(EVENTS)

    chosen = web.send("POST", "queues/jobs/pop", {"count": 2, "selector": "n >= 3"})["items"]
    rest = web.send("POST", "queues/jobs/pop", {"count": 100})["items"]

    assert [item["event_id"] for item in chosen] == [3, 4]
    assert [item["event_id"] for item in rest] == [0, 1, 2]
    assert web.send("POST", "queues/jobs/pop", {"timeout": 0.01}) == {"items": []}
    assert web.get("queues/jobs")["readers"] == []


def test_a_queue_is_purged_and_removed(web: Web, jobs: penstock.Queue) -> None:
    jobs.push_many(EVENTS)

    assert web.send("POST", "queues/jobs/purge", {})["count"] == 5
    assert web.send("PATCH", "queues/jobs", {"capacity": 3})["definition"]["capacity"] == 3
    assert web.send("DELETE", "queues/jobs") == {"done": True}
    assert web.get("queues")["items"] == []


# --- dead events and joins ----------------------------------------------------------------


def test_dead_events_are_grouped_and_redriven(web: Web, session: penstock.Session) -> None:
    session.channels.create("dead/orders")
    orders = session.channels.create("orders", capacity=2, dead_event_store="dead/orders")
    orders.publish_many(EVENTS)

    summary = web.get(f"channels/{part('dead/orders')}/dead")
    [group] = summary["groups"]
    would = web.send("POST", "redrive", {"source": "dead/orders", "dry_run": True})

    assert (summary["events"], summary["is_complete"]) == (3, True)
    assert (group["store"], group["cause"], group["events"]) == ("orders", "evicted", 3)
    assert (group["first_id"], group["last_id"], group["reason"]) == (0, 2, "")
    assert (would["moved"], would["destinations"]) == (3, {"orders": 3})
    assert orders.info().counters.published == 5
    refused = web.ask("POST", "redrive", {"source": "dead/orders"})
    assert (refused.status, refused.code) == (409, "capacity-reached")
    orders.edit(capacity=0)
    assert web.send("POST", "redrive", {"source": "dead/orders"})["moved"] == 3
    assert web.get(f"channels/{part('dead/orders')}/dead")["groups"] == []


def test_joins_are_made_listed_and_ended(web: Web, session: penstock.Session) -> None:
    for name in ("a", "b"):
        session.channels.create(name)

    made = web.send("POST", "joins", {"source": "a", "destination": "b", "selector": "n > 1"})
    session.channels.get("a").publish_many(EVENTS)

    [listed] = web.get("joins")["items"]
    assert (listed["id"], listed["copied"]) == (made["id"], 3)
    assert web.send("DELETE", f"joins/{made['id']}") == {"done": True}
    assert web.ask("DELETE", f"joins/{made['id']}").code == "name-does-not-exist"
    assert web.ask("DELETE", "joins/nonsense").code == "name-does-not-exist"
    assert web.ask("POST", "joins", {"source": "a", "destination": "c"}).status == 404
