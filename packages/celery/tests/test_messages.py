"""Messages become events that selectors can test, and come back unchanged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import Event
from penstock_celery.messages import event_of, message_of


def message(**headers: Any) -> dict[str, Any]:
    return {
        "body": "[[2, 3], {}, {}]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {"correlation_id": "c1", "delivery_info": {"exchange": "e"}},
    }


def test_a_message_keeps_its_parts() -> None:
    sent = message(task="shop.add", id="t1", retries=2)
    attributes = event_of(sent, 3, holds_eta=True)

    received = message_of(Event(**attributes))

    assert attributes["data"] == b"[[2, 3], {}, {}]"
    assert received["headers"] == sent["headers"]
    assert received["content-type"] == "application/json"
    assert received["properties"]["correlation_id"] == "c1"
    assert received["properties"]["delivery_info"] == {
        "exchange": "e",
        "redelivered": False,
        "redelivery_count": 0,
    }


def test_the_task_can_be_selected() -> None:
    attributes = event_of(message(task="shop.add", id="t1"), 0, holds_eta=True)

    assert attributes["properties"]["task"] == "shop.add"
    assert attributes["properties"]["task_id"] == "t1"


def test_the_realm_holds_a_task_until_its_eta() -> None:
    eta = datetime.now(UTC) + timedelta(hours=1)

    assert event_of(message(eta=eta.isoformat()), 0, holds_eta=True)["deliver_at"] == eta


def test_a_worker_holds_what_the_realm_does_not() -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    cases = [
        event_of(message(eta=later), 0, holds_eta=False),
        event_of(message(eta=later.removesuffix("+00:00")), 0, holds_eta=True),
        event_of(message(eta="2020-01-01T00:00:00+00:00"), 0, holds_eta=True),
        event_of(message(eta=None), 0, holds_eta=True),
        event_of(message(eta="soon"), 0, holds_eta=True),
    ]

    assert [case.get("deliver_at") for case in cases] == [None] * len(cases)


def test_expiration_and_delivery_mode_are_attributes_of_the_event() -> None:
    transient = message()
    transient["properties"] |= {"expiration": "1500", "delivery_mode": 1}

    attributes = event_of(transient, 0, holds_eta=True)

    assert (attributes["ttl"], attributes["persistent"]) == (1_500, False)


def test_an_event_of_another_client_is_a_message_of_bytes() -> None:
    received = message_of(Event(b"\xff", properties={"sku": "a1"}))

    assert received["body"] == b"\xff"
    assert (received["content-type"], received["content-encoding"]) == (
        "application/data",
        "binary",
    )
