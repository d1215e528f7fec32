"""Deliveries to clients of AMQP and MQTT are spans of the realm, in the trace of the publisher."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client
import pytest
from paho.mqtt.enums import CallbackAPIVersion

import penstock
from packages.otel.tests.conftest import CURRENT, Spans, parent, parent_of
from penstock_otel.conventions import OPT_IN
from penstock_otel.realm_spans import RealmSpans

pytest.importorskip("proton", reason="python-qpid-proton is not installed: `make setup` says why")

from proton.utils import BlockingConnection

mqtt: Any = paho.mqtt.client
"""Its type information leaves out what its pages tell to use."""
PATIENCE_S = 30.0


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, realm: penstock.Realm) -> Spans:
    """The spans of the realm, by the present conventions."""
    monkeypatch.setenv(OPT_IN, CURRENT)
    recorded = Spans()
    RealmSpans(realm.running, recorded.provider).begin()
    return recorded


def test_a_link_of_amqp_has_deliveries_and_settlements(
    recorded: Spans, realm: penstock.Realm
) -> None:
    with realm.connect() as session:
        session.queues.create("work").push(b"a", properties={"traceparent": parent(7)})
    connection = BlockingConnection(realm.listen_amqp(), timeout=PATIENCE_S)
    receiver = connection.create_receiver("work", credit=1)
    receiver.receive()
    receiver.accept()
    connection.close()

    assert parent_of(recorded.one("deliver work")) == 7
    assert parent_of(recorded.one("ack work")) == 7


@contextmanager
def subscribed(url: str, *, is_durable: bool) -> Iterator[queue.Queue[Any]]:
    """The messages of a client of MQTT; a durable one has a session."""
    messages: queue.Queue[Any] = queue.Queue()
    ready: queue.Queue[None] = queue.Queue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "reader", clean_session=not is_durable)
    client.on_connect = lambda *_: client.subscribe("traces", qos=1)
    client.on_subscribe = lambda *_: ready.put(None)
    client.on_message = lambda _, __, message: messages.put(message)
    client.connect("127.0.0.1", int(url.rpartition(":")[2]))
    client.loop_start()
    ready.get(timeout=PATIENCE_S)
    yield messages
    client.disconnect()
    client.loop_stop()


@pytest.mark.parametrize("is_durable", [False, True], ids=["live", "durable"])
def test_a_subscription_of_mqtt_has_deliveries(
    recorded: Spans, realm: penstock.Realm, is_durable: bool
) -> None:
    properties = {"topic": "traces", "traceparent": parent(7)}
    with (
        subscribed(realm.listen_mqtt(), is_durable=is_durable) as messages,
        realm.connect() as session,
    ):
        session.channels.get("mqtt").publish(b"a", properties=properties)
        messages.get(timeout=PATIENCE_S)
    deliveries = recorded.named("deliver mqtt")

    assert deliveries
    assert {parent_of(span) for span in deliveries} == {7}
