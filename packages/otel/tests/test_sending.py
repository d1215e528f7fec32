"""A collector that fails, blocks or comes back does not disturb the realm that sends to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

import penstock
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_otel import realm_telemetry
from penstock_otel.realm_telemetry import place_of, send, send_by
from penstock_server.frontends.http.metrics import RealmCollector
from tests.patience import until

PATIENCE_S = 30.0
QUEUED_MAX = 64
"""Spans that wait for the exporter in these tests."""


class Gate:
    """The collector of a test: it blocks, fails or takes everything."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.fails = False
        self.arrived = threading.Condition()
        self.taken = 0
        """Number of transmissions that were tried."""

    def pass_through(self) -> None:
        with self.arrived:
            self.taken += 1
            self.arrived.notify_all()
        self.is_open.wait(PATIENCE_S)
        if self.fails:
            raise ConnectionError("the collector is away")

    def wait_for(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.taken >= count, PATIENCE_S)


class Metrics(MetricExporter):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def export(self, *_: object, **__: object) -> MetricExportResult:
        self._gate.pass_through()
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        return


class Spans(SpanExporter):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.count = 0
        """Number of spans that have arrived."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._gate.pass_through()
        self.count += len(spans)
        return SpanExportResult.SUCCESS


class Sending:
    """A realm that sends to a gate each hundredth of a second."""

    def __init__(self, realm: penstock.Realm) -> None:
        self.metrics, self.spans = Gate(), Gate()
        self.exporter = Spans(self.spans)
        self._realm = realm
        realm.loop.call(self._begin())

    async def _begin(self) -> None:
        realm = self._realm
        collector = RealmCollector(realm.running, realm.listener, (), named_max=10)
        sending = send_by(
            realm.running,
            collector,
            Metrics(self.metrics),
            spans=self.exporter,
            interval_s=0.01,
        )
        self.task = asyncio.create_task(sending)  # noqa: TID251  a test ends it

    def end(self) -> float:
        """End the sending; return the seconds that this took."""

        async def cancel() -> float:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            self.task.cancel()
            await asyncio.wait([self.task])
            return loop.time() - began_s

        return self._realm.loop.call(cancel())


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch, realm: penstock.Realm) -> Sending:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", str(QUEUED_MAX))
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setattr(realm_telemetry, "EXPORT_S", 0.05)
    monkeypatch.setattr(realm_telemetry, "SHUTDOWN_S", 0.2)
    return Sending(realm)


def publish(session: penstock.Session, count: int) -> None:
    orders = session.channels.get("orders")
    for number in range(count):
        orders.publish(b"a", properties={"n": number})


def test_a_collector_that_blocks_delays_nothing_and_what_waits_is_bounded(
    sending: Sending, session: penstock.Session
) -> None:
    session.channels.create("orders")
    publish(session, 1)
    sending.spans.wait_for(1)
    sending.metrics.wait_for(1)
    publish(session, 4 * QUEUED_MAX)
    threads = [one.name for one in threading.enumerate() if one.name == "penstock-telemetry"]
    is_running = not sending.task.done()
    end_s = sending.end()
    sending.spans.is_open.set()
    sending.metrics.is_open.set()

    assert is_running
    assert len(threads) == 1
    assert end_s < 5.0
    assert sending.exporter.count <= QUEUED_MAX + 8


def test_a_collector_that_was_away_gets_later_spans_and_metrics(
    sending: Sending, session: penstock.Session
) -> None:
    sending.spans.fails = sending.metrics.fails = True
    sending.spans.is_open.set()
    sending.metrics.is_open.set()
    session.channels.create("orders")
    publish(session, 1)
    sending.spans.wait_for(1)
    sending.metrics.wait_for(2)
    sending.spans.fails = sending.metrics.fails = False
    publish(session, 1)
    sending.metrics.wait_for(4)
    sending.end()

    assert sending.exporter.count == 1


# --- the endpoint --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "place", "sign_in"),
    [
        ("http://localhost:4318", "http://localhost:4318", ""),
        ("https://otel.example/base/", "https://otel.example/base", ""),
        ("http://ann:s%40cret@[::1]:4318", "http://[::1]:4318", "Basic YW5uOnNAY3JldA=="),
    ],
)
def test_a_password_in_the_endpoint_becomes_a_header(
    endpoint: str, place: str, sign_in: str
) -> None:
    assert place_of(endpoint) == (place, sign_in)


@pytest.mark.parametrize(
    "endpoint",
    [
        "ann:secret@localhost:4318",
        "http://ann:secret@localhost:port",
        "http://ann:secret@localhost:99999",
        "http://ann:secret@",
        "ftp://ann:secret@localhost",
        "http://ann:sec?ret@localhost:4318",
        "http://ann:secret@localhost:4318?token=secret",
    ],
)
def test_an_endpoint_that_is_no_url_is_refused_without_its_password(endpoint: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        place_of(endpoint)

    assert "telemetry.endpoint is" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "sec?ret" not in str(refused.value)


def test_no_log_shows_the_password_of_the_endpoint(
    realm: penstock.Realm,
    session: penstock.Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(realm_telemetry, "SHUTDOWN_S", 0.2)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    endpoint = "http://ann:secret@127.0.0.1:9"  # nothing listens there
    settings = penstock.Realm(telemetry__endpoint=endpoint, telemetry__metrics_interval_s=1.0)
    settings.close()
    caplog.set_level("DEBUG")

    async def begin() -> asyncio.Task[None]:
        sending = send(realm.running, realm.listener, settings.settings)
        return asyncio.create_task(sending)  # noqa: TID251  the test ends it

    async def end(task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])

    task = realm.loop.call(begin())
    session.channels.create("orders").publish(b"a")
    until(lambda: "127.0.0.1" in caplog.text)
    realm.loop.call(end(task))
    logged = caplog.text + "".join(capfd.readouterr())

    assert "secret" not in logged
    assert "YW5uOn" not in logged  # nor in the form of the header
