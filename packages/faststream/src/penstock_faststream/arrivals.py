"""Events and batches that subscribers receive, and their settlement."""

from __future__ import annotations

from typing import cast

from penstock import IllegalState
from penstock.aio import (
    DeliveredBatch,
    DeliveredEvent,
    Reader,
    ReceivedBatch,
    ReceivedEvent,
)
from penstock.client.connection.arguments import Duration
from penstock.client.reading.handling import delay_after_failure_s

REASON = "rejected by the handler"
"""Reason of a rejection by a handler without a reason."""


class Arrival:
    """An event or a batch that needs no settlement: of a subscription without a durable, or a
    reply."""

    __slots__ = ("_needs_delay", "channel", "events", "received")

    def __init__(
        self,
        received: ReceivedEvent | ReceivedBatch,
        channel: str,
        *,
        needs_delay: bool = False,
    ) -> None:
        """``channel`` is the name of the channel or queue. ``needs_delay`` states whether the
        durable or queue redelivers events without a backoff, so that a rollback has to name a
        delay."""
        self._needs_delay = needs_delay
        self.received = received
        self.events = [*received] if isinstance(received, ReceivedBatch) else [received]
        """The events, in order."""
        self.channel = received.channel or channel

    async def acknowledge(self) -> None:
        """Settle as processed."""

    async def roll_back(self, delay: Duration | None) -> None:
        """Give back, to be delivered again, no sooner than after ``delay`` if it is given."""

    async def reject(self, reason: str) -> None:
        """Send to the dead event store with the ``reason``; without a dead event store, settle as
        processed."""

    def _redelivery_delay(self, delay: Duration | None) -> Duration | None:
        """Return the delay that a rollback names; None if the durable or queue has a backoff."""
        if delay is not None or not self._needs_delay:
            return delay
        return delay_after_failure_s(max(event.redelivery_count for event in self.events))


class DurableArrival(Arrival):
    """An event or a batch of a durable."""

    __slots__ = ()

    @property
    def _delivered(self) -> DeliveredEvent | DeliveredBatch:
        return cast("DeliveredEvent | DeliveredBatch", self.received)

    async def acknowledge(self) -> None:
        """Acknowledge. For an event, the call does not wait until the realm has stored that. Raises
        ``IllegalState`` if the events have returned to the durable."""
        await self._delivered.ack()

    async def roll_back(self, delay: Duration | None) -> None:
        await self._delivered.rollback(delay=self._redelivery_delay(delay))

    async def reject(self, reason: str) -> None:
        try:
            await self._delivered.reject(reason)
        except IllegalState:  # no dead event store, or the events have returned to the durable
            await self.acknowledge()


class QueueArrival(Arrival):
    """An event or a batch of a queue, held by its reader."""

    __slots__ = ("_reader", "_unsettled")

    def __init__(
        self,
        received: ReceivedEvent | ReceivedBatch,
        channel: str,
        *,
        needs_delay: bool,
        reader: Reader,
        unsettled: set[QueueArrival],
    ) -> None:
        """``unsettled`` are the arrivals of the reader that are not settled, with this one."""
        super().__init__(received, channel, needs_delay=needs_delay)
        self._reader = reader
        self._unsettled = unsettled
        unsettled.add(self)

    async def acknowledge(self) -> None:
        """Commit, and return when the realm has stored that. Raises ``ConnectionLost`` or
        ``IllegalState`` if the events have returned to the queue."""
        if self._has_all_that_is_held():
            # A commit without an event would fail because of an earlier batch that was not settled
            # in time and is delivered again.
            await self._reader.commit(max(event.event_id or 0 for event in self.events))
        else:
            for event in self.events:
                await self._reader.commit(event, individual=True)

    async def roll_back(self, delay: Duration | None) -> None:
        delay = self._redelivery_delay(delay)
        if self._has_all_that_is_held():
            await self._reader.rollback(delay=delay)
        else:
            for event in self.events:
                await self._reader.rollback(event, individual=True, delay=delay)

    async def reject(self, reason: str) -> None:
        self._unsettled.discard(self)
        for event in self.events:
            try:
                await self._reader.reject(event, reason=reason, individual=True)
            except IllegalState:  # no dead event store, or the event has returned to the queue
                await self._reader.commit(event, individual=True)

    def _has_all_that_is_held(self) -> bool:
        """Return whether one request can settle the batch, because the reader holds no other
        events, and count the batch as settled."""
        is_only = self._unsettled == {self}
        self._unsettled.discard(self)
        return is_only and isinstance(self.received, ReceivedBatch)
