"""What nobody foresaw: clients are told an incident, and the log tells the rest."""

from __future__ import annotations

import re
from typing import Any, Never

import pytest
from structlog.testing import capture_logs

import penstock
from penstock.core.errors import Internal
from penstock.frontends.http.statuses import status_of
from penstock.frontends.incidents import incident, told
from penstock.runtime.realm import RunningRealm
from tests.frontends.http.asking import Web

SECRET = "/srv/realm/orders of somebody else"


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The realm cannot say what it is any more."""

    async def describe(*_: object) -> Never:
        raise KeyError(SECRET)

    monkeypatch.setattr(RunningRealm, "describe", describe)


def incident_in(text: str, logged: list[Any]) -> Any:
    """The log's entry of the incident a message names."""
    found = re.search(r"incident ([0-9a-f]{12})\b", text)
    assert found, text
    [entry] = [each for each in logged if each.get("incident") == found[1]]
    return entry


@pytest.mark.usefixtures("fault")
def test_a_native_client_is_told_an_incident_and_no_more() -> None:
    with capture_logs() as logged, penstock.Realm() as realm:
        url = realm.listen()
        with penstock.connect(url) as session, pytest.raises(Internal) as raised:
            session.info()

    assert SECRET not in str(raised.value)
    assert (raised.value.code, raised.value.retryable) == ("internal", False)
    entry = incident_in(str(raised.value), logged)
    assert (entry["event"], entry["log_level"]) == ("request.failed", "error")
    assert SECRET in str(entry["exc_info"])


@pytest.mark.usefixtures("fault")
def test_who_asks_over_http_is_told_an_incident_and_no_more() -> None:
    with capture_logs() as logged, penstock.Realm() as realm:
        reply = Web(realm.listen_http()).ask("GET", "realm")

    assert (reply.status, reply.code) == (500, "internal")
    assert SECRET.encode() not in reply.data
    entry = incident_in(reply.reason, logged)
    assert (entry["event"], entry["path"]) == ("request.failed", "/api/v1/realm")


def test_incidents_differ() -> None:
    assert incident() != incident()
    assert status_of(told("1")) == 500
