"""The pipelined producer for blocking callers. It collects events in the caller's thread and sends
whole batches on the loop's thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from penstock.client.connection.threads import LoopThread
from penstock.client.publishing import producer as aio_producer
from penstock.client.publishing.batching import ColumnLists
from penstock_core.columns.events.durations import Milliseconds
from penstock_core.display import safe_repr
from penstock_core.vocabulary.errors import SessionClosed


class Producer:
    """Publishes events without waiting for each one to be stored; :meth:`flush` waits until all
    events sent so far are stored safely::

        with orders.producer() as producer:  # flushes at the end of the block
            for line in lines:
                producer.send(line)

    Events are published in the order of :meth:`send`, in batches. An event that cannot be stored is
    left out of its batch. If the realm refuses a batch, none of its events is published. Both kinds
    of errors are reported to ``on_error``, or without it to the session's error listeners. Several
    threads may share a producer.
    """

    def __init__(self, inner: aio_producer.Producer, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self._builder = inner._new_builder()
        self._lock = threading.Lock()
        self._lingering = False
        self._closed = False

    @safe_repr
    def __repr__(self) -> str:
        return self._inner._described(self._builder, is_closed=self._closed)

    @property
    def acknowledged(self) -> int:
        """Number of events that the realm has confirmed as stored safely."""
        return self._inner.acknowledged

    def send(
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
        with self._lock:
            if self._closed:
                raise SessionClosed("the producer is closed")
            if not self._loop.is_usable:
                raise SessionClosed("the session is closed")
            is_full = self._builder.add(
                data, tag, properties, ttl=ttl, persistent=persistent, priority=priority
            )
            if is_full:
                events = self._builder.take()
                assert events is not None, "an event was just added"
                self._send_batch(events)
            elif not self._lingering:
                self._lingering = True
                self._loop.later(self._inner._linger_s, self._linger_over)

    def _send_batch(self, events: ColumnLists) -> None:
        """Send a batch. Called with the lock held, so that batches are sent in order."""
        self._loop.call(self._inner._publish_batch(events))

    def _linger_over(self) -> None:
        """Send the collected events, on the loop's thread, unless another thread is sending."""
        self._lingering = False
        # A sender holds the lock while it waits for this thread, so waiting here would deadlock.
        if not self._lock.acquire(blocking=False):
            self._lingering = True
            self._loop.later(self._inner._linger_s, self._linger_over)
            return
        try:
            events = self._builder.take()
        finally:
            self._lock.release()
        if events is not None:
            self._inner._publish_soon(events)

    def flush(self) -> None:
        """Wait until every event sent so far is stored safely or reported as refused."""
        with self._lock:
            events = self._builder.take()
            if events is not None:
                self._send_batch(events)
        self._loop.call(self._inner.flush())

    def close(self) -> None:
        """Flush, and refuse further events with ``SessionClosed``."""
        self._closed = True
        self.flush()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
