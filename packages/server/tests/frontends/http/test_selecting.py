"""Selectors by HTTP: what they mean, where they are wrong, what they choose."""

from __future__ import annotations

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web


@pytest.mark.spec("F4")
def test_an_invalid_selector_is_answered_with_its_error_position(web: Web) -> None:
    answer = web.send("POST", "selectors/check", {"selector": "price >"})

    assert not answer["valid"]
    assert (answer["line"], answer["column"]) == (1, 8)
    assert answer["expected"] in answer["message"]


@pytest.mark.spec("F1")
def test_a_selector_is_put_into_words_without_a_channel(web: Web) -> None:
    answer = web.send("POST", "selectors/check", {"selector": "price > 5 AND JMSPriority = 9"})

    assert answer["valid"]
    assert answer["chooses"]
    assert [
        (name_document["name"], name_document["kind"], name_document["types"])
        for name_document in answer["names"]
    ] == [
        ("price", "property", None),
        ("JMSPriority", "header", None),
    ]
    assert answer["chosen"] is None


def test_with_a_channel_matching_events_are_shown(web: Web, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    orders.publish_many([penstock.Event(properties={"price": n}) for n in range(20)])
    query = {"selector": "price > 9 OR prise > 9", "channel": "orders"}

    answer = web.send("POST", "selectors/check", query)

    assert answer["chosen"] == {
        "channel": "orders",
        "events": 20,
        "matches": 10,
        "first_ids": [10, 11, 12, 13, 14],
        "is_complete": True,
    }
    assert {name_document["name"]: name_document["types"] for name_document in answer["names"]} == {
        "price": ["int64"],
        "prise": [],
    }


def test_queues_are_looked_at_without_taking_anything(web: Web, session: penstock.Session) -> None:
    jobs = session.queues.create("jobs")
    for n in range(4):
        jobs.push(b"x", properties={"n": n})

    answer = web.send("POST", "selectors/check", {"selector": "n >= 2", "channel": "jobs"})

    assert (answer["chosen"]["matches"], answer["chosen"]["first_ids"]) == (2, [2, 3])
    assert jobs.info().events == 4


def test_a_channel_that_does_not_exist_is_an_error(web: Web) -> None:
    refused = web.ask("POST", "selectors/check", {"selector": "a = 1", "channel": "none"})

    assert (refused.status, refused.code) == (404, "name-does-not-exist")
