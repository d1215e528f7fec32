"""Sends the metrics and spans of a realm to a collector by OTLP over HTTP. The server loads this
module if ``telemetry.endpoint`` is set.

Everything is sent by threads of OpenTelemetry's SDK, so a slow or failing collector does not delay
the realm: what it does not take in time is dropped.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from prometheus_client.core import Metric

from penstock_core.version import __version__
from penstock_otel.realm_spans import RealmSpans
from penstock_server.frontends.http.metrics import RealmCollector
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.runtime.realm import RunningRealm
from penstock_server.settings import Settings

EXPORT_S: Final = 5.0
"""Longest transmission, in seconds; then its metrics or spans are dropped."""
SHUTDOWN_S: Final = 2.0
"""Seconds that the end of the realm waits for the last transmission."""
SERIES_MAX: Final = 100_000
"""Maximum number of values of one metric. The realm bounds the channels, durables and connections
with separate metrics (``http.channels_named_max``)."""
_COUNTERS: Final = ("counter", "histogram")
"""Types of metrics whose values only grow. A histogram is sent as in Prometheus: its buckets,
count and sum are counters."""


async def send(realm: RunningRealm, listener: NativeListener, settings: Settings) -> None:
    """Send metrics and spans of a realm until cancelled."""
    endpoint = settings.telemetry.endpoint.rstrip("/")
    metrics = spans = None
    if settings.telemetry.metrics:
        metrics = OTLPMetricExporter(f"{endpoint}/v1/metrics", timeout=EXPORT_S)
    if settings.telemetry.spans:
        spans = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=EXPORT_S)
    collector = RealmCollector(realm, listener, (), named_max=settings.http.channels_named_max)
    await send_by(
        realm, collector, metrics, spans=spans, interval_s=settings.telemetry.metrics_interval_s
    )


async def send_by(
    realm: RunningRealm,
    collector: RealmCollector,
    metrics: MetricExporter | None,
    *,
    spans: SpanExporter | None,
    interval_s: float,
) -> None:
    """Send metrics and spans of a realm by these exporters until cancelled; None sends none."""
    resource = Resource.create(
        {
            "service.name": "penstock",
            "service.version": __version__,
            "service.instance.id": realm.identity,
            "penstock.realm": realm.name,
        }
    )
    ends: list[Callable[[], object]] = []
    requests = None
    if spans is not None:
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(spans))
        ends.append(tracers.shutdown)
        requests = RealmSpans(realm, tracers)
        requests.begin()
    exported = None
    if metrics is not None:
        exported = ExportedMetrics(metrics, resource)
        ends.append(exported.shutdown)
    try:
        while True:
            await asyncio.sleep(interval_s)
            if exported is not None:
                with realm.incidents.barrier("telemetry"):
                    exported.take(collector.collect())
                    await asyncio.to_thread(exported.flush)
    finally:
        if requests is not None:
            requests.end()
        await _within_time(ends)


async def _within_time(ends: Sequence[Callable[[], object]]) -> None:
    """Call functions that may block, and wait for at most ``SHUTDOWN_S``. The thread is a daemon,
    so that the process can end before they return."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        for end in ends:
            end()
        with suppress(RuntimeError):  # the loop has ended first
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=work, name="penstock-telemetry-end", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(SHUTDOWN_S):
            await done.wait()


class ExportedMetrics:
    """The metrics of a realm as instruments of OpenTelemetry, under the names and with the labels
    that Prometheus shows."""

    def __init__(self, exporter: MetricExporter, resource: Resource) -> None:
        # Without an interval: values may only be read on the thread of the realm.
        self._reader = PeriodicExportingMetricReader(
            exporter,
            export_interval_millis=math.inf,
            cardinality_limits={ObservableCounter: SERIES_MAX, ObservableGauge: SERIES_MAX},
        )
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("penstock", __version__)
        self._values: Mapping[str, Sequence[Observation]] = {}
        """The values that are sent next, by the name of the instrument."""
        self._instruments: set[str] = set()

    def take(self, families: Iterable[Metric]) -> None:
        """Replace the values that are sent next. Called on the thread of the realm."""
        values: dict[str, list[Observation]] = {}
        for family in families:
            for sample in family.samples:
                values.setdefault(sample.name, []).append(
                    Observation(float(sample.value), dict(sample.labels))
                )
                if sample.name not in self._instruments:
                    self._create(sample.name, family)
        self._values = values

    def _create(self, name: str, family: Metric) -> None:
        """Create the instrument of a metric that is collected for the first time."""
        self._instruments.add(name)
        is_counter = family.type in _COUNTERS
        create = (
            self._meter.create_observable_counter
            if is_counter
            else (self._meter.create_observable_gauge)
        )

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return self._values.get(name, ())

        create(name, [observe], unit=family.unit, description=family.documentation)

    def flush(self) -> None:
        """Send the values, and return when they are sent or dropped."""
        self._provider.force_flush(int(EXPORT_S * 1_000))

    def shutdown(self) -> None:
        """End the sending. Values that were not sent are dropped."""
        self._provider.shutdown(int(SHUTDOWN_S * 1_000))
