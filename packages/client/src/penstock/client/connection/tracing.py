"""The hook of a tracer, such as that of the package ``penstock-otel``, which records what the
sessions of this process do.

Without a tracer, a publish, a delivery or a settlement costs one comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from penstock.client.connection.connection import RealmConnection
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.trace_context import TraceContext, with_context
from penstock_core.ids.ids import Spans


class OperationSource(NamedTuple):
    """The session, the channel or queue, and the durable of an operation."""

    connection: RealmConnection
    store: str
    """Name of the channel or queue."""
    durable: str = ""
    """Name of the durable; empty if the operation does not use one."""


class TracedOperation(Protocol):
    """A publish or settlement that is in progress."""

    @property
    def context(self) -> TraceContext:
        """The trace context for the published events that have none."""
        ...

    def end(self, error: BaseException | None = None, count: int | None = None) -> None:
        """Record the end. ``count`` is the number of events if it was not known at the
        beginning."""
        ...


class Tracer(Protocol):
    """Records operations. Its methods are called on the thread of the session's event loop, in the
    context (:mod:`contextvars`) of the caller, and must not raise errors."""

    def publish(self, source: OperationSource, bodies: Sequence[pa.RecordBatch]) -> TracedOperation:
        """Begin a publish. ``bodies`` is empty if the events are not known yet."""
        ...

    def receive(self, source: OperationSource) -> Callable[[Sequence[pa.RecordBatch]], None]:
        """Begin to wait for events. The returned function is called with the received ones."""
        ...

    def process(self, source: OperationSource, event: Event) -> AbstractContextManager[object]:
        """Return the context in which the handler of a subscription is called with an event."""
        ...

    def settle(self, source: OperationSource, verb: str, count: int) -> TracedOperation:
        """Begin to acknowledge, roll back or reject ``count`` events; ``verb`` is ``ack``,
        ``rollback`` or ``reject``."""
        ...


tracer: Tracer | None = None
"""The tracer of this process; None if operations are not recorded."""

_NO_SPAN: Final = nullcontext()


def install(new_tracer: Tracer | None) -> None:
    """Record operations with ``new_tracer`` from now on; None ends the recording."""
    global tracer
    tracer = new_tracer


class ReceivedColumns(Protocol):
    """A batch of received events."""

    def to_arrow(self) -> pa.RecordBatch: ...


B = TypeVar("B", bound=ReceivedColumns)


async def received(source: OperationSource, batch: Awaitable[B | None]) -> B | None:
    """Return the awaited batch of events, after recording it."""
    if tracer is None:
        return await batch
    end = tracer.receive(source)
    events = await batch
    end([] if events is None else [events.to_arrow()])
    return events


async def received_all(source: OperationSource, batches: Awaitable[list[B]]) -> list[B]:
    """Return the awaited batches of events, after recording them together."""
    if tracer is None:
        return await batches
    end = tracer.receive(source)
    events = await batches
    end([batch.to_arrow() for batch in events])
    return events


def processing(source: OperationSource, event: Event) -> AbstractContextManager[object]:
    """Return the context in which a handler is called with an event."""
    return _NO_SPAN if tracer is None else tracer.process(source, event)


@contextmanager
def publishing(
    source: OperationSource, bodies: Sequence[pa.RecordBatch]
) -> Iterator[Sequence[pa.RecordBatch]]:
    """Record the publish in the block, and yield the bodies with its trace context."""
    if tracer is None:
        yield bodies
        return
    operation = tracer.publish(source, bodies)
    try:
        yield [with_context(body, operation.context) for body in bodies]
    except BaseException as error:
        operation.end(error)
        raise
    operation.end()


def end_with(operation: TracedOperation, answer: asyncio.Future[Any]) -> None:
    """End an operation when its answer arrives."""
    answer.add_done_callback(lambda done: operation.end(_error_of(done)))


def settling(
    answer: asyncio.Future[Any], verb: str, spans: Spans, *, source: OperationSource
) -> None:
    """Record a settlement of events until its answer arrives."""
    if tracer is not None:
        count = sum(end - first for first, end in spans)
        end_with(tracer.settle(source, verb, count), answer)


def _error_of(done: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError() if done.cancelled() else done.exception()
