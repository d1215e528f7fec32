"""The tracer that the client's hook calls: it makes a span for each publish, delivery, handler
call and settlement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from opentelemetry import trace
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    use_span,
)

from penstock.client.connection.tracing import OperationSource
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.trace_context import TraceContext
from penstock_core.version import __version__
from penstock_core.vocabulary.errors import PenstockError
from penstock_otel.client_metrics import ClientMetrics
from penstock_otel.contexts import context_of_span, contexts_in, links_to
from penstock_otel.conventions import Attributes, Conventions, MessagingOperation, chosen, events_of

NO_ATTRIBUTES: Final[Attributes] = MappingProxyType({})


class SpanMaker:
    """Makes spans with the names and attributes of the conventions that the environment asks for
    when it is created."""

    def __init__(self, scope: str, provider: TracerProvider | None) -> None:
        """``scope`` is the name of the instrumentation; ``provider`` makes the spans, and None
        means the global one."""
        self._conventions: Conventions = chosen()
        self._tracer: Tracer = trace.get_tracer(
            scope, __version__, provider, schema_url=self._conventions.schema_url
        )

    def begin(
        self,
        operation: MessagingOperation,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        links: Sequence[Link] = (),
        kind: SpanKind | None = None,
        begin_ns: int | None = None,
        parent: SpanContext | None = None,
    ) -> Span:
        """Begin the span of an operation, at ``begin_ns`` nanoseconds since 1970 or now. Without a
        ``kind`` it has that of the conventions; without a ``parent`` it is a child of the current
        span."""
        conventions = self._conventions
        remote = None
        if parent is not None:
            remote = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        return self._tracer.start_span(
            conventions.span_name(operation),
            remote,
            kind=conventions.kind(operation) if kind is None else kind,
            attributes={**conventions.attributes(operation), **attributes},
            links=links,
            start_time=begin_ns,
        )


class OpenOperation:
    """A publish or settlement whose span is open."""

    def __init__(
        self, span: Span, operation: MessagingOperation, count: int, metrics: ClientMetrics | None
    ) -> None:
        self._span = span
        self._operation = operation
        self._count = count
        self._metrics = metrics
        self._began_s = time.perf_counter()
        self.context: TraceContext = context_of_span(span)

    def end(self, error: BaseException | None = None, count: int | None = None) -> None:
        """End the span, and record the metrics of the operation."""
        if count is not None:
            self._count = count
            self._span.set_attributes(events_of(count, None))
        end_span(self._span, error)
        if self._metrics is not None:
            duration_s = time.perf_counter() - self._began_s
            self._metrics.ended(
                self._operation, duration_s, self._count, error_type=error_type_of(error)
            )


def error_type_of(error: BaseException | None) -> str:
    """Return the code of an error, or else the name of its type; empty without an error."""
    if error is None:
        return ""
    return error.code if isinstance(error, PenstockError) else type(error).__qualname__


def record_error(span: Span, error: BaseException) -> None:
    """Record in a span that its operation has failed."""
    span.set_attribute("error.type", error_type_of(error))
    span.set_status(Status(StatusCode.ERROR, str(error)))


def end_span(span: Span, error: BaseException | None) -> None:
    """End a span, with the error of its operation if it has failed."""
    if error is not None:
        record_error(span, error)
    span.end()


class RealmTracer:
    """Makes spans of the operations of all sessions in this process, and records their metrics."""

    def __init__(
        self, provider: TracerProvider | None, metrics: ClientMetrics | None = None
    ) -> None:
        """``provider`` makes the spans; None means the global one. Without ``metrics`` none are
        recorded."""
        self._spans = SpanMaker("penstock_otel", provider)
        self._metrics = metrics

    def publish(self, source: OperationSource, bodies: Sequence[pa.RecordBatch]) -> OpenOperation:
        """Begin a span for a publish, linked to the contexts that its events already have."""
        operation = operation_of(source, "publish", "send")
        count = sum(body.num_rows for body in bodies)
        attributes = events_of(count, None) if count > 1 else {}
        links = links_to(contexts_in(bodies))
        span = self._spans.begin(operation, attributes, links=links)
        return OpenOperation(span, operation, count, metrics=self._metrics)

    def receive(self, source: OperationSource) -> Callable[[Sequence[pa.RecordBatch]], None]:
        """Begin to wait for events. A wait that ends without events makes no span."""
        begin_ns, began_s = time.time_ns(), time.perf_counter()

        def end(batches: Sequence[pa.RecordBatch]) -> None:
            count = sum(batch.num_rows for batch in batches)
            if not count:
                return
            operation = operation_of(source, "receive", "receive")
            links = links_to(contexts_in(batches))
            self._spans.begin(operation, events_in(batches), links=links, begin_ns=begin_ns).end()
            if self._metrics is not None:
                self._metrics.ended(operation, time.perf_counter() - began_s, count)

        return end

    def process(self, source: OperationSource, event: Event) -> AbstractContextManager[Span]:
        """Return a context with a span for the processing of an event by a handler."""
        operation = operation_of(source, "process", "process")
        if self._metrics is not None:
            self._metrics.handed_over(operation)
        return self.processing(operation, event)

    @contextmanager
    def processing(self, operation: MessagingOperation, events: object) -> Iterator[Span]:
        """Make a span for the processing of events the current one.

        The span is linked to the contexts of the events. Outside of another span, and if the events
        have one context, it is also a child of that context, so that both are one trace.
        """
        spans = contexts_in(events)
        event_id = events.event_id if isinstance(events, Event) else None
        attributes = events_of(1, event_id) if isinstance(events, Event) else {}
        is_inside = get_current_span().get_span_context().is_valid
        parent = spans[0] if len(spans) == 1 and not is_inside else None
        span = self._spans.begin(operation, attributes, links=links_to(spans), parent=parent)
        began_s, error_type = time.perf_counter(), ""
        with use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            try:
                yield span
            except BaseException as error:
                record_error(span, error)
                error_type = error_type_of(error)
                raise
            finally:
                if self._metrics is not None:
                    duration_s = time.perf_counter() - began_s
                    self._metrics.processed(operation, duration_s, error_type=error_type)

    def settle(self, source: OperationSource, verb: str, count: int) -> OpenOperation:
        """Begin a span for the settlement of events."""
        operation = operation_of(source, verb, "settle")
        span = self._spans.begin(operation, events_of(count, None))
        return OpenOperation(span, operation, count, metrics=self._metrics)


def operation_of(source: OperationSource, name: str, operation_type: str) -> MessagingOperation:
    """Return an operation of the client."""
    address = source.connection.terms.current_address
    return MessagingOperation(
        name,
        operation_type,
        source.store,
        durable=source.durable,
        session_id=source.connection.session_id,
        host="" if address is None else address.host,
        port=0 if address is None else address.port,
    )


def events_in(batches: Sequence[pa.RecordBatch]) -> Attributes:
    """Return the attributes of received events: the id of a single one, or their number."""
    count = sum(batch.num_rows for batch in batches)
    if count > 1:
        return events_of(count, None)
    batch = next(batch for batch in batches if batch.num_rows)
    return events_of(1, batch.column("event_id")[0].as_py())
