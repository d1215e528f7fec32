"""The environment chooses the version of the conventions."""

from __future__ import annotations

import pytest
from opentelemetry.trace import SpanKind

import penstock
import penstock_otel
from packages.otel.tests.conftest import Spans
from penstock_otel.conventions import OPT_IN, Conventions, MessagingOperation, chosen

RECEIVE = MessagingOperation(
    "receive", "receive", "orders", durable="billing", session_id="s1", host="h", port=9000
)
PUBLISH = RECEIVE._replace(name="publish", type="send", durable="")


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        ("", True, False),
        ("http,database/dup", True, False),
        ("messaging", False, True),
        ("http, messaging ", False, True),
        ("messaging/dup", True, True),
        ("messaging,messaging/dup", True, True),
    ],
)
def test_the_environment_chooses(
    monkeypatch: pytest.MonkeyPatch, value: str, old: bool, new: bool
) -> None:
    monkeypatch.setenv(OPT_IN, value)

    assert chosen() == Conventions(old=old, new=new)


def test_old_names() -> None:
    conventions = Conventions(old=True, new=False)

    assert conventions.span_name(PUBLISH) == "orders publish"
    assert conventions.kind(RECEIVE) is SpanKind.CONSUMER
    assert conventions.attributes(PUBLISH) == {
        "messaging.system": "penstock",
        "messaging.destination.name": "orders",
        "messaging.operation": "publish",
        "messaging.client_id": "s1",
        "server.address": "h",
        "server.port": 9000,
    }


def test_both_names_together() -> None:
    old, new = Conventions(old=True, new=False), Conventions(old=False, new=True)
    duplicated = Conventions(old=True, new=True)

    assert duplicated.span_name(RECEIVE) == new.span_name(RECEIVE) == "receive orders"
    assert duplicated.kind(RECEIVE) is new.kind(RECEIVE) is SpanKind.CLIENT
    assert duplicated.attributes(RECEIVE) == old.attributes(RECEIVE) | new.attributes(RECEIVE)


def test_a_program_without_the_variable_has_old_names(
    monkeypatch: pytest.MonkeyPatch, session: penstock.Session
) -> None:
    monkeypatch.delenv(OPT_IN, raising=False)
    spans = Spans()
    penstock_otel.instrument(spans.provider)
    try:
        session.channels.create("orders").publish(b"a")
    finally:
        penstock_otel.uninstrument()

    assert (spans.one("orders publish").attributes or {})["messaging.operation"] == "publish"
