"""A realm sends its metrics, and a span for each request, while it is served."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_testing.process import ServerProcess

PATIENCE_S = 60.0
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

pytestmark = [pytest.mark.process, pytest.mark.slow]


class Collector:
    """Takes OTLP over HTTP."""

    def __init__(self, status: int = 200) -> None:
        self.arrived = threading.Condition()
        self.requests: list[tuple[str, bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    data = gzip.decompress(data)
                with collector.arrived:
                    collector.requests.append((self.path, data))
                    collector.arrived.notify_all()
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def spans(self) -> list[Any]:
        """All spans so far."""
        spans = []
        for path, data in list(self.requests):
            if path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                    spans += [span for scope in resource.scope_spans for span in scope.spans]
        return spans

    def metrics(self) -> Mapping[str, Any]:
        """The newest value of each metric, by name."""
        metrics: dict[str, Any] = {}
        for path, data in list(self.requests):
            if path == "/v1/metrics":
                for resource in ExportMetricsServiceRequest.FromString(data).resource_metrics:
                    for scope in resource.scope_metrics:
                        metrics |= {metric.name: metric for metric in scope.metrics}
        return metrics

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.arrived:
            assert self.arrived.wait_for(condition, PATIENCE_S), "it did not arrive in time"


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def options(url: str) -> Mapping[str, str]:
    return {
        "PENSTOCK_TELEMETRY_ENDPOINT": url,
        "PENSTOCK_TELEMETRY_METRICS_INTERVAL_S": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_SEMCONV_STABILITY_OPT_IN": "messaging",
    }


def names_shown(web: Web) -> set[str]:
    """The names of all samples that Prometheus sees."""
    text = web.ask("GET", "/metrics").data.decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.partition("{")[0].partition(" ")[0] for line in lines}


def published_in(collector: Collector) -> float:
    """The number of events published to the channel, by the newest metrics; 0 before these."""
    metric = collector.metrics().get("penstock_published_total")
    points = () if metric is None else metric.sum.data_points
    values = [
        float(point.as_double)
        for point in points
        if any(label.value.string_value == "orders" for label in point.attributes)
    ]
    return sum(values)


def test_a_realm_sends_all_its_metrics_and_a_span_for_each_request(
    tmp_path: Path, collector: Collector
) -> None:
    environment = options(collector.url)
    arguments = ("--http", "--http-port", "0")
    with ServerProcess(tmp_path, *arguments, environment=environment) as server:
        web = Web(server.http_url)
        with penstock.connect(server.url) as session:
            orders = session.channels.create("orders")
            billing = orders.durables.create("billing", type="shared")
            orders.publish(b"a", properties={"traceparent": PARENT})
            orders.publish_many([penstock.Event(b"b"), penstock.Event(b"c")])
            (event,) = billing.fetch(1, timeout=PATIENCE_S)
            event.ack()
            billing.close()
        fetched = web.send(
            "POST", "channels/orders/durables/billing/fetch", {"count": 5, "lease_ms": 60_000}
        )
        shown = {name for name in names_shown(web) if not name.startswith("process_")}
        collector.wait_for(lambda: published_in(collector) == 3.0)
        collector.wait_for(lambda: "fetch orders" in {span.name for span in collector.spans()})
        assert server.terminate() == 0
    spans = {span.name: span for span in reversed(collector.spans())}
    metrics = collector.metrics()
    ids = PARENT.split("-")

    assert shown <= metrics.keys()
    assert len(fetched["items"]) == 2
    assert {"publish orders", "ack orders", "fetch orders"} <= spans.keys()
    publish = spans["publish orders"]
    assert publish.kind == publish.SPAN_KIND_SERVER
    assert (publish.trace_id.hex(), publish.parent_span_id.hex()) == (ids[1], ids[2])
    assert metrics["penstock_published_total"].sum.is_monotonic
    assert not server.logged("task.failed")


@pytest.mark.parametrize("status", [503, None], ids=["refuses", "is not there"])
def test_a_collector_that_fails_does_no_harm(tmp_path: Path, status: int | None) -> None:
    collector = Collector(status or 200)
    if status is None:
        collector.close()
    with ServerProcess(tmp_path, environment=options(collector.url)) as server:
        with penstock.connect(server.url) as session:
            orders = session.channels.create("orders")
            for number in range(100):
                assert orders.publish(b"a") == number
            if status is not None:
                collector.wait_for(lambda: len(collector.requests) > 1)
            assert orders.publish(b"a") == 100
        assert server.terminate() == 0
    if status is not None:
        collector.close()


def test_a_realm_without_an_endpoint_loads_nothing_of_it(tmp_path: Path) -> None:
    code = (
        "import sys, penstock\n"
        "with penstock.Realm() as realm, realm.connect() as session:\n"
        "    session.channels.create('orders').publish(b'a')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=PATIENCE_S)
