"""A pipelined producer: it collects events into batches and sends them without waiting for each
answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.client.connection.arguments import check_count, wait_ms
from penstock.client.connection.connection import RealmConnection
from penstock.client.publishing.batching import BatchBuilder, ColumnLists
from penstock.client.publishing.publishing import Publisher
from penstock_core.columns.events.durations import Milliseconds
from penstock_core.display import safe_repr
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import InvalidEvent, PenstockError, SessionClosed

ProducerErrorListener = Callable[[PenstockError, int], None]
"""Called with an error and the number of events that were not published because of it; 0 if the
number is unknown."""


class Producer:
    """Publishes events without waiting for each one to be stored; :meth:`flush` waits until all
    events sent so far are stored safely::

        async with orders.producer() as producer:  # flushes at the end of the block
            for line in lines:
                await producer.send(line)

    Events are published in the order of :meth:`send`, in batches. An event that cannot be stored is
    left out of its batch. If the realm refuses a batch, none of its events is published. Both kinds
    of errors are reported to ``on_error``, or without it to the session's error listeners.
    """

    acknowledged: int
    """Number of events that the realm has confirmed as stored safely."""

    def __init__(
        self,
        connection: RealmConnection,
        publisher: Publisher,
        *,
        batch_events: int = 1_024,
        batch_bytes: int = 1 << 20,
        linger_ms: float | str | timedelta = 1.0,
        on_error: ProducerErrorListener | None = None,
        source: str = "",
    ) -> None:
        """``source`` is the kind and name of the channel or queue, for ``repr``."""
        check_count(batch_events, "batch_events")
        check_count(batch_bytes, "batch_bytes", "bytes")
        self._source = source
        self._connection = connection
        self._publisher = publisher
        self._batch_events, self._batch_bytes = batch_events, batch_bytes
        self._builder = self._new_builder()
        self._linger_s = wait_ms(linger_ms, "linger_ms") / 1_000
        self._on_error = on_error
        self._unanswered: set[asyncio.Future[range]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._order = asyncio.Lock()
        """Held while a batch is sent: batches are sent in the order of their events."""
        self._sending: set[asyncio.Task[None]] = set()
        self._closed = False
        self.acknowledged = 0

    @safe_repr
    def __repr__(self) -> str:
        return self._described(self._builder, is_closed=self._closed)

    def _described(self, builder: BatchBuilder, *, is_closed: bool) -> str:
        """Return the ``repr`` of the producer whose unsent events are in ``builder``."""
        source = f"{self._source} {self._connection.standing}"
        state = f"{self.acknowledged} events acknowledged, {builder.count} unsent"
        return f"<Producer of {source}, {state}{', closed' if is_closed else ''}>"

    async def send(
        self,
        data: bytes = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: Milliseconds = 0,
        persistent: bool | None = None,
        priority: int | None = None,
    ) -> None:
        """Add an event to the next batch. The call waits only while too many publishes are
        unanswered. Raises ``InvalidEvent``, ``SessionClosed``."""
        if self._closed:
            raise SessionClosed("the producer is closed")
        is_full = self._builder.add(data, tag, properties, ttl, persistent, priority)
        if is_full:
            await self._send_batch()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._linger_s, self._linger_over)

    def _new_builder(self) -> BatchBuilder:
        """Return an empty builder with the limits of this producer."""
        return BatchBuilder(self._batch_events, self._batch_bytes)

    def _linger_over(self) -> None:
        """Send the collected events, because the linger time has passed."""
        self._timer = None
        self._start(self._send_batch())

    def _publish_soon(self, events: ColumnLists) -> None:
        """Publish a batch collected in another thread, after the batches being sent."""
        self._start(self._publish_batch(events))

    def _start(self, sending: Coroutine[Any, Any, None]) -> None:
        task = start_task(sending, on_failure=self._sending_failed)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _sending_failed(self, error: BaseException) -> None:
        """Report an unexpected error, for an unknown number of events."""
        failure = PenstockError(f"pipelined events were not published: {error!r}")
        failure.__cause__ = error
        self._report_failure(failure, 0)

    async def _send_batch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        events = self._builder.take()
        if events is not None:
            await self._publish_batch(events)

    async def _publish_batch(self, events: ColumnLists) -> None:
        """Send a batch after the batches being sent, without waiting for the answer."""
        try:
            async with self._order:  # asyncio's lock is fair, so batches keep their order
                body = self._body(events)
                if body is None:
                    return
                ids = await self._publisher.begin([body])
        except PenstockError as error:
            self._report_failure(error, events.count)
            return
        self._unanswered.add(ids)
        ids.add_done_callback(lambda done: self._process_answer(done, events.count))

    def _body(self, events: ColumnLists) -> pa.RecordBatch | None:
        """Return the events as a record batch, and report events that cannot be stored; None if no
        event can be stored."""
        try:
            return events.body()
        except InvalidEvent:
            errors = events.remove_invalid()
            for error in errors:
                self._report_failure(error, 1)
            if not errors:
                raise
            return events.body() if events.count else None

    def _process_answer(self, ids: asyncio.Future[range], count: int) -> None:
        self._unanswered.discard(ids)
        error = None if ids.cancelled() else ids.exception()
        if error is None:
            self.acknowledged += count
        elif isinstance(error, PenstockError):
            self._report_failure(error, count)

    def _report_failure(self, error: PenstockError, count: int) -> None:
        if self._on_error is not None:
            self._on_error(error, count)
        else:
            if count:
                error.add_note(f"{count} pipelined events were not published")
            self._connection.report(error)

    async def flush(self) -> None:
        """Wait until every event sent so far is stored safely or reported as refused."""
        await self._send_batch()
        while self._sending:
            await asyncio.wait(list(self._sending))
        while self._unanswered:
            await asyncio.wait(list(self._unanswered))

    async def close(self) -> None:
        """Flush, and refuse further events with ``SessionClosed``."""
        self._closed = True
        await self.flush()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
