"""A wrong argument over HTTP is named as the caller knows it: by its parameter or its field."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Reply, Web

ORDERS = "channels/orders"
EVENTS = f"{ORDERS}/events"


def refused(reply: Reply) -> str:
    """Why a request was refused, as an error about an argument."""
    assert (reply.status, reply.code) == (400, "invalid-argument"), reply.data
    return reply.reason


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"limit": "many"}, "limit must be an integer or null, not 'many'"),
        ({"newest": "perhaps"}, "newest must be true or false, not 'perhaps'"),
        ({"limit": 0}, "limit must be at least 1, not '0'"),
        ({"end": 1 << 63}, f"end must be at most {(1 << 63) - 1}, not '{1 << 63}'"),
        (
            {"limt": 1},
            "the query has no field 'limt'; there are start, end, selector, limit, after, "
            "columns, data_bytes, newest, format",
        ),
    ],
)
def test_a_wrong_parameter_of_a_query_is_named(
    web: Web, session: penstock.Session, query: dict[str, Any], reason: str
) -> None:
    session.channels.create("orders")

    assert refused(web.ask("GET", EVENTS, **query)) == reason


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        ("POST", "channels", {}, "the body needs the field 'name', which is missing"),
        ("POST", "channels", [], "the body must be an object, not a list"),
        ("POST", "channels", b"{", "the body ends too early"),
        ("POST", "channels", {"name": 7}, "name must be a string, not 7"),
        (
            "POST",
            "channels",
            {"name": "new", "capacity": 1},
            "the body has no field 'capacity'; there are name, attributes",
        ),
        (
            "POST",
            "channels",
            {"name": "new", "attributes": {"capacity": "many"}},
            "attributes.capacity must be an integer, not 'many'",
        ),
        (
            "PATCH",
            ORDERS,
            {"retain_consumed": "yes"},
            "retain_consumed must be true or false, not 'yes'",
        ),
        ("PATCH", ORDERS, {"ttl": -5}, "ttl is -5; allowed are 0 to 1125899906842624"),
        (
            "POST",
            f"{ORDERS}/durables",
            {"name": "d", "max_deliveries": -1},
            "max_deliveries must be at least 0, not -1",
        ),
        ("POST", EVENTS, {"data": 3}, "data must be a string, not 3"),
        ("POST", EVENTS, {"priority": 12}, "priority must be at most 9, not 12"),
        (
            "POST",
            EVENTS,
            {"ttl": (1 << 63) - 1},
            "ttl must be at most 1125899906842624, not 9223372036854775807",
        ),
        ("POST", EVENTS, {"events": []}, "events must have at least 1 entry"),
        (
            "POST",
            EVENTS,
            {"events": [{"ttl": 1}, {"ttl": "long"}]},
            "events[1].ttl must be an integer or null, not 'long'",
        ),
        (
            "POST",
            EVENTS,
            {"date": "x"},
            "the body has no field 'date'; there are data, data_base64, tag, properties, types, "
            "headers, ttl, priority, persistent, transient, is_delta, deliver_at, message",
        ),
        ("POST", EVENTS, b"{", "the body ends too early"),
        ("POST", EVENTS, b'{"tag": "\xc1"}', "the body must be UTF-8 (invalid start byte"),
    ],
)
def test_a_wrong_field_of_a_body_is_named_and_nothing_is_done(
    web: Web, session: penstock.Session, method: str, path: str, body: Any, reason: str
) -> None:
    orders = session.channels.create("orders")
    before = orders.info()

    reply = web.ask(method, path, body, headers={"content-type": "application/json"})

    assert refused(reply).startswith(reason)
    assert session.channels.list() == ["orders"]
    assert orders.info().definition == before.definition
    assert orders.info().counters.published == 0
    assert orders.durables.list() == []
