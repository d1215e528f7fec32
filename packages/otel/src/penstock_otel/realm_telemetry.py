"""Sends the metrics and spans of a realm to a collector by OTLP over HTTP. The server loads this
module if ``telemetry.endpoint`` is set.

Everything is sent by threads of OpenTelemetry's SDK, so a slow or failing collector does not delay
the realm: what it does not take in time is dropped.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_HEADERS,
    OTEL_EXPORTER_OTLP_METRICS_HEADERS,
    OTEL_EXPORTER_OTLP_TRACES_HEADERS,
)
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.util.re import parse_env_headers
from prometheus_client.core import Metric

from penstock_core.version import __version__
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.uris import shown
from penstock_otel.realm_spans import RealmSpans
from penstock_server.frontends.http.metrics import RealmCollector
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.runtime.realm import RunningRealm
from penstock_server.settings import Settings

EXPORT_S: Final = 5.0
"""Longest transmission, in seconds; then its metrics or spans are dropped."""
SHUTDOWN_S: Final = 2.0
"""Seconds that the end of the realm waits for the last transmission."""
TASK: Final = "telemetry"
"""Name of the task in incidents."""
SERIES_MAX: Final = 100_000
"""Maximum number of values of one metric. The realm bounds the channels, durables and connections
with separate metrics (``http.channels_named_max``)."""
_COUNTERS: Final = ("counter", "histogram")
"""Types of metrics whose values only grow. A histogram is sent as in Prometheus: its buckets,
count and sum are counters."""


async def send(realm: RunningRealm, listener: NativeListener, settings: Settings) -> None:
    """Send metrics and spans of a realm until cancelled. Raises ``InvalidArgument`` if the endpoint
    is not a URL."""
    endpoint, sign_in = place_of(settings.telemetry.endpoint)
    metrics = spans = None
    if settings.telemetry.metrics:
        headers = _headers(OTEL_EXPORTER_OTLP_METRICS_HEADERS, sign_in)
        metrics = OTLPMetricExporter(f"{endpoint}/v1/metrics", headers=headers, timeout=EXPORT_S)
    if settings.telemetry.spans:
        headers = _headers(OTEL_EXPORTER_OTLP_TRACES_HEADERS, sign_in)
        spans = OTLPSpanExporter(f"{endpoint}/v1/traces", headers=headers, timeout=EXPORT_S)
    collector = RealmCollector(realm, listener, (), named_max=settings.http.channels_named_max)
    await send_by(
        realm, collector, metrics, spans=spans, interval_s=settings.telemetry.metrics_interval_s
    )


def place_of(endpoint: str) -> tuple[str, str]:
    """Return the URL of a collector without user and password, which OpenTelemetry may log, and the
    value of the header ``authorization`` with them; empty without a user.

    Raises ``InvalidArgument`` if the endpoint is not a URL of HTTP.
    """
    url = _split(endpoint)
    if url is None:
        # Without a scheme, a user and a password cannot be told from the rest.
        place = shown(endpoint) if "://" in endpoint else "not a URL"
        raise InvalidArgument(
            f"telemetry.endpoint is {place}; allowed is the URL of a collector, such as "
            "http://localhost:4318"
        )
    sign_in, _, address = url.netloc.rpartition("@")
    place = f"{url.scheme}://{address}{url.path}".rstrip("/")
    encoded = b64encode(unquote(sign_in).encode()).decode()
    return place, f"Basic {encoded}" if sign_in else ""


def _split(endpoint: str) -> SplitResult | None:
    """Return the parts of a URL of HTTP; None if it is none."""
    try:
        url = urlsplit(endpoint)
        has_place = url.hostname and url.port != 0
    except ValueError:
        return None
    is_place = has_place and not url.query and not url.fragment
    return url if is_place and url.scheme in ("http", "https") else None


def _headers(variable: str, sign_in: str) -> dict[str, str] | None:
    """Return the headers for the collector; None if OpenTelemetry may take them from the
    environment itself."""
    if not sign_in:
        return None
    text = os.environ.get(variable) or os.environ.get(OTEL_EXPORTER_OTLP_HEADERS, "")
    return {**parse_env_headers(text, liberal=True), "authorization": sign_in}


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
    exported = flushing = None
    if metrics is not None:
        exported = ExportedMetrics(metrics, resource)
        ends.append(exported.shutdown)
    try:
        while True:
            await asyncio.sleep(interval_s)
            if requests is not None:
                requests.close_incident()
            # A collector may keep a transmission open for ever; the next one waits for its end.
            if exported is not None and (flushing is None or not flushing.is_alive()):
                with realm.incidents.barrier(TASK):
                    exported.take(collector.collect())
                    flushing = await _within_time([exported.flush], EXPORT_S)
    finally:
        if requests is not None:
            requests.end()
        with realm.incidents.barrier(TASK):
            await _within_time(ends, SHUTDOWN_S)


async def _within_time(calls: Sequence[Callable[[], object]], timeout_s: float) -> threading.Thread:
    """Call functions that may block in a thread, wait for their end for at most ``timeout_s``, and
    return the thread. Raises the error of the first one that fails.

    The thread is a daemon, so that the process can end before the functions return.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def end(error: Exception | None) -> None:
        if done.done():  # the time is over
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def work() -> None:
        error: Exception | None = None
        for call in calls:
            try:
                call()
            except Exception as failure:  # noqa: BLE001  raised to the caller
                error = error or failure
        with suppress(RuntimeError):  # the loop has ended first
            loop.call_soon_threadsafe(end, error)

    thread = threading.Thread(target=work, name="penstock-telemetry", daemon=True)
    thread.start()
    await asyncio.wait([done], timeout=timeout_s)
    if done.done():
        done.result()
    done.cancel()
    return thread


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
