"""Methods of blocking classes that run code of the application in its threads: iterators whose
events are published, and handlers."""

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
        """Publish several events in one step, all or none. Return their ids, which are consecutive.

        ``events`` is a sequence, or any other iterable such as a generator. From an iterable, the
        client reads a few thousand events at a time, and the realm stages them until the last one
        has arrived (setting ``limits.stage_bytes``). If the iterable raises an error, nothing is
        published. Raises the errors of :meth:`publish`.
        """
        if not isinstance(events, Sequence):
            return publish_streamed_from(self._loop, self._inner._publisher, events)
        return self._loop.call(self._inner.publish_many(events))


class QueueStreaming:
    """Putting events on a queue from any iterable."""

    _inner: AioQueue
    _loop: LoopThread

    def push_many(self, events: Iterable[Event]) -> range:
        """Put several events on the queue in one step, all or none. Return their ids, which are
        consecutive. ``events`` may be any iterable, as for :meth:`Channel.publish_many`."""
        if not isinstance(events, Sequence):
            return publish_streamed_from(self._loop, self._inner._publisher, events)
        return self._loop.call(self._inner.push_many(events))


class TransactionStreaming:
    """Adding events to a transaction from any iterable."""

    _inner: AioTransaction
    _loop: LoopThread

    def publish_many(self, events: Iterable[Event]) -> None:
        """Add events from any iterable to the transaction, in order."""
        # The iterator runs in the caller's thread, because it may block.
        events = events if isinstance(events, Sequence) else list(events)
        self._loop.call(self._inner.publish_many(events))


class JointStreaming:
    """Adding events to a transaction over several stores from any iterable."""

    _inner: AioJointTransaction
    _loop: LoopThread

    def publish_many(self, store: Named, events: Iterable[Event]) -> None:
        """Add events from any iterable for the channel or queue ``store``, in order. Raises the
        errors of :meth:`publish`."""
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
        """Receive events of the durable, to be acknowledged (SEM D9)::

            with billing.subscribe() as events:
                for event in events:
                    bill(event)
                    event.ack()

        - ``handler``: a function that is called with each event while the subscription is open, one
          after the other, in a separate thread; it may use the session. With ``auto_ack`` its
          return acknowledges the event; an exception rolls the event back and is reported to the
          session's error listeners
        - ``window``: the largest number of unsettled events. Without it the realm decides: it
          begins with 10 or 1,000, depending on the type, and for most types grows to as much as
          5,000 for a client that acknowledges quickly
        - ``auto_ack``: acknowledge an event when the next one is requested, or the handler returns
        - ``selector``: only matching events are delivered to this client
        - ``timeout``: ends an iteration if no event arrives for this time: seconds, a text such as
          ``"500ms"``, or a ``timedelta``
        - ``buffer_bytes``: limit of the unread events that the client holds or that are in transit;
          a larger single event is delivered alone
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
        """Return up to ``count`` events, as many as arrive within ``timeout`` seconds (SEM D5)::

            for event in billing.fetch(100, timeout=1):
                bill(event)
                event.ack()

        The first call takes a seat at the durable, which is kept until :meth:`close` or the end of
        the session.
        """
        batches = self._loop.call(self._inner.fetch_batches(count, timeout))
        return [event for batch in batches for event in DeliveredBatch(batch, self._loop)]


def _in_thread(handler: Handler, loop: LoopThread) -> AioHandler:
    """Return an asynchronous handler that calls ``handler`` in a thread."""

    async def handle(event: AioDeliveredEvent) -> None:
        await asyncio.to_thread(handler, DeliveredEvent._of(event, loop))

    return handle
