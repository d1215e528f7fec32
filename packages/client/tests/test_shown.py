"""The ``repr`` of handles, and events that are sent to other processes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.sync.sync import Session


def test_handles_show_what_they_stand_for(session: Session) -> None:
    orders = session.channels.create("orders")
    work = session.queues.create("work")
    billing = orders.durables.create("billing")
    place = repr(session).removeprefix("<Session at ").removesuffix(">")

    assert place.startswith("penstock://")
    assert repr(orders) == f"<Channel 'orders' at {place}>"
    assert repr(work) == f"<Queue 'work' at {place}>"
    assert repr(billing) == f"<Durable 'billing' of channel 'orders' at {place}>"
    assert repr(work.reader()) == f"<Reader of queue 'work' at {place}>"
    assert repr(orders.transaction()).startswith("<Transaction ")
    assert repr(session.transaction()).endswith(f" at {place}>")
    assert "durable 'billing' of channel 'orders'" in repr(billing.subscribe())


def test_a_realm_shows_where_it_is(tmp_path: Path) -> None:
    with penstock.Realm() as realm:
        assert repr(realm) == "<Realm in memory, open>"
    assert repr(realm) == "<Realm in memory, closed>"


@pytest.mark.spec("E1")
@pytest.mark.parametrize("way", ["browse", "durable", "queue"])
def test_a_received_event_goes_to_another_process_as_a_plain_event(
    session: Session, way: str
) -> None:
    properties: dict[str, Any] = {
        "tag": "t",
        "properties": {"n": 1, "lines": [{"sku": "a"}, {"price": 1.5}]},
        "headers": {"correlation_id": "c"},
        "ttl": 60_000,
        "priority": 7,
    }
    orders, work = session.channels.create("orders"), session.queues.create("work")
    durable = orders.durables.create("d")
    orders.publish(b"before")
    orders.publish(b"data", **properties)
    work.push(b"before")
    work.push(b"data", **properties)
    ways: dict[str, Any] = {
        "browse": lambda: list(orders.browse())[1],
        "durable": lambda: durable.fetch(2, 30)[1],
        "queue": lambda: work.reader().fetch(2, 30)[1],
    }
    event = ways[way]()

    copy = pickle.loads(pickle.dumps(event))

    assert type(copy) is penstock.Event
    for name in (
        "event_id",
        "published",
        "data",
        "tag",
        "properties",
        "headers",
        "ttl",
        "priority",
        "redelivery_count",
        "persistent",
        "transient",
        "origin",
        "is_delta",
    ):
        assert getattr(copy, name) == getattr(event, name), name


def test_an_event_that_was_made_by_hand_goes_there_as_it_is() -> None:
    event = penstock.Event(b"data", tag="t", properties={"n": 1}, ttl=5)

    copy = pickle.loads(pickle.dumps(event))

    assert (copy.data, copy.tag, copy.properties, copy.ttl) == (b"data", "t", {"n": 1}, 5)
