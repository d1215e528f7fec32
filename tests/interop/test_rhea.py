"""An unmodified rhea, the AMQP 1.0 client of Node.js."""

from __future__ import annotations

import pytest

from tests.interop.moving import MovingCluster
from tests.interop.programs import InteropRealm, Tell, Whole, run_node

TESTS = 21


@pytest.mark.slow
@pytest.mark.process
def test_rhea(amqp: str, run_suite: Whole, tell: Tell) -> None:
    outcome = run_suite(lambda names: run_node("rhea", "suite.mjs", amqp, *names), [])

    tell("rhea", outcome)
    assert str(outcome) == f"{TESTS} of {TESTS} pass"
    assert outcome.ignored == 0


@pytest.mark.slow
@pytest.mark.process
def test_rhea_inside_a_websocket(realm: InteropRealm, tell: Tell) -> None:
    if isinstance(realm, MovingCluster):
        pytest.skip("a node that does not serve opens no WebSocket")
    url = realm.http_url.replace("http", "ws").rstrip("/") + "/ws"

    outcome = run_node("rhea", "websocket.mjs", url)

    tell("rhea, WebSocket", outcome)
    assert str(outcome) == "1 of 1 pass"
