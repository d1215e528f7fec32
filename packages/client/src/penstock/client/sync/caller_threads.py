"""What runs in a thread of the caller: iterators whose events are published, and handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from penstock.client.connection.arguments import Duration
from penstock.client.connection.threads import LoopThread
from penstock.client.handles.channels import Channel as AioChannel
from penstock.client.handles.durables import Durable as AioDurable
from penstock.client.handles.queues import Queue as AioQueue
from penstock.client.publishing.streamed import publish_streamed_from
from penstock.client.publishing.transaction import JointTransaction as AioJointTransaction
from penstock.client.publishing.transaction import Named
from penstock.client.publishing.transaction import Transaction as AioTransaction
from penstock.client.reading.delivered import DeliveredEvent as AioDeliveredEvent
from penstock.client.reading.handling import Handler as AioHandler
from penstock.client.reading.subscription import BUFFER_BYTES_MAX
from penstock.client.sync.sync_delivered import DeliveredBatch, DeliveredEvent
from penstock.client.sync.sync_durable_subscription import DurableSubscription
from penstock_core.columns.events.event import Event

Handler = Callable[[DeliveredEvent], object]


class ChannelStreaming:
    """Publishing to a channel from any iterable."""

    _inner: AioChannel
    _loop: LoopThread

    def publish_many(self, events: Iterable[Event]) -> range:
        """Publish events in one step: consecutive ids, all or none.

        They may come from any iterable, such as a generator. Then some thousands of them are held
        here at a time, and the realm stages them until the last one has come (setting
        ``limits.stage_bytes``). If the iterable raises an error, nothing is published.
        """
        if not isinstance(events, Sequence):
            return publish_streamed_from(self._loop, self._inner._publisher, events)
        return self._loop.call(self._inner.publish_many(events))


class QueueStreaming:
    """Putting events on a queue from any iterable."""

    _inner: AioQueue
    _loop: LoopThread

    def push_many(self, events: Iterable[Event]) -> range:
        """Put events on the queue in one step: consecutive ids, all or none."""
        if not isinstance(events, Sequence):
            return publish_streamed_from(self._loop, self._inner._publisher, events)
        return self._loop.call(self._inner.push_many(events))


class TransactionStreaming:
    """Adding events to a transaction from any iterable."""

    _inner: AioTransaction
    _loop: LoopThread

    def publish_many(self, events: Iterable[Event]) -> None:
        """Add events, in their order; from any iterable."""
        events = events if isinstance(events, Sequence) else list(events)
        self._loop.call(self._inner.publish_many(events))


class JointStreaming:
    """Adding events to a transaction over several stores from any iterable."""

    _inner: AioJointTransaction
    _loop: LoopThread

    def publish_many(self, store: Named, events: Iterable[Event]) -> None:
        """Add events for a channel or queue, in their order; from any iterable."""
        events = events if isinstance(events, Sequence) else list(events)
        self._loop.call(self._inner.publish_many(store, events))


class DurableReceiving:
    """Subscribing to a durable, and fetching from it."""

    _inner: AioDurable
    _loop: LoopThread

    def subscribe(
        self,
        handler: Handler | None = None,
        *,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        buffer_bytes: int = BUFFER_BYTES_MAX,
    ) -> DurableSubscription:
        """Receive events to be acknowledged, at most ``window`` unsettled at a time (SEM D9).
        Without one the realm decides: most types begin with 10, or 1,000, and give a client that
        acknowledges quickly up to 5,000.

        With a ``handler`` each event is given to it while the subscription is open, one after the
        other, in a thread of its own: it may use the session like any other thread. Returning
        acknowledges when ``auto_ack``, an exception rolls back and is reported.

        While the application does not read, at most ``buffer_bytes`` wait here or are on their
        way; a single event that is larger comes alone.
        """
        inner = self._inner.subscribe(
            None if handler is None else _in_thread(handler, self._loop),
            window=window,
            auto_ack=auto_ack,
            selector=selector,
            timeout=timeout,
            buffer_bytes=buffer_bytes,
        )
        return DurableSubscription(inner, self._loop)

    def fetch(self, count: int, timeout: Duration = 0.0) -> list[DeliveredEvent]:
        """Take up to ``count`` events, as many as come within ``timeout`` seconds (SEM D5).

        The seat that it takes stays until :meth:`close` or the end of the session.
        """
        found = self._loop.call(self._inner.fetch_batches(count, timeout))
        return [event for batch in found for event in DeliveredBatch(batch, self._loop)]


def _in_thread(handler: Handler, loop: LoopThread) -> AioHandler:
    async def handle(event: AioDeliveredEvent) -> None:
        await asyncio.to_thread(handler, DeliveredEvent._of(event, loop))

    return handle
