"""Sessions make a span for each publish, delivery, handler call and settlement."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, format_span_id, format_trace_id

import penstock
import penstock.aio
import penstock_otel
from packages.otel.tests.conftest import Spans
from tests.loops import on_a_loop

OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PATIENCE_S = 30.0


def traceparent(context: SpanContext) -> str:
    ids = f"{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}"
    return f"00-{ids}-{context.trace_flags:02x}"


def context(span: ReadableSpan) -> str:
    """The ``traceparent`` of events that are published in a span."""
    return traceparent(span.context)


def links(span: ReadableSpan) -> list[str]:
    return [traceparent(link.context) for link in span.links]


def parents(channel: penstock.Channel) -> list[object]:
    return [event.properties.get("traceparent") for event in channel.browse()]


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


# --- publishing ----------------------------------------------------------------------------


def test_a_publish_is_a_span_whose_context_is_in_its_event(
    spans: Spans, session: penstock.Session, orders: penstock.Channel
) -> None:
    orders.publish(b"a", properties={"price": 1})
    span = spans.one("publish orders")
    (event,) = orders.browse()

    assert event.properties == {"price": 1, "traceparent": context(span)}
    assert span.kind is SpanKind.PRODUCER
    attributes = dict(span.attributes or {})
    assert attributes.pop("messaging.client.id")
    assert attributes == {
        "messaging.system": "penstock",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
    }


def test_a_publish_of_many_events_is_one_span(spans: Spans, orders: penstock.Channel) -> None:
    orders.publish_many([penstock.Event(b"a"), penstock.Event(b"b")])
    orders.publish_table(pa.table({"price": [1, 2, 3]}))
    many, table = spans.named("publish orders")

    assert parents(orders) == [context(many)] * 2 + [context(table)] * 3
    assert (many.attributes or {})["messaging.batch.message_count"] == 2
    assert (table.attributes or {})["messaging.batch.message_count"] == 3


def test_an_event_with_a_context_keeps_it_and_the_span_links_to_it(
    spans: Spans, orders: penstock.Channel
) -> None:
    traced = penstock.Event(properties={"traceparent": OTHER})
    orders.publish_many([traced, penstock.Event()])
    span = spans.one("publish orders")

    assert parents(orders) == [OTHER, context(span)]
    assert links(span) == [OTHER]


def test_a_publish_in_a_span_is_its_child(spans: Spans, orders: penstock.Channel) -> None:
    with spans.tracer.start_as_current_span("request") as request:
        orders.publish(b"a")
    span = spans.one("publish orders")

    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id


def test_a_stream_of_events_is_one_span_with_their_number(
    spans: Spans, orders: penstock.Channel
) -> None:
    def events() -> Iterator[penstock.Event]:
        for _ in range(40_000):
            yield penstock.Event(b"a")

    orders.publish_many(events())
    span = spans.one("publish orders")

    assert (span.attributes or {})["messaging.batch.message_count"] == 40_000
    assert set(parents(orders)) == {context(span)}


def test_a_stream_that_fails_ends_its_span(spans: Spans, orders: penstock.Channel) -> None:
    def events() -> Iterator[penstock.Event]:
        for _ in range(40_000):
            yield penstock.Event(b"a")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        orders.publish_many(events())

    assert spans.one("publish orders").status.status_code is StatusCode.ERROR


def test_a_pipelined_batch_is_a_span(spans: Spans, orders: penstock.Channel) -> None:
    with orders.producer(batch_events=2, linger_ms=10_000) as producer:
        for _ in range(4):
            producer.send(b"a")
    batches = spans.named("publish orders")

    assert [(span.attributes or {})["messaging.batch.message_count"] for span in batches] == [2, 2]
    assert set(parents(orders)) == set(map(context, batches))


def test_a_transaction_is_a_span_for_each_store(
    spans: Spans, session: penstock.Session, orders: penstock.Channel
) -> None:
    work = session.queues.create("work")
    with session.transaction() as transaction:
        transaction.publish(orders, b"a")
        transaction.publish(orders, b"b")
        transaction.publish(work, b"c")
    span = spans.one("publish orders")

    assert parents(orders) == [context(span)] * 2
    assert (span.attributes or {})["messaging.batch.message_count"] == 2
    assert len(spans.named("publish work")) == 1


def test_a_refused_publish_has_the_code_of_the_error(
    spans: Spans, session: penstock.Session
) -> None:
    full = session.channels.create("full", capacity=1, storage={"honour_capacity": True})
    full.publish(b"a")
    with pytest.raises(penstock.CapacityReached):
        full.publish(b"b")
    _, refused = spans.named("publish full")

    assert refused.status.status_code is StatusCode.ERROR
    assert (refused.attributes or {})["error.type"] == "capacity-reached"


# --- receiving and settling ----------------------------------------------------------------


def test_a_delivery_is_a_span_with_links_to_its_events(
    spans: Spans, orders: penstock.Channel
) -> None:
    billing = orders.durables.create("billing")
    orders.publish(b"a")
    orders.publish_many([penstock.Event(b"b"), penstock.Event(b"c")])
    with billing.subscribe(timeout=0.2) as subscription:
        received = 0
        for batch in subscription.batches():
            received += len(batch)
            batch.ack()
    published = spans.named("publish orders")
    receives = spans.named("receive orders")
    acks = spans.named("ack orders")

    assert [link for span in receives for link in links(span)] == list(map(context, published))
    assert received == 3
    assert len(acks) == len(receives)
    for span in (*receives, *acks):
        assert span.kind is SpanKind.CLIENT
        assert (span.attributes or {})["messaging.destination.subscription.name"] == "billing"
    assert (acks[0].attributes or {})["messaging.operation.type"] == "settle"


def test_a_single_event_is_told_by_its_id(spans: Spans, orders: penstock.Channel) -> None:
    orders.publish(b"a")
    with orders.subscribe(start="earliest", timeout=5.0) as subscription:
        next(iter(subscription))
    span = spans.one("receive orders")

    assert (span.attributes or {})["messaging.message.id"] == "0"


def test_a_wait_without_events_and_a_browse_make_no_spans(
    spans: Spans, orders: penstock.Channel
) -> None:
    orders.publish(b"a")
    assert len(list(orders.browse())) == 1
    with orders.subscribe(timeout=0.01) as subscription:
        assert list(subscription) == []

    assert spans.named("receive orders") == []


def test_fetches_of_durables_and_of_queues_are_spans(
    spans: Spans, session: penstock.Session, orders: penstock.Channel
) -> None:
    billing = orders.durables.create("billing")
    work = session.queues.create("work")
    orders.publish(b"a")
    work.push(b"b")
    (event,) = billing.fetch(1, timeout=5.0)
    event.rollback()
    billing.flush()
    billing.close()
    popped = work.pop(timeout=5.0)
    work.close()

    assert popped is not None
    assert links(spans.one("receive orders")) == [context(spans.one("publish orders"))]
    assert len(spans.named("rollback orders")) == 1
    assert links(spans.one("receive work")) == [context(spans.one("publish work"))]
    assert len(spans.named("ack work")) == 1


def test_a_reader_that_commits_and_rejects_makes_spans(
    spans: Spans, session: penstock.Session
) -> None:
    session.channels.create("dead")
    work = session.queues.create("work", dead_event_store="dead")
    work.push_many([penstock.Event(b"a"), penstock.Event(b"b")])
    with work.reader(transactional=True, timeout=5.0) as reader:
        events = iter(reader)
        first, second = next(events), next(events)
        reader.commit(first)
        reader.reject(second, reason="odd")

    assert (spans.one("ack work").attributes or {})["messaging.batch.message_count"] == 1
    assert (spans.one("reject work").attributes or {})["messaging.operation.name"] == "reject"


def test_a_pattern_is_the_destination_of_its_deliveries(
    spans: Spans, session: penstock.Session
) -> None:
    session.channels.create("orders/eu").publish(b"a")
    with session.subscribe("orders/*", start="earliest", timeout=5.0) as subscription:
        next(iter(subscription))

    assert links(spans.one("receive orders/*")) == [context(spans.one("publish orders/eu"))]


def test_a_handler_runs_in_the_trace_of_its_event(spans: Spans, orders: penstock.Channel) -> None:
    billing = orders.durables.create("billing")
    done = threading.Event()

    def handle(event: penstock.DeliveredEvent) -> None:
        with spans.tracer.start_as_current_span("work"):
            done.set()

    with billing.subscribe(handle, auto_ack=True):
        orders.publish(b"a")
        assert done.wait(PATIENCE_S)
    publish, process, work = (
        spans.one("publish orders"),
        spans.one("process orders"),
        spans.one("work"),
    )

    assert process.kind is SpanKind.CONSUMER
    assert (process.attributes or {})["messaging.message.id"] == "0"
    assert process.parent is not None
    assert process.parent.span_id == publish.context.span_id
    assert links(process) == [context(publish)]
    assert work.parent is not None
    assert work.parent.span_id == process.context.span_id
    assert spans.named("receive orders") == []


def test_a_handler_that_fails_fails_its_span(spans: Spans, orders: penstock.Channel) -> None:
    billing = orders.durables.create("billing")
    done = threading.Event()

    def handle(event: penstock.DeliveredEvent) -> None:
        if event.redelivered:
            done.set()
            return
        raise ValueError("odd")

    with billing.subscribe(handle, auto_ack=True):
        orders.publish(b"a")
        assert done.wait(PATIENCE_S)
    failed = spans.named("process orders")[0]

    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "ValueError"


@on_a_loop
async def test_the_asynchronous_client_makes_them_too(spans: Spans, realm: penstock.Realm) -> None:
    async with await penstock.aio.connect(realm.listen()) as session:
        orders = await session.channels.create("orders")
        billing = await orders.durables.create("billing")
        with spans.tracer.start_as_current_span("request"):
            await orders.publish(b"a")
        async with billing.subscribe(timeout=5.0) as subscription:
            async for event in subscription:
                with penstock_otel.processing(event):
                    await orders.publish(b"b")
                await event.ack()
                break
    request, (first, second) = spans.one("request"), spans.named("publish orders")
    traces = {span.context.trace_id for span in (request, first, second)}

    assert len(traces) == 1
    assert len(spans.named("ack orders")) == 1
    assert (first.attributes or {})["server.address"] == "127.0.0.1"


def test_without_the_instrumentation_events_get_no_context(
    spans: Spans, orders: penstock.Channel
) -> None:
    penstock_otel.uninstrument()
    orders.publish(b"a")

    assert parents(orders) == [None]
    assert spans.exporter.get_finished_spans() == ()
