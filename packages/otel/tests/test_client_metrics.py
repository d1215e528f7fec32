"""Sessions record the metrics of the conventions: durations of operations, and counts of events."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import penstock
import penstock.aio
import penstock_otel
from penstock_otel.client_metrics import BOUNDS_S, NAMES_MAX, ClientMetrics
from penstock_otel.conventions import MessagingOperation
from tests.loops import on_a_loop

PATIENCE_S = 30.0
DURATION = "messaging.client.operation.duration"
SENT = "messaging.client.sent.messages"
CONSUMED = "messaging.client.consumed.messages"
PROCESSED = "messaging.process.duration"


class Measured:
    """The metrics of a test, and the provider that makes them."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def points(self, name: str) -> list[Any]:
        """The values of a metric."""
        data = self._reader.get_metrics_data()
        scopes = [] if data is None else data.resource_metrics[0].scope_metrics
        metrics = [metric for scope in scopes for metric in scope.metrics if metric.name == name]
        return [point for metric in metrics for point in metric.data.data_points]

    def counts(self, name: str) -> Mapping[str, int]:
        """The values of a counter, or the number of measurements of a histogram, by operation."""
        return {
            point.attributes["messaging.operation.name"]: getattr(point, "value", None)
            or point.count
            for point in self.points(name)
        }


@pytest.fixture
def measured() -> Iterator[Measured]:
    """The metrics of the sessions of a test."""
    measured = Measured()
    penstock_otel.instrument(meter_provider=measured.provider)
    yield measured
    penstock_otel.uninstrument()


def test_the_blocking_client_records_all_metrics(
    measured: Measured, session: penstock.Session
) -> None:
    orders = session.channels.create("orders")
    billing = orders.durables.create("billing", type="shared")
    orders.publish(b"a")
    orders.publish_many([penstock.Event(b"b"), penstock.Event(b"c")])
    for event in billing.fetch(3, timeout=PATIENCE_S):
        with penstock_otel.processing(event):
            event.ack()
    billing.close()

    durations = measured.counts(DURATION)
    assert (durations["publish"], durations["receive"]) == (2, 1)
    assert durations["ack"] >= 1
    assert measured.counts(SENT) == {"publish": 3}
    assert measured.counts(CONSUMED) == {"receive": 3}
    assert measured.counts(PROCESSED) == {"process": 3}


@on_a_loop
async def test_the_asynchronous_client_records_them_too(
    measured: Measured, realm: penstock.Realm
) -> None:
    async with await penstock.aio.connect(realm.listen()) as session:
        orders = await session.channels.create("orders")
        await orders.publish(b"a")
        async with orders.subscribe(start="earliest", timeout=PATIENCE_S) as subscription:
            async for event in subscription:
                with penstock_otel.processing(event):
                    break
    (sent,) = measured.points(SENT)
    port = sent.attributes["server.port"]

    assert dict(sent.attributes) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    assert measured.counts(CONSUMED) == {"receive": 1}
    assert measured.counts(DURATION) == {"publish": 1, "receive": 1}
    assert measured.points(DURATION)[0].explicit_bounds == BOUNDS_S
    assert measured.counts(PROCESSED) == {"process": 1}


def test_a_handler_consumes_and_processes(measured: Measured, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    billing = orders.durables.create("billing")
    done = threading.Event()
    with billing.subscribe(lambda _: done.set(), auto_ack=True):
        orders.publish(b"a")
        assert done.wait(PATIENCE_S)
    (consumed,) = measured.points(CONSUMED)

    assert consumed.value == 1
    assert consumed.attributes["messaging.consumer.group.name"] == "billing"
    assert measured.counts(PROCESSED) == {"process": 1}


def test_failures_have_their_error(measured: Measured, session: penstock.Session) -> None:
    full = session.channels.create("full", capacity=1, storage={"honour_capacity": True})
    full.publish(b"a")
    with pytest.raises(penstock.CapacityReached):
        full.publish(b"b")
    with pytest.raises(ValueError, match="odd"), penstock_otel.processing(penstock.Event()):
        raise ValueError("odd")
    errors = [
        point.attributes.get("error.type")
        for name in (DURATION, SENT, PROCESSED)
        for point in measured.points(name)
    ]

    assert errors == [None, "capacity-reached", None, "capacity-reached", "ValueError"]


def test_names_in_attributes_are_bounded() -> None:
    measured = Measured()
    metrics = ClientMetrics(measured.provider)
    for number in range(NAMES_MAX + 50):
        metrics.ended(MessagingOperation("publish", "send", f"user-{number}"), 0.001, 1)
    names = {point.attributes.get("messaging.destination.name") for point in measured.points(SENT)}

    assert len(names) == NAMES_MAX + 1
    assert None in names


def test_no_attribute_is_an_id(measured: Measured, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    for _ in range(20):
        orders.publish(b"a")
    (point,) = measured.points(SENT)

    assert point.value == 20
    assert not [name for name in point.attributes if name.endswith(".id")]
