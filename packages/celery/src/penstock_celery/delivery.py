"""Sources of a consumer's messages, and their settlement. A source is a reader of a queue or the
subscription of a fanout exchange."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Protocol

from kombu.transport import virtual

from penstock import Event, IllegalState, Queue, Reader, Subscription
from penstock.client.connection.arguments import Duration

logger = logging.getLogger(__name__)

_WINDOW = 1_000_000
"""Largest number of events that a reader may hold. It is the realm's maximum, because kombu's
prefetch count already limits the deliveries."""


class EventSource(Protocol):
    """Delivers the events of a queue or fanout exchange, and receives their settlements."""

    def fetch(self, count: int, timeout_s: float) -> list[Event]:
        """Return up to ``count`` events; an empty list if none arrive within ``timeout_s``
        seconds."""

    def acknowledge(self, event: Event) -> None:
        """Settle an event as processed."""

    def give_back(self, event: Event) -> None:
        """Roll an event back, so that it is delivered again, perhaps to another consumer."""

    def reject(self, event: Event) -> None:
        """Reject an event, which is not delivered again."""

    def close(self) -> None:
        """End the delivery; unsettled events are delivered again."""


class QueueSource:
    """Fetches the events of a queue. It fetches no more than its consumer may have unacknowledged,
    so that other consumers get the others."""

    def __init__(self, queue: Queue, ack_timeout: Duration | None) -> None:
        self._reader: Reader = queue.reader(
            transactional=True, window=_WINDOW, ack_timeout=ack_timeout
        ).open()

    def fetch(self, count: int, timeout_s: float) -> list[Event]:
        return [*self._reader.fetch(count, timeout_s)]

    def acknowledge(self, event: Event) -> None:
        self._reader.commit(event, individual=True)

    def give_back(self, event: Event) -> None:
        self._reader.rollback(event, individual=True, delay=0)

    def reject(self, event: Event) -> None:
        """Send an event to the dead event store; without one, remove it."""
        try:
            self._reader.reject(event, reason="rejected by a consumer", individual=True)
        except IllegalState:
            self._reader.commit(event, individual=True)

    def close(self) -> None:
        self._reader.close()


class FanoutSource:
    """Fetches the events of a fanout exchange that were published since its queue was bound. Each
    bound queue gets all of these events, and settling does nothing."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription.open()

    def fetch(self, count: int, timeout_s: float) -> list[Event]:
        return [*(self._subscription.next_batch(timeout_s) or ())]

    def acknowledge(self, event: Event) -> None:
        """Do nothing."""

    def give_back(self, event: Event) -> None:
        """Do nothing: the intake keeps events that are not delivered yet."""

    def reject(self, event: Event) -> None:
        """Do nothing."""

    def close(self) -> None:
        self._subscription.close()


class HeldEvent(NamedTuple):
    """An event and the source that delivered it."""

    source: EventSource
    event: Event


class UnsettledMessages(virtual.QoS):
    """The unacknowledged messages of a channel, at most ``prefetch_count``."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._held: dict[str, HeldEvent] = {}
        """Delivered events that are not settled, by delivery tag."""

    def hold(self, delivery_tag: str, source: EventSource, event: Event) -> None:
        """Remember the event of a message until the message is settled."""
        self._held[delivery_tag] = HeldEvent(source, event)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message. Return once the realm has stored that."""
        delivered = self._remove_held(delivery_tag)
        if delivered is None:
            return
        try:
            delivered.source.acknowledge(delivered.event)
        except IllegalState as error:  # it took longer than `visibility_timeout`
            logger.warning("a message acknowledged too late is delivered again: %s", error)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a message to its queue if ``requeue``; otherwise reject it."""
        delivered = self._remove_held(delivery_tag)
        if delivered is not None and requeue:
            delivered.source.give_back(delivered.event)
        elif delivered is not None:
            delivered.source.reject(delivered.event)

    def restore_unacked(self) -> list[Any]:
        """Return all unacknowledged messages to their queues."""
        for delivery_tag in list(self._held):
            self.reject(delivery_tag, requeue=True)
        return []

    def _remove_held(self, delivery_tag: str) -> HeldEvent | None:
        """Forget a message that is being settled, and return its event; None if it is unknown."""
        super().ack(delivery_tag)  # forgets the message, so that another one can be delivered
        self.channel.arrivals.notify()
        return self._held.pop(delivery_tag, None)
