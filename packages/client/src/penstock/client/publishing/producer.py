"""A pipelined producer: many events under way, gathered into columns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pyarrow as pa

from penstock.client.connection.arguments import check_count, check_wait
from penstock.client.connection.connection import RealmConnection
from penstock.client.publishing.batching import BatchBuilder, ColumnLists
from penstock.client.publishing.publishing import Publisher
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import InvalidEvent, PenstockError, SessionClosed

ProducerErrorListener = Callable[[PenstockError, int], None]
"""Called with the refusal and the number of events refused."""


class Producer:
    """Sends events without waiting; :meth:`flush` waits until everything sent so far is safe.

    Events are published in the order in which they are sent. One that cannot be stored is left out.
    Events that were gathered together are published together, and if the realm refuses them, all of
    them are refused. Both are reported to ``on_error``, or otherwise to the session's error
    listeners.
    """

    acknowledged: int
    """Events known to be safe."""

    def __init__(
        self,
        connection: RealmConnection,
        publisher: Publisher,
        *,
        batch_events: int = 1_024,
        batch_bytes: int = 1 << 20,
        linger_ms: float = 1.0,
        on_error: ProducerErrorListener | None = None,
    ) -> None:
        check_count(batch_events, "batch_events")
        check_count(batch_bytes, "batch_bytes", "bytes")
        check_wait(linger_ms, "linger_ms", "milliseconds")
        self._connection = connection
        self._publisher = publisher
        self._batch_events, self._batch_bytes = batch_events, batch_bytes
        self._gathering = self._another_gathering()
        self._linger_s = linger_ms / 1_000
        self._on_error = on_error
        self._under_way: set[asyncio.Future[range]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._order = asyncio.Lock()
        self._sending: set[asyncio.Task[None]] = set()
        self._closed = False
        self.acknowledged = 0

    async def send(
        self,
        data: bytes = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: int = 0,
        persistent: bool | None = None,
        priority: int | None = None,
    ) -> None:
        """Queue an event; waits only when too much is under way."""
        if self._closed:
            raise SessionClosed("the producer is closed")
        full = self._gathering.add(data, tag, properties, ttl, persistent, priority)
        if full:
            await self._send_gathered()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._linger_s, self._linger_over)

    def _another_gathering(self) -> BatchBuilder:
        """An empty one, for events that are gathered in another thread."""
        return BatchBuilder(self._batch_events, self._batch_bytes)

    def _linger_over(self) -> None:
        self._timer = None
        self._start(self._send_gathered())

    def _publish_soon(self, gathered: ColumnLists) -> None:
        """Publish events that were gathered elsewhere, after those under way."""
        self._start(self._publish_gathered(gathered))

    def _start(self, sending: Coroutine[Any, Any, None]) -> None:
        task = start_task(sending, on_failure=self._sending_failed)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _sending_failed(self, error: BaseException) -> None:
        """Report an unexpected failure like a refusal; how many events were lost with it is
        unknown."""
        failure = PenstockError(f"pipelined events were not published: {error!r}")
        failure.__cause__ = error
        self._failed(failure, 0)

    async def _send_gathered(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered = self._gathering.take()
        if gathered is not None:
            await self._publish_gathered(gathered)

    async def _publish_gathered(self, gathered: ColumnLists) -> None:
        """Publish events that were gathered elsewhere, after those under way."""
        try:
            async with self._order:  # asyncio's lock is fair, so the order stays
                body = self._body(gathered)
                if body is None:
                    return
                ids = await self._publisher.begin([body])
        except PenstockError as error:
            self._failed(error, gathered.count)
            return
        self._under_way.add(ids)
        ids.add_done_callback(lambda done: self._answered(done, gathered.count))

    def _body(self, gathered: ColumnLists) -> pa.RecordBatch | None:
        """The events as columns; those that cannot be stored are reported and left out."""
        try:
            return gathered.body()
        except InvalidEvent:
            refusals = gathered.weed()
            for refusal in refusals:
                self._failed(refusal, 1)
            if not refusals:
                raise
            return gathered.body() if gathered.count else None

    def _answered(self, ids: asyncio.Future[range], count: int) -> None:
        self._under_way.discard(ids)
        error = None if ids.cancelled() else ids.exception()
        if error is None:
            self.acknowledged += count
        elif isinstance(error, PenstockError):
            self._failed(error, count)

    def _failed(self, error: PenstockError, count: int) -> None:
        if self._on_error is not None:
            self._on_error(error, count)
        else:
            if count:
                error.add_note(f"{count} pipelined events were not published")
            self._connection.report(error)

    async def flush(self) -> None:
        """Wait until everything sent so far is safe or has been reported as refused."""
        await self._send_gathered()
        while self._sending:
            await asyncio.wait(list(self._sending))
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    async def close(self) -> None:
        """Flush, and take no more."""
        self._closed = True
        await self.flush()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
