"""A seat at a durable: events to be acknowledged or given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pyarrow as pa

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
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.errors import (
    SessionClosed,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.wire.native import messages as wire

MERGED_ROWS_MAX = 16_384
"""Deliveries that wait are handed out as one batch up to about this many events."""


class DurableSubscription(DeliveringLoops):
    """A seat at a durable. Iterate it for events, or :meth:`batches` for columns; settle them with
    their own ``ack`` and ``rollback``, or with :meth:`ack` and :meth:`rollback` by id.

    After a reconnect the realm delivers again what was unsettled, as after any client that left
    (SEM D13).
    """

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
        message = Attach(
            channel,
            0,
            durable,
            window=window,
            pull=pull,
            selector=selector,
            auto_ack=auto_ack,
            bytes_max=0 if pull else buffer_bytes,  # with demands the client says how many it takes
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
        """Held while opening or closing: a seat is left before the next one is taken."""

    def __repr__(self) -> str:
        seat = self._seat
        of, place = seat.channel_name, seat.connection.place
        return f"<DurableSubscription of durable {seat.durable!r} of channel {of!r} at {place}>"

    async def open(self) -> DurableSubscription:
        """Take the seat. Raises ``DurableInUse``, ``InvalidArgument``. Iterating opens it, too."""
        async with self._changing:
            await self._open()
        return self

    async def _open(self) -> None:
        if not self._seat.is_open:
            self._seat.forget()  # the last event may have ended with the seat
            await self._seat.open(self._seat.route(self._delivered), self._seat.attach)
            if self._handler is not None:
                self._handling = HandlerLoop(
                    self._seat, self._next, self._handler, auto_ack=self._auto_ack
                )

    def _delivered(self, message: wire.Delivery, schema: pa.Schema, body: memoryview) -> None:
        seat = self._seat
        batch = received_batch(message, schema, body)
        counts = redelivery_counts(message) if message.redeliveries else None
        spans = received_spans(message, schema, body)
        delivered = DeliveredBatch(batch, counts, seat, publishers=message.publishers, spans=spans)
        seat.inbox.put(delivered, len(body))

    @property
    def _inbox(self) -> Inbox[DeliveredBatch]:
        return self._seat.inbox

    # --- taking --------------------------------------------------------------------------

    async def next_batch(self, timeout: Duration | None = None) -> DeliveredBatch | None:
        """The next events; None if none come for ``timeout`` seconds. Events left by an iteration
        come first."""
        timeout = timeout_s(timeout)
        if not self._seat.is_open:
            await self.open()
        return await self._next(self._timeout if timeout is None else timeout)

    async def _next(self, timeout: float | None) -> DeliveredBatch | None:
        seat, settlements = self._seat, self._settlements
        for left, count in reversed(self._loops.rests()):
            if (rest := left._part(count)._current()) is not None:
                seat.inbox.put_back(rest)
        batch = await seat.inbox.get(timeout)
        while settlements.in_order and batch is not None and settlements.rolls_back:
            seat.inbox.put_back(batch)  # part of it may be recalled
            await seat.rolled_back()
            batch = await seat.inbox.get(timeout)
        if batch is not None:
            seat.inbox.buffered.took(batch)
            if len(seat.inbox):
                batch = self._with_waiting(batch)
            seat.handed(batch)
        return batch

    def _with_waiting(self, batch: DeliveredBatch) -> DeliveredBatch:
        """One batch of all that is here already.

        Settled together they return their credit together; taken one by one, ever smaller
        deliveries would answer ever smaller settlements.
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
        """Up to ``count`` events, as many as come within ``timeout`` seconds. If it is cancelled,
        the events that have come are given to the next call."""
        seat, inbox = self._seat, self._seat.inbox
        self._settlements.hurry()
        await seat.demand_ended.wait()  # an earlier demand was cancelled, and is being withdrawn
        if self._settlements.in_order:
            await seat.rolled_back()  # events left by that one may be recalled
        inbox.raise_failure()
        await self._demand(count - inbox.rows, timeout)
        batches = []
        while count > 0 and len(inbox):
            batch = inbox.take()
            if len(batch) > count:
                inbox.put_back(batch._part(count))
                batch = batch._part(0, count)
            count -= len(batch)
            seat.handed(batch)
            batches.append(batch)
        if not batches:
            self._settlements.raise_refusal()
            inbox.raise_failure()
        return batches

    async def _demand(self, count: int, timeout: float | None) -> None:
        """Request ``count`` events, and wait until they have come, or the time is up."""
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
        """Acknowledge by id; returns when that is on disk. Raises ``IllegalState`` (SEM D15).

        Events that a reconnect has brought again, and that wait here, are not handed out then.
        """
        seat = self._seat
        await seat.settle(IdSet.from_ids(event_ids), previous=previous, on_done=seat.acknowledged)

    async def rollback(self, event_ids: Iterable[int], *, delay: Duration | None = None) -> None:
        """Give back by id, with a ``delay`` (``"5s"``, or seconds) to come again no sooner than
        that (SEM D18); returns when that is on disk. Raises ``IllegalState`` (SEM D15).

        Events that wait here to be handed out, such as those that a reconnect has brought again,
        are left as they are: they have gone back already.
        """
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        ids = IdSet.from_ids(event_ids)
        for batch in self._to_come():
            ids.remove_all(ids.overlap(batch._ids()))
        await self._seat.settle(ids, roll_back=True, delay_ms=delay_ms)

    def _to_come(self) -> list[DeliveredBatch]:
        """What waits here, be it in a batch that a loop has begun."""
        begun = [rest for rest in self._loops.to_come() if not rest[0].is_stale]
        return [*(batch._part(first) for batch, first in begun), *self._inbox]

    async def extend(self, event_ids: Iterable[int], time: Duration) -> int:
        """Have ``time`` (``"30s"``, or seconds) from now on to acknowledge events, by id (SEM D19).
        Gives how many are in hand still. Raises ``IllegalState`` for one that has gone back."""
        return await self._seat.extend(IdSet.from_ids(event_ids), self._seat.generation, time)

    async def reject(self, event_ids: Iterable[int], reason: str) -> int:
        """Give events up by id: they go to the dead event store at once, with the ``reason`` (SEM
        T11). Gives their number once that is on disk. Raises ``IllegalState`` (SEM D15)."""
        return await self._seat.reject(IdSet.from_ids(event_ids), self._seat.generation, reason)

    async def flush(self) -> None:
        """Wait until everything settled so far is on disk.

        Raises the first refusal, and ``ConnectionLost`` when some of it was on its way as the
        connection was lost: those events may be delivered again.
        """
        await self._settlements.flush()

    async def close(self) -> None:
        """Confirm settlements, give back the rest, and leave the seat. Raises as :meth:`flush` what
        was refused or lost and has not been raised."""
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
                await self._settlements.confirm()
            finally:
                self._inbox.fail(SessionClosed("the subscription is closed"))
                await self._seat.leave()

    async def __aenter__(self) -> DurableSubscription:
        return await self.open()
