"""Channels and queues by HTTP: the same documents as the command line's, the same refusals."""

from __future__ import annotations

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web, part


def test_a_channel_is_made_shown_changed_and_removed(web: Web) -> None:
    made = web.send(
        "POST",
        "channels",
        {"name": "orders", "attributes": {"ttl": 60_000, "storage": {"honour_capacity": True}}},
    )
    changed = web.send("PATCH", "channels/orders", {"capacity": 5})

    assert made["definition"]["ttl"] == 60_000
    assert made["definition"]["storage"]["honour_capacity"]
    assert (changed["definition"]["capacity"], changed["definition"]["ttl"]) == (5, 60_000)
    assert changed["definition"]["storage"]["honour_capacity"]
    assert web.get("channels/orders") == {**changed, "oldest_event_ms": None}
    assert web.send("DELETE", "channels/orders") == {"done": True}
    assert web.ask("GET", "channels/orders").status == 404


def test_a_name_with_slashes_is_one_part_of_the_path(web: Web) -> None:
    web.send("POST", "channels", {"name": "flights/delays"})

    assert web.get(f"channels/{part('flights/delays')}")["name"] == "flights/delays"
    assert web.ask("GET", "channels/flights/delays").status == 404


def test_lists_come_in_pages_that_end(web: Web, session: penstock.Session) -> None:
    for name in ("a", "b", "c", "d", "e"):
        session.channels.create(name)
    session.queues.create("jobs")

    first = web.get("channels", limit=2)
    second = web.get("channels", limit=2, after=first["next"])
    third = web.get("channels", limit=2, after=second["next"])

    pages = [[item["name"] for item in page["items"]] for page in (first, second, third)]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert third["next"] is None
    assert [item["name"] for item in web.get("queues")["items"]] == ["jobs"]


def test_names_of_durables_are_listed_on_request(web: Web, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    for name in ("shipping", "billing"):
        orders.durables.create(name)
    session.channels.create("quiet")
    session.queues.create("work")

    assert web.get("names", durables="true")["items"] == [
        {"name": "orders", "kind": "channel", "durables": ["billing", "shipping"]},
        {"name": "quiet", "kind": "channel"},
        {"name": "work", "kind": "queue"},
    ]


def test_names_are_listed_on_one_page(web: Web, session: penstock.Session) -> None:
    for name in ("b", "a/x"):
        session.channels.create(name)
    session.queues.create("ab")

    assert web.get("names") == {
        "items": [
            {"name": "a/x", "kind": "channel"},
            {"name": "ab", "kind": "queue"},
            {"name": "b", "kind": "channel"},
        ],
        "next": None,
    }
    first = web.get("names", limit=2)
    assert first["next"] == "ab"
    assert [item["name"] for item in web.get("names", after="ab")["items"]] == ["b"]


def test_the_document_has_the_counts_of_all_events(web: Web, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    orders.publish_many([penstock.Event(b"x")] * 5)
    orders.purge(start=0, end=1)

    shown = web.get("channels/orders")

    assert shown["counters"]["published"] == 5
    assert shown["conservation"]["holds"]
    assert (shown["conservation"]["purged"], shown["conservation"]["live"]) == (2, 3)
    assert shown["oldest_event_ms"] >= 0


def test_missing_ids_are_listed_by_cause(web: Web, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    orders.publish_many([penstock.Event(b"x")] * 5)
    orders.purge(start=1, end=2)

    assert web.get("channels/orders/missing")["items"] == [
        {"cause": "purged", "events": 2, "spans": [[1, 3]]}
    ]
    assert web.get("channels/orders/missing", start=3)["items"] == []


def test_a_purge_can_be_counted_before_it_happens(web: Web, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    orders.publish_many([penstock.Event(b"x", properties={"n": n}) for n in range(10)])
    wanted = {"start": 2, "selector": "n >= 5"}

    counted = web.send("POST", "channels/orders/purge", {**wanted, "dry_run": True})

    assert counted == {"count": 5, "dry_run": True}
    assert orders.info().events == 10
    assert web.send("POST", "channels/orders/purge", wanted)["count"] == 5
    assert orders.info().events == 5


def test_columns_and_storage_are_shown(web: Web, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    orders.publish(b"x", properties={"price": 9.5})

    columns = {item["name"]: item["type"] for item in web.get("channels/orders/columns")["items"]}
    storage = web.get("channels/orders/storage")

    assert "price: double" in columns["properties"]
    assert storage["unsealed_events"] == 1
    assert storage["storage"]["tail_bytes"] > 0


def test_maintaining_returns_why_nothing_was_done(web: Web, session: penstock.Session) -> None:
    session.channels.create("orders")

    assert "files of" in web.send("POST", "channels/orders/maintain")["reason"]


WIDE = {"cluster_wide": True}
"""An attribute that a realm without a cluster refuses (SEM C5)."""


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "channels/nobody", None, 404, "name-does-not-exist"),
        ("GET", "queues/taken", None, 404, "name-does-not-exist"),
        ("POST", "channels", {"name": "taken"}, 409, "name-already-bound"),
        ("POST", "channels", {"name": "a/*"}, 400, "invalid-name"),
        ("POST", "channels", {"name": "b", "colour": 1}, 400, "invalid-argument"),
        ("POST", "channels", {"name": "b", "attributes": {"ttl": -1}}, 400, "invalid-argument"),
        ("POST", "channels", {"name": "b", "attributes": {"type": 7}}, 400, "invalid-argument"),
        ("PATCH", "channels/taken", {"type": "reliable"}, 400, "invalid-argument"),
        ("POST", "channels", {"name": "b", "attributes": WIDE}, 400, "invalid-argument"),
        ("POST", "queues", {"name": "b", "attributes": WIDE}, 400, "invalid-argument"),
        ("PATCH", "channels/taken", WIDE, 400, "invalid-argument"),
        ("POST", "channels/taken/durables", {"name": "d", **WIDE}, 400, "invalid-argument"),
        ("POST", "channels/taken/purge", {"selector": "n >"}, 422, "invalid-selector"),
        ("GET", "channels/taken/missing?start=5&end=2", None, 400, "invalid-argument"),
        ("GET", "channels?limit=0", None, 400, "invalid-argument"),
        ("GET", "channels?colour=red", None, 400, "invalid-argument"),
        ("GET", "channels?limit=1&limit=2", None, 400, "invalid-argument"),
        ("GET", "channels/%ff", None, 400, "invalid-argument"),
        ("GET", "nothing", None, 404, "name-does-not-exist"),
    ],
)
def test_a_refusal_has_the_realms_code_and_a_fitting_status(
    web: Web,
    session: penstock.Session,
    method: str,
    path: str,
    body: object,
    status: int,
    code: str,
) -> None:
    session.channels.create("taken")

    reply = web.ask(method, path, body)

    assert (reply.status, reply.code) == (status, code)
    assert reply.reason
