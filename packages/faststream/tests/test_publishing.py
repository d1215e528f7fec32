"""Messages that programs publish on a realm, requests, routers, and the AsyncAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from faststream import AsyncAPI
from faststream.exceptions import IncorrectState
from faststream.nats.broker.router import NatsRouter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import penstock
from packages.faststream.tests.handlers import Order, broker_at, running, until
from penstock_faststream import (
    DurableSub,
    PenstockMessage,
    PenstockPublisher,
    PenstockResponse,
    PenstockRoute,
    PenstockRouter,
)
from penstock_faststream.opentelemetry import PenstockTelemetryMiddleware
from penstock_faststream.prometheus import PenstockPrometheusMiddleware
from tests.loops import on_a_loop


@on_a_loop
async def test_a_message_is_an_event_with_its_attributes(
    url: str, session: penstock.Session, name: str
) -> None:
    channel = session.channels.create(name)
    async with broker_at(url) as broker:
        first = await broker.publish(
            b"raw",
            name,
            headers={"price": 9.5},
            correlation_id="c-1",
            reply_to="answers",
            tag="new",
            ttl="1h",
            priority=9,
        )
        later = await broker.publish("later", name, deliver_at="10m")
    (event,) = channel.browse()

    assert (first, event.event_id, event.data) == (0, 0, b"raw")
    assert (event.tag, event.ttl, event.priority) == ("new", 3_600_000, 9)
    assert event.properties == {"price": 9.5}
    assert event.headers["correlation_id"] == "c-1"
    assert event.headers["reply_to"] == "answers"
    assert [entry.number for entry in channel.scheduled.list()] == [later]


@on_a_loop
async def test_a_batch_is_published_in_one_step(
    url: str, session: penstock.Session, name: str
) -> None:
    channel, queue = session.channels.create(name), session.queues.create(f"{name}-work")
    async with broker_at(url) as broker:
        ids = await broker.publish_batch(
            {"n": 1},
            PenstockResponse("two", headers={"sku": "b7"}, correlation_id="c-2", tag="second"),
            channel=name,
            headers={"sku": "a1"},
        )
        table = pa.table({"sku": ["a1", "b7"], "price": [9.5, 3.0]})
        rows = await broker.publish_batch(table, channel=name)
        queued = await broker.publish_batch("a", "b", channel=f"{name}-work")
        await broker.publish_batch(table, channel=f"{name}-work")
        nothing = await broker.publish_batch(channel=name)
    first, second, third, _ = channel.browse()

    assert (ids, rows, queued, nothing) == (range(2), range(2, 4), range(2), range(0))
    assert (first.properties["sku"], second.properties["sku"], second.tag) == ("a1", "b7", "second")
    assert second.headers["correlation_id"] == "c-2"
    assert third.properties == {"sku": "a1", "price": 9.5}
    assert queue.info().events == 4


@on_a_loop
async def test_a_publisher_publishes_what_it_is_configured_for(
    url: str, session: penstock.Session, name: str
) -> None:
    channel = session.channels.create(name)
    broker = broker_at(url)
    publisher = broker.publisher(name, headers={"kind": "invoice"}, tag="new")
    several = broker.publisher(name, batch=True, reply_to="answers")

    async with running(broker):
        assert await publisher.publish({"n": 1}, headers={"sku": "a1"}, priority=2) == 0
        assert await several.publish("a", "b") == range(1, 3)
    first, second, _ = channel.browse()

    assert first.properties.items() >= {"kind": "invoice", "sku": "a1"}.items()
    assert (first.tag, first.priority, second.headers["reply_to"]) == ("new", 2, "answers")


@on_a_loop
async def test_a_handler_publishes_several_messages_in_one_step(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, channel = broker_at(url), session.channels.create(f"{name}-parts")

    @broker.subscriber(name)
    @broker.publisher(f"{name}-parts", batch=True)
    async def split(orders: list[str]) -> list[str]:
        return orders

    async with running(broker):
        await broker.publish([], name)
        await broker.publish(["a", "b"], name)
        await until(lambda: channel.info().events == 2)

    assert [event.data for event in channel.browse()] == [b"a", b"b"]


@on_a_loop
async def test_a_request_is_answered_by_what_a_handler_returns(
    url: str, session: penstock.Session, name: str
) -> None:
    broker = broker_at(url)

    @broker.subscriber(name)
    async def rate(currency: str) -> PenstockResponse:
        return PenstockResponse(1.25, headers={"currency": currency})

    @broker.subscriber(f"{name}-silent", no_reply=True)
    async def silent(currency: str) -> float:
        return 1.0

    async with running(broker):
        reply = await broker.request("EUR", name, timeout=30)
        also = await broker.publisher(name).request("USD", timeout=30)
        native = await asyncio.to_thread(session.queues.get(name).request, b"JPY", 30)
        with pytest.raises(penstock.NoReply):
            await broker.request("EUR", f"{name}-silent", timeout=0.1)
        queue = session.queues.get(f"{name}-silent")
        await until(lambda: queue.info().events == 0)

    assert (await reply.decode(), reply.headers["currency"]) == (1.25, "EUR")
    assert also.headers["currency"] == "USD"
    assert native.data == b"1.25"


@pytest.mark.parametrize("reason", ["full", "gone"])
@on_a_loop
async def test_a_refused_reply_does_not_make_the_handler_fail(
    url: str, session: penstock.Session, name: str, reason: str
) -> None:
    broker, requests = broker_at(url), list[str]()
    full = session.channels.create(f"{name}-full", capacity=1, storage={"honour_capacity": True})
    full.publish(b"first")
    queue = session.queues.create(name)
    queue.push(b"EUR", headers={"reply_to": f"{name}-{reason}", "correlation_id": "17"})

    @broker.subscriber(name)
    async def rate(currency: str) -> float:
        requests.append(currency)
        return 1.25

    async with running(broker):
        await until(lambda: queue.info().events == 0)

    assert requests == ["EUR"]
    assert [event.data for event in full.browse()] == [b"first"]


@on_a_loop
async def test_a_reply_goes_without_attributes_of_published_events(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, replies = broker_at(url), session.channels.create(f"{name}-replies")
    session.queues.create(name).push(b"EUR", headers={"reply_to": f"{name}-replies"})

    @broker.subscriber(name)
    async def rate(currency: str) -> PenstockResponse:
        return PenstockResponse(1.25, tag="rate", deliver_at="1h", transient=False)

    async with running(broker):
        await until(lambda: replies.info().events)

    assert [(event.data, event.tag) for event in replies.browse()] == [(b"1.25", "rate")]


@on_a_loop
async def test_a_channel_that_was_created_again_gets_the_next_message(
    url: str, session: penstock.Session, name: str
) -> None:
    session.channels.create(name)
    async with broker_at(url) as broker:
        await broker.publish("first", name)
        session.channels.delete(name)
        channel = session.channels.create(name)
        await broker.publish("second", name)
        with pytest.raises(penstock.NameDoesNotExist):
            await broker.publish("third", f"{name}-missing")

    assert [event.data for event in channel.browse()] == [b"second"]


@on_a_loop
async def test_a_broker_without_a_session_says_so(url: str, name: str) -> None:
    broker = broker_at(url)

    with pytest.raises(IncorrectState, match="not connected"):
        await broker.publish("first", name)
    with pytest.raises(IncorrectState, match="not connected"):
        _ = broker.config.broker_config.session
    assert not await broker.ping()


@on_a_loop
async def test_a_router_puts_its_prefix_before_names(
    url: str, session: penstock.Session, name: str
) -> None:
    seen = list[str]()

    async def bill(order: Order) -> Order:
        seen.append(order.sku)
        return order

    route = PenstockRoute(
        bill, "orders", durable="billing", publishers=[PenstockPublisher("invoices")]
    )
    router = PenstockRouter(f"{name}/", handlers=[route])
    broker = broker_at(url, routers=[router])
    invoices = session.channels.create(f"{name}/invoices")

    async with running(broker):
        await broker.publish(Order(sku="a1"), f"{name}/orders")
        await until(lambda: invoices.info().events)

    assert seen == ["a1"]
    with pytest.raises(TypeError, match="NatsRouter is not a PenstockRouter"):
        broker.include_router(NatsRouter())  # type: ignore[arg-type]


def test_the_document_names_the_realm_its_channels_and_durables() -> None:
    broker = broker_at("penstocks://ann:secret@a:9000,b:9001", description="orders of the shop")

    @broker.subscriber("orders/{region}", durable=DurableSub("billing", type="serial"))
    @broker.publisher("invoices", title="Invoices")
    async def bill(order: Order) -> Order:
        """Bill an order."""
        return order

    document: dict[str, Any] = AsyncAPI(broker).to_specification().to_jsonable()

    servers = document["servers"].values()
    assert {server["protocol"] for server in servers} == {"penstock"}
    assert {server["host"] for server in servers} == {"a:9000", "b:9001"}
    assert "secret" not in str(document)
    channels = {channel["address"]: channel for channel in document["channels"].values()}
    assert set(channels) == {"orders/{region}", "invoices"}
    assert channels["orders/{region}"]["description"] == (
        "Bill an order.\n\nEvents of the durable `billing` (serial)."
    )


@on_a_loop
async def test_traces_and_metrics_follow_a_message(url: str, name: str) -> None:
    exporter, registry = InMemorySpanExporter(), CollectorRegistry()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    broker = broker_at(
        url,
        middlewares=[
            PenstockTelemetryMiddleware(tracer_provider=provider),
            PenstockPrometheusMiddleware(registry=registry),
        ],
    )
    parents, sizes = list[str](), list[int]()

    @broker.subscriber(name)
    async def work(order: str, message: PenstockMessage) -> None:
        parents.append(message.headers["traceparent"])

    @broker.subscriber(f"{name}-batch", batch=True)
    async def work_batch(orders: list[str]) -> None:
        sizes.append(len(orders))

    async with running(broker):
        await broker.publish("a1", name)
        await broker.publish_batch("a", "b", channel=f"{name}-batch")
        await until(lambda: parents and sum(sizes) == 2)

    spans = exporter.get_finished_spans()
    traces = {f"{span.context.trace_id:032x}" for span in spans if name in span.name}
    assert parents[0].split("-")[1] in traces
    assert {(span.attributes or {})["messaging.system"] for span in spans} == {"penstock"}
    labels = {"app_name": "faststream", "broker": "penstock", "handler": name}
    assert registry.get_sample_value("faststream_received_messages_total", labels) == 1
