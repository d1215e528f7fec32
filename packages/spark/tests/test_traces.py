"""One trace from a publisher over HTTP, over a worker at a durable, to a batch of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from opentelemetry import propagate
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from pyspark.sql import SparkSession

import penstock
import penstock_otel
from packages.server.tests.frontends.http.asking import Web

SHOP = "shop"
PARCELS = "parcels"


class Recorded:
    """The spans of this process, in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        (span,) = (span for span in self._exporter.get_finished_spans() if span.name == name)
        return span


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """Records the sessions of this process by the present conventions."""
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "messaging")
    recorded = Recorded()
    penstock_otel.instrument(recorded.provider)
    yield recorded
    penstock_otel.uninstrument()


def publish_over_http(web: Web, tracer: Tracer) -> None:
    """A publisher in any language: it sends its span in the headers of W3C."""
    with tracer.start_as_current_span("order"):
        headers: dict[str, str] = {}
        propagate.inject(headers)
        reply = web.ask("POST", f"channels/{SHOP}/events", {"data": "a pen"}, headers=headers)
    assert reply.status == 201


def work(session: penstock.Session) -> None:
    """A worker at a durable: it takes an event, and publishes another one."""
    packing = session.channels.get(SHOP).durables.get("packing")
    parcels = session.channels.get(PARCELS)
    with packing.subscribe(timeout=30.0) as subscription:
        event = next(iter(subscription))
        with penstock_otel.processing(event):
            parcels.publish(b"a parcel with " + event.data, properties={"weight": 3})
            event.ack()


def run_batch(spark: SparkSession, url: str) -> int:
    """A batch of Spark over all parcels, in a span of the driver."""
    rows = (
        spark.read.format("penstock").option("url", url).option("channel", PARCELS).load()
    ).toArrow()
    with penstock_otel.processing(rows, store=PARCELS):
        return int(sum(rows.column("weight").to_pylist()))


def test_one_trace_from_a_publisher_over_a_worker_to_a_batch(
    spark: SparkSession,
    realm: penstock.Realm,
    client: penstock.Session,
    url: str,
    recorded: Recorded,
) -> None:
    client.channels.create(SHOP).durables.create("packing", type="shared")
    client.channels.create(PARCELS)

    publish_over_http(Web(realm.listen_http()), recorded.provider.get_tracer("publisher"))
    work(client)
    weight = run_batch(spark, url)
    order = recorded.named("order")
    steps = ("process shop", "publish parcels", "process parcels")
    chain = [order, *map(recorded.named, steps)]

    assert weight == 3
    assert len({span.context.trace_id for span in chain}) == 1
    for parent, child in pairwise(chain):
        assert child.parent is not None
        assert child.parent.span_id == parent.context.span_id, child.name
    (link,) = recorded.named("receive shop").links
    assert link.context.span_id == order.context.span_id
