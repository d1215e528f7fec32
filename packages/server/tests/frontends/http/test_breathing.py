"""Time to breathe after a failure, by HTTP: attributes, what waits, metrics."""

from __future__ import annotations

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.samples import scraped, value_of


@pytest.mark.spec("D18", "D17")
def test_a_durable_with_a_backoff_shows_its_waiting_events(
    web: Web, session: penstock.Session
) -> None:
    orders = session.channels.create("orders")
    made = web.send(
        "POST",
        "channels/orders/durables",
        {"name": "billing", "start": "earliest", "backoff": {"first": 1_000, "most": 60_000}},
    )
    assert made["backoff"] == {
        "first": 1_000,
        "factor": 2.0,
        "most": 60_000,
        "jitter": 0.0,
        "seed": 0,
    }
    assert (made["waiting"], made["waiting_until_us"]) == (0, None)
    orders.publish_many([penstock.Event() for _ in range(3)])
    billing = orders.durables.get("billing")
    for event in billing.fetch(2, timeout=30):
        event.rollback(delay="1h")
    billing.flush()

    shown = web.get("channels/orders/durables/billing")
    assert (shown["outstanding"], shown["in_flight"], shown["waiting"]) == (3, 0, 2)
    assert shown["waiting_until_us"] > 1_600_000_000_000_000
    metrics = scraped(web)
    durable = {"channel": "orders", "durable": "billing"}
    assert value_of(metrics, "penstock_durable_waiting_events", **durable) == 2


@pytest.mark.spec("D18", "C3")
def test_a_queue_has_a_backoff_and_a_channel_has_none(web: Web, session: penstock.Session) -> None:
    backoff = {"first": 500, "factor": 3, "most": 9_000}
    web.send("POST", "queues", {"name": "jobs", "attributes": {"backoff": backoff}})
    assert web.get("queues/jobs")["definition"]["backoff"] == {**backoff, "jitter": 0.0, "seed": 0}
    assert web.get("queues/jobs")["waiting"] == 0

    web.send("PATCH", "queues/jobs", {"backoff": None})

    assert web.get("queues/jobs")["definition"]["backoff"] is None
    refused = web.ask("POST", "channels", {"name": "c", "attributes": {"backoff": backoff}})
    assert refused.code == "invalid-argument"


@pytest.mark.spec("D18")
@pytest.mark.parametrize(
    ("backoff", "said"),
    [
        ({"first": 0}, "backoff.first is 0; allowed are 1 to"),
        ({"first": 5, "most": 4}, "backoff.most is 4; allowed are 5 to"),
        ({"first": "1s"}, "backoff.first"),
        ({"most": 4}, "first"),
        ({"first": 5, "tries": 4}, "tries"),
    ],
)
def test_a_backoff_that_cannot_be_is_refused(
    web: Web, session: penstock.Session, backoff: dict[str, object], said: str
) -> None:
    session.channels.create("orders")
    refused = web.ask("POST", "channels/orders/durables", {"name": "d", "backoff": backoff})

    assert refused.code == "invalid-argument"
    assert said in refused.reason
    assert web.get("channels/orders/durables")["items"] == []


@pytest.mark.spec("D19")
def test_a_durable_has_a_timeout(web: Web, session: penstock.Session) -> None:
    session.channels.create("orders")
    durables = "channels/orders/durables"
    made = web.send("POST", durables, {"name": "d", "ack_timeout": 30_000})
    assert made["ack_timeout"] == 30_000
    assert web.get(f"{durables}/d")["ack_timeout"] == 30_000

    refused = web.ask("POST", durables, {"name": "e", "ack_timeout": 5})
    assert "ack_timeout is 5 ms; allowed are 100 to" in refused.reason
