"""An unmodified rhea, the AMQP 1.0 client of Node.js."""

from __future__ import annotations

import pytest

from tests.interop.moving import MovingCluster
from tests.interop.programs import InteropRealm, Tell, Whole, run_node

TESTS = 21


@pytest.mark.slow
@pytest.mark.process
def test_rhea(amqp: str, whole: Whole, tell: Tell) -> None:
    found = whole(lambda names: run_node("rhea", "suite.mjs", amqp, *names), [])

    tell("rhea", found)
    assert str(found) == f"{TESTS} of {TESTS} pass"
    assert found.ignored == 0


@pytest.mark.slow
@pytest.mark.process
def test_rhea_inside_a_websocket(realm: InteropRealm, tell: Tell) -> None:
    if isinstance(realm, MovingCluster):
        pytest.skip("a node that does not serve opens no WebSocket")
    url = realm.http_url.replace("http", "ws").rstrip("/") + "/ws"

    found = run_node("rhea", "websocket.mjs", url)

    tell("rhea, WebSocket", found)
    assert str(found) == "1 of 1 pass"
