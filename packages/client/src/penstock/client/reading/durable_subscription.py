"""Subscriptions to durables, whose events are acknowledged or rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pyarrow as pa

from penstock.client.connection import tracing
from penstock.client.connection.arguments import (
    Duration,
    check_count,
    milliseconds,
    timeout_s,
)
from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.delivered import (
    DeliveredBatch,
    DeliveringLoops,
    joined,
    may_join,
)
from penstock.client.reading.durable_seat import DurableSeat
from penstock.client.reading.handling import Handler, HandlerLoop
from penstock.client.reading.inbox import Inbox
from penstock.client.reading.subscription import (
    BUFFER_BYTES_MAX,
    received_batch,
    received_spans,
    redelivery_counts,
)
from penstock_core.api.subscriptions import Attach
from penstock_core.display import safe_repr, short
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.errors import (
    SessionClosed,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.wire.native import messages as wire

MERGED_ROWS_MAX = 16_384
"""Number of events from which on a batch is not joined with further waiting deliveries."""


class DurableSubscription(DeliveringLoops):
    """A subscription to a durable: a seat, with the events that are delivered to it.

    Iterate over it for single events, or over :meth:`batches` for batches with Arrow columns.
    Settle events with their methods ``ack``, ``rollback`` and ``reject``, or by id with those of
    the subscription::

        async with billing.subscribe() as events:
            async for event in events:
                await event.ack()

    After a reconnect the realm delivers unsettled events again, as it does when a client leaves
    (SEM D13).
    """

    name: str
    """Name of the durable."""
    channel_name: str
    """Name of the channel that the durable belongs to."""

    def __init__(
        self,
        connection: RealmConnection,
        channel: ChannelId,
        durable: str,
        *,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        handler: Handler | None = None,
        pull: bool = False,
        buffer_bytes: int = BUFFER_BYTES_MAX,
        channel_name: str = "",
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        check_count(buffer_bytes, "buffer_bytes", "bytes")
        self.name, self.channel_name = durable, channel_name
        message = Attach(
            channel,
            0,
            durable,
            window=window,
            pull=pull,
            selector=selector,
            auto_ack=auto_ack,
            bytes_max=0 if pull else buffer_bytes,  # with demands the client limits the events
        )
        self._seat = DurableSeat(
            connection,
            message,
            on_arrival,
            without=DeliveredBatch._without,
            channel_name=channel_name,
        )
        super().__init__(self._seat, auto_ack=auto_ack)
        self._settlements = self._seat.settlements
        self._timeout = timeout_s(timeout)
        self._handler = handler
        self._handling: HandlerLoop | None = None
        self._changing = asyncio.Lock()
        """Held while opening or closing, so that a seat is left before the next one is taken."""

    @safe_repr
    def __repr__(self) -> str:
        seat = self._seat
        source = f"of channel {short(seat.channel_name)} {seat.connection.standing}"
        state = f"{seat.state}, {seat.inbox.count_unread()} events unread"
        return f"<DurableSubscription of durable {short(seat.durable)} {source}, {state}>"

    async def open(self) -> DurableSubscription:
        """Take the seat and return the subscription; ``async with`` and iterating also do so.
        Raises ``DurableInUse``, ``InvalidArgument``, ``InvalidSelector``, ``AccessDenied``,
        ``NameDoesNotExist``."""
        async with self._changing:
            await self._open()
        return self

    async def _open(self) -> None:
        """Take the seat, and start the handler's task if a handler is set."""
        if not self._seat.is_open:
            self._seat.forget()  # an earlier use may have left events and an error
            await self._seat.open(self._seat.route(self._delivered), self._seat.attach)
            if self._handler is not None:
                self._handling = HandlerLoop(
                    self._seat, self._next, self._handler, auto_ack=self._auto_ack
                )

    def _delivered(self, message: wire.Delivery, schema: pa.Schema, body: memoryview) -> None:
        """Add a delivery to the inbox of the seat."""
        seat = self._seat
        batch = received_batch(message, schema, body)
        counts = redelivery_counts(message) if message.redeliveries else None
        spans = received_spans(message, schema, body)
        delivered = DeliveredBatch(batch, counts, seat, publishers=message.publishers, spans=spans)
        seat.inbox.put(delivered, len(body))

    @property
    def _inbox(self) -> Inbox[DeliveredBatch]:
        return self._seat.inbox

    # --- receiving -----------------------------------------------------------------------

    async def next_batch(self, timeout: Duration | None = None) -> DeliveredBatch | None:
        """Return the next events; None if none arrive within ``timeout`` seconds (default: the
        subscription's timeout). Events that an iteration did not deliver come first."""
        timeout = timeout_s(timeout)
        if not self._seat.is_open:
            await self.open()
        waiting = self._next(self._timeout if timeout is None else timeout)
        return await tracing.received(self._seat.source, waiting)

    async def _next(self, timeout: float | None) -> DeliveredBatch | None:
        """Return the next events that no rollback can recall any more; None at the timeout."""
        seat, settlements = self._seat, self._settlements
        for unfinished, count in reversed(self._loops.rests()):
            if (rest := unfinished._part(count)._current()) is not None:
                seat.inbox.put_back(rest)
        batch = await seat.inbox.get(timeout)
        while settlements.in_order and batch is not None and settlements.rolls_back:
            seat.inbox.put_back(batch)  # the answers to rollbacks may recall part of it
            await seat.rolled_back()
            batch = await seat.inbox.get(timeout)
        if batch is not None:
            seat.inbox.buffered.took(batch)
            if len(seat.inbox):
                batch = self._with_waiting(batch)
            seat.received(batch)
        return batch

    def _with_waiting(self, batch: DeliveredBatch) -> DeliveredBatch:
        """Return ``batch`` joined with the deliveries that have already arrived.

        The events of one batch are settled together and return their credit together. Batches that
        are settled one by one would make the realm answer with ever smaller deliveries.
        """
        seat = self._seat
        parts, rows = [batch], len(batch)
        while (following := seat.inbox.waiting()) is not None and rows < MERGED_ROWS_MAX:
            if not may_join(batch, following):
                break
            parts.append(seat.inbox.take())
            seat.inbox.buffered.took(following)
            rows += len(following)
        return batch if len(parts) == 1 else joined(parts)

    async def _fetch(self, count: int, timeout: float | None) -> list[DeliveredBatch]:
        """Return up to ``count`` events, as many as arrive within ``timeout`` seconds. If the call
        is cancelled, the next call returns the events that have arrived."""
        seat, inbox = self._seat, self._seat.inbox
        self._settlements.hurry()
        await seat.demand_ended.wait()  # a cancelled call may still be withdrawing its demand
        if self._settlements.in_order:
            await seat.rolled_back()  # the answers may recall events left by that call
        inbox.raise_failure()
        await self._demand(count - inbox.rows, timeout)
        batches = []
        while count > 0 and len(inbox):
            batch = inbox.take()
            if len(batch) > count:
                inbox.put_back(batch._part(count))
                batch = batch._part(0, count)
            count -= len(batch)
            seat.received(batch)
            batches.append(batch)
        if not batches:
            self._settlements.raise_refusal()
            inbox.raise_failure()
        return batches

    async def _demand(self, count: int, timeout: float | None) -> None:
        """Request ``count`` events, and wait until they have arrived or the time is up."""
        self._seat.demand(count)
        try:
            async with asyncio.timeout(timeout):  # wait_for may swallow a cancellation
                await self._seat.demand_ended.wait()
        except TimeoutError:
            self._seat.withdraw()
            await self._seat.demand_ended.wait()
        except BaseException:
            self._seat.withdraw()
            raise

    # --- settling ------------------------------------------------------------------------

    async def ack(self, event_ids: Iterable[int], *, previous: bool = False) -> None:
        """Acknowledge events by id, and return when the realm has stored that. With ``previous``,
        also acknowledge all earlier events delivered to this subscription.

        After a reconnect, acknowledged events that were delivered again and wait to be received are
        dropped. Raises ``IllegalState`` for an event that is not delivered to this subscription or
        was recalled (SEM D15).
        """
        seat = self._seat
        await seat.settle(IdSet.from_ids(event_ids), previous=previous, on_done=seat.acknowledged)

    async def rollback(self, event_ids: Iterable[int], *, delay: Duration | None = None) -> None:
        """Roll events back by id, and return when the realm has stored that. They are delivered
        again, with a ``delay`` (seconds, or a text such as ``"5s"``) no sooner than that, otherwise
        after the durable's backoff (SEM D18).

        Events that wait to be received, such as those delivered again after a reconnect, are
        left out: an earlier delivery of them has already been rolled back. Raises ``IllegalState``
        (SEM D15).
        """
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        ids = IdSet.from_ids(event_ids)
        for batch in self._unreceived():
            ids.remove_all(ids.overlap(batch._ids()))
        await self._seat.settle(ids, roll_back=True, delay_ms=delay_ms)

    def _unreceived(self) -> list[DeliveredBatch]:
        """Return the events that the application has not received: waiting batches, and the rests
        of batches that loops have begun."""
        unreceived = [rest for rest in self._loops.unreceived() if not rest[0].is_stale]
        return [*(batch._part(first) for batch, first in unreceived), *self._inbox]

    async def extend(self, event_ids: Iterable[int], time: Duration) -> int:
        """Restart the acknowledgement timeout of events, by id: they have to be acknowledged within
        ``time`` from now, in seconds or as a text such as ``"30s"`` (SEM D19). Return the number of
        events that are still delivered to this subscription. Raises ``IllegalState`` for an event
        that has returned to the durable."""
        return await self._seat.extend(IdSet.from_ids(event_ids), self._seat.generation, time)

    async def reject(self, event_ids: Iterable[int], reason: str) -> int:
        """Send events by id to the dead event store immediately, with the ``reason`` (SEM T11).
        Return their number when the realm has stored that. Raises ``IllegalState`` (SEM D15)."""
        return await self._seat.reject(IdSet.from_ids(event_ids), self._seat.generation, reason)

    async def flush(self) -> None:
        """Wait until the realm has stored all settlements so far.

        Raises the error of the first refused settlement, and ``ConnectionLost`` if the connection
        was lost before all of them were confirmed: those events may be delivered again.
        """
        await self._settlements.flush()

    async def close(self) -> None:
        """Wait until settlements are confirmed, return unsettled events to the durable, and leave
        the seat. Raises, as :meth:`flush` does, the first refused or lost settlement that has not
        been raised yet."""
        await self._close_quietly()
        self._settlements.raise_first()

    async def _close_quietly(self) -> None:
        if not self._seat.is_open:
            return
        self._seat.retire()
        self._loops.closed()
        async with self._changing:
            try:
                if self._handling is not None:
                    await self._handling.end()
                # This comes before the seat is left, which returns unsettled events to the durable.
                await self._settlements.confirm()
            finally:
                self._inbox.fail(SessionClosed("the subscription is closed"))
                await self._seat.leave()

    async def __aenter__(self) -> DurableSubscription:
        return await self.open()
