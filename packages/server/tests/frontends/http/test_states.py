"""Merge channels by HTTP: the state of one key."""

from __future__ import annotations

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web


@pytest.fixture
def rates(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("rates", engine="merge", keys={"ccy": 1})


@pytest.mark.spec("K2", "K5")
def test_the_state_of_a_key_is_the_result_of_its_events(web: Web, rates: penstock.Channel) -> None:
    rates.register("EUR", bid=1.0, ask=2.0).update(ask=5.0)
    rates.register("USD", bid=1.5)

    state = web.get("channels/rates/state", key="EUR")

    assert state["properties"] == {"ccy": "EUR", "bid": 1.0, "ask": 5.0}
    assert (state["event_id"], state["found_in"]) == (1, "rates")
    assert web.get("channels/rates/state", key="EUR", as_of=2) == state
    expected_state = rates.state("EUR")
    assert (state["event_id"], state["properties"]) == (
        expected_state.event_id,
        expected_state.properties,
    )


@pytest.mark.spec("K5")
def test_a_state_that_a_later_event_has_changed_is_refused(
    web: Web, rates: penstock.Channel
) -> None:
    rates.register("EUR", ask=2.0).update(ask=5.0)

    refused = web.ask("GET", "channels/rates/state?key=EUR&as_of=0")

    assert (refused.status, refused.code) == (400, "invalid-argument")
    assert "has its state as of event 1" in refused.reason


def test_a_key_is_of_the_type_it_looks_like_or_is_said_to_be(
    web: Web, rates: penstock.Channel
) -> None:
    rates.register(7, kind="number")
    rates.register("7", kind="text")
    rates.register(True, kind="bool")  # noqa: FBT003 - positional-only

    assert web.get("channels/rates/state", key="7")["properties"]["kind"] == "number"
    assert web.get("channels/rates/state", key="7.0")["properties"]["kind"] == "number"
    assert web.get("channels/rates/state", key="true")["properties"]["kind"] == "bool"
    text = web.get("channels/rates/state", key="7", type="string")
    assert text["properties"]["kind"] == "text"
    refused = web.ask("GET", "channels/rates/state?key=EUR&type=int")
    assert (refused.status, refused.code) == (400, "invalid-argument")


def test_keys_without_a_state_and_channels_without_keys_say_so(
    web: Web, session: penstock.Session, rates: penstock.Channel
) -> None:
    session.channels.create("orders")
    rates.register("EUR", ask=2.0)

    assert web.ask("GET", "channels/rates/state?key=USD").code == "name-does-not-exist"
    assert web.ask("GET", "channels/orders/state?key=EUR").code == "illegal-state"
    assert web.ask("GET", "channels/rates/state").code == "invalid-argument"
    rates.purge()
    assert web.ask("GET", "channels/rates/state?key=EUR").code == "name-does-not-exist"
    rates.register("EUR", bid=1.0)
    assert web.get("channels/rates/state", key="EUR")["properties"] == {"ccy": "EUR", "bid": 1.0}
