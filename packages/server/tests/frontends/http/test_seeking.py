"""Durables that go back and forward, by HTTP."""

from __future__ import annotations

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web

pytestmark = pytest.mark.spec("D20")

SEEK = "channels/orders/durables/billing/seek"


@pytest.fixture
def billing(session: penstock.Session) -> penstock.Durable:
    """Return a durable that has acknowledged three of four events; all four stay."""
    orders = session.channels.create("orders", retain_consumed=True)
    billing = orders.durables.create("billing")
    orders.publish_many([penstock.Event()] * 4)
    for event in billing.fetch(3, timeout=30):
        event.ack()
    billing.flush()
    billing.close()
    return billing


def test_a_preview_tells_and_changes_nothing(web: Web, billing: penstock.Durable) -> None:
    preview = web.get(f"{SEEK}?to=1")

    assert preview == {
        "position": 1,
        "again": 2,
        "skipped": 0,
        "taken_back": 0,
        "outstanding": 3,
        "gone": {},
    }
    assert billing.info().outstanding == 1


@pytest.mark.parametrize(
    ("to", "outstanding"), [("earliest", 4), ("latest", 0), ("2", 2), ("2013-01-01T09:00:00Z", 4)]
)
def test_it_goes_to_any_place(
    web: Web, billing: penstock.Durable, to: str, outstanding: int
) -> None:
    assert web.send("POST", SEEK, {"to": to})["outstanding"] == outstanding
    assert billing.info().outstanding == outstanding


def test_repeated_under_its_key_it_is_not_done_again(web: Web, billing: penstock.Durable) -> None:
    first = web.send("POST", SEEK, {"to": "latest", "key": "once"})
    with_new = billing.info()
    again = web.send("POST", SEEK, {"to": "earliest", "key": "once"})

    assert again["position"] == first["position"] == 4
    assert again["skipped"] == first["skipped"] == 1
    assert billing.info().outstanding == with_new.outstanding == 0


@pytest.mark.parametrize(
    ("to", "code", "said"),
    [
        ("1", "illegal-state", "event 1 of orders is not stored (purged)"),
        ("77", "invalid-argument", "event 77 of orders does not exist yet"),
        ("soon", "invalid-argument", "'soon' is not a start position"),
    ],
)
def test_invalid_seeks_are_refused(
    web: Web, session: penstock.Session, billing: penstock.Durable, to: str, code: str, said: str
) -> None:
    session.channels.get("orders").purge(start=1, end=1)

    for refused in (web.ask("POST", SEEK, {"to": to}), web.ask("GET", f"{SEEK}?to={to}")):
        assert refused.code == code
        assert said in refused.reason
