"""Unexpected errors: clients get the number of an incident, and the log has the details."""

from __future__ import annotations

import re
from typing import Any, Never

import pytest
from structlog.testing import capture_logs

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.vocabulary.errors import Internal
from penstock_server.frontends.http.live import Viewer
from penstock_server.frontends.http.statuses import status_of
from penstock_server.runtime.access.internal_errors import as_internal_error, new_incident_id
from penstock_server.runtime.access.open_connections import OpenConnections

SECRET = "/srv/realm/orders of somebody else"


class Uncountable(OpenConnections):
    """Connections that make the realm unable to say what it is."""

    def __len__(self) -> int:
        raise KeyError(SECRET)


def incident_in(text: str, logged: list[Any]) -> Any:
    """The log's entry of the incident a message names."""
    incident = re.search(r"incident ([0-9a-f]{12})\b", text)
    assert incident, text
    [entry] = [
        logged_entry for logged_entry in logged if logged_entry.get("incident") == incident[1]
    ]
    return entry


def test_a_native_client_gets_only_an_incident_id() -> None:
    with capture_logs() as logged, penstock.Realm() as realm:
        realm.running.connections = Uncountable()
        url = realm.listen()
        with penstock.connect(url) as session, pytest.raises(Internal) as raised:
            session.info()

    assert SECRET not in str(raised.value)
    assert (raised.value.code, raised.value.retryable) == ("internal", False)
    entry = incident_in(str(raised.value), logged)
    assert (entry["event"], entry["log_level"]) == ("request.failed", "error")
    assert SECRET in str(entry["exc_info"])


def test_an_http_client_gets_only_an_incident_id() -> None:
    with capture_logs() as logged, penstock.Realm() as realm:
        realm.running.connections = Uncountable()
        reply = Web(realm.listen_http()).ask("GET", "realm")

    assert (reply.status, reply.code) == (500, "internal")
    assert SECRET.encode() not in reply.data
    entry = incident_in(reply.reason, logged)
    assert (entry["event"], entry["path"]) == ("request.failed", "/api/v1/realm")


def test_incidents_differ() -> None:
    assert new_incident_id() != new_incident_id()
    assert status_of(as_internal_error("1")) == 500


def fail(*_: object) -> Never:
    raise KeyError(SECRET)


def test_an_http_viewer_gets_only_an_incident_id_and_other_viewers_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Viewer, "deliver", fail)
    with capture_logs() as logged, penstock.Realm() as realm, realm.connect() as session:
        web = Web(realm.listen_http())
        orders = session.channels.create("orders")
        orders.publish(b"x")
        with web.watching("channels/orders/live", start="earliest") as events:
            name, detail = next(events)
        with orders.subscribe(start="earliest", timeout=10) as subscription:
            batch = subscription.next_batch()

    assert (name, detail["code"]) == ("end", "internal")
    assert SECRET not in detail["message"]
    assert incident_in(detail["message"], logged)["event"] == "delivery.failed"
    assert batch is not None
    assert [event.data for event in batch] == [b"x"]


def test_a_link_of_amqp_ends_with_an_incident_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("penstock_amqp.engine", reason="AMQP is not installed")
    from proton import Message
    from proton.utils import LinkDetached

    from packages.amqp.tests.clients import WAIT_S, Client, texts
    from penstock_amqp.consumers import Consumer

    monkeypatch.setattr(Consumer, "deliver", fail)
    with capture_logs() as logged, penstock.Realm() as realm, realm.connect() as session:
        with Client(realm.listen_amqp()) as client:
            client.sender("jobs").send(Message(body="a"))
            with pytest.raises(LinkDetached, match=r"internal-error.*incident") as ended:
                client.receiver("jobs").receive(WAIT_S)
            monkeypatch.undo()
            assert texts(client.receiver("jobs"), 1) == ["a"]  # it went back
        assert session.queues.get("jobs").info().events == 0

    assert SECRET not in str(ended.value)
    assert incident_in(str(ended.value), logged)["event"] == "delivery.failed"
