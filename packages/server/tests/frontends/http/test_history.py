"""The figures of the last 24 hours over HTTP."""

from __future__ import annotations

from typing import Any

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.upkeep.history import STEP_US


class Later:
    """A clock that is so many steps ahead of another one."""

    def __init__(self, clock: Clock, steps: int) -> None:
        self._clock = clock
        self._ahead_us = steps * STEP_US

    def now_us(self) -> int:
        return self._clock.now_us() + self._ahead_us

    def steady_us(self) -> int:
        return self._clock.steady_us() + self._ahead_us


def test_history_includes_samples_before_the_first_request(
    realm: penstock.Realm, web: Web, session: penstock.Session
) -> None:
    history = realm.running.history
    orders = session.channels.create("shop/orders")
    billing = orders.durables.create("billing")
    session.queues.create("work").push(b"x")
    orders.publish_many([penstock.Event(b"x")] * 4)
    for event in billing.fetch(2, timeout=5.0):
        event.ack()
    assert web.get("history")["is_kept"] is True

    history.clock = Later(history.clock, 2)  # as time passes

    of_realm, of_orders = web.get("history"), web.get("history", channel="shop/orders")
    of_billing = web.get("history", channel="shop/orders", durable="billing")
    assert sum(filter(None, of_realm["published"])) > sum(filter(None, of_orders["published"])) > 0
    assert of_realm["outstanding"][-1] == 3, "two at the durable, and one in the queue"
    assert of_orders["outstanding"][-1] == of_billing["outstanding"][-1] == 2
    assert max(filter(None, of_billing["delivery_ms"])) > 0
    assert max(filter(None, of_billing["acknowledged"])) > 0
    assert of_billing["published"] == of_billing["sync_ms"] == of_orders["sync_ms"] == []
    assert len(of_realm["sync_ms"]) == len(of_realm["delivered"])
    assert web.get("history", channel="work")["outstanding"][-1] == 1


def test_unknown_names_have_no_history(web: Web, session: penstock.Session) -> None:
    session.channels.create("orders")

    missing: list[dict[str, Any]] = [
        {"channel": "nobody"},
        {"channel": "orders", "durable": "nobody"},
    ]
    for path in missing:
        reply = web.ask("GET", "history", **path)
        assert (reply.status, reply.code) == (404, "name-does-not-exist"), path
        assert "nobody" in reply.document["error"]["message"]
    reply = web.ask("GET", "history", durable="billing")
    assert (reply.status, reply.code) == (400, "invalid-argument")
    assert "was given without a channel" in reply.document["error"]["message"]
