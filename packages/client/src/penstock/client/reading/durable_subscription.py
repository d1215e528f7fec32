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
from penstock.client.connection.delivery_route import DeliveryRoute
from penstock.client.connection.threads import is_ending
from penstock.client.reading.attachment import Attachment
from penstock.client.reading.delivered import (
    DeliveredBatch,
    DeliveringLoops,
    joined,
    may_join,
)
from penstock.client.reading.handling import Handler, HandlerLoop
from penstock.client.reading.inbox import Buffered, Inbox
from penstock.client.reading.settlements import Settlements
from penstock.client.reading.subscription import (
    BUFFER_BYTES_MAX,
    received_batch,
    received_spans,
    redelivery_counts,
)
from penstock_core.api.subscriptions import Attach, Subscribed
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import (
    IllegalState,
    NameDoesNotExist,
    PenstockError,
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
        self._attachment = Attachment(connection)
        super().__init__(self._attachment, auto_ack=auto_ack)
        self._connection = connection
        self._channel = channel
        self._durable = durable
        self._window = window
        self._selector = selector
        self._timeout = timeout_s(timeout)
        self._handler = handler
        self._pull = pull
        self._inbox: Inbox[DeliveredBatch] = Inbox(on_arrival)
        self._channel_name = channel_name
        check_count(buffer_bytes, "buffer_bytes", "bytes")
        # with demands the client says how many it takes
        self._buffer_bytes = 0 if pull else buffer_bytes
        self._buffered = Buffered(self._buffer_bytes, self._make_room)
        self._settlements = Settlements(connection)
        """Acknowledgements and rollbacks without an answer yet."""
        self._handling: HandlerLoop | None = None
        self._changing = asyncio.Lock()
        """Held while opening or closing: a seat is left before the next one is taken."""
        self._met = asyncio.Event()
        self._met.set()
        self._demand = 0
        """Number of events that a synchronous consumer still waits for. :attr:`_met` is cleared
        while a demand is open; it is set when the demand is met or its withdrawal is confirmed."""
        self._generation = 0
        """Number of seats taken so far: events delivered to an earlier one have gone back."""
        self._why_gone = "it was delivered to an earlier subscription"
        """Why events of the generation before this one have gone back."""
        self._is_deleted = False
        """Whether the channel or durable was deleted: its events may be acknowledged (SEM D15)."""
        self._recalled = IdSet()
        """Taken back by the realm (SEM D11), and not handed out again since."""
        self._has_recalled = False
        """Whether some were since a batch was taken."""
        self._has_rolled_back = False
        """Another thread has given something back since a batch was taken."""
        self._closed_through = 0
        """Events of generations up to this one went back when the subscription was closed."""

    def __repr__(self) -> str:
        of, place = self._channel_name, self._connection.place
        return f"<DurableSubscription of durable {self._durable!r} of channel {of!r} at {place}>"

    async def open(self) -> DurableSubscription:
        """Take the seat. Raises ``DurableInUse``, ``InvalidArgument``. Iterating opens it, too."""
        async with self._changing:
            await self._open()
        return self

    async def _open(self) -> None:
        if not self._attachment.is_open:
            self._forget()  # the last event may have ended with the seat
            await self._attachment.open(self._route(), self._attach)
            if self._handler is not None:
                self._handling = HandlerLoop(
                    self,
                    self._handler,
                    self._connection,
                    channel=self._channel,
                    durable=self._durable,
                    auto_ack=self._auto_ack,
                )

    async def _attach(self) -> None:
        self._generation += 1
        self._settlements.generation = self._generation
        self._settlements.subscription = self._attachment.number
        # Events may come, be rolled back and be recalled before the answer is known here.
        self._recalled = IdSet()
        answer = await self._attachment.request(self._request, Subscribed, self._forget)
        self._settlements.attached(answer, is_recalled=bool(self._recalled))

    def _request(self) -> Attach:
        return Attach(
            self._channel,
            self._attachment.number,
            self._durable,
            window=self._window,
            pull=self._pull,
            selector=self._selector,
            auto_ack=self._auto_ack,
            bytes_max=self._buffer_bytes,
        )

    def _forget(self) -> None:
        """The seat was lost before it was known; what came with it is the realm's again."""
        self._inbox = self._inbox.renewed()
        self._buffered.forget()

    def _make_room(self, taken: int) -> None:
        self._connection.tell(wire.Credit(self._attachment.number, 0, 0, taken=taken))

    def _lost(self) -> None:
        """The connection is lost: what waits here, and what was handed out, is the realm's again.
        Another client may have it at any time, long before this one is connected again."""
        if self._attachment.is_open:
            self._events_gone("the connection was lost")
            self._inbox.clear()
            self._buffered.forget()

    def _events_gone(self, why: str) -> None:
        """Everything delivered so far has gone back to the realm, because ``why``."""
        self._generation += 1
        self._settlements.generation = self._generation
        self._why_gone = why

    async def _reopen(self) -> None:
        if self._attachment.is_open:
            self._inbox.clear()  # the realm has taken these back
            self._buffered.forget()
            self._settlements.forget()
            await self._attach()
            if self._demand:
                self._connection.tell(wire.Demand(self._attachment.number, self._demand))
            else:
                self._met.set()

    # --- what comes ----------------------------------------------------------------------

    def _route(self) -> DeliveryRoute:
        return DeliveryRoute(
            reopen=self._reopen,
            failed=self._failed,
            delivered=self._delivered,
            finished=self._finished,
            recalled=self._take_back,
            hurry=self._settlements.hurry,
            lost=self._lost,
        )

    def _delivered(self, message: wire.Delivery, schema: pa.Schema, body: memoryview) -> None:
        batch = received_batch(message, schema, body)
        counts = redelivery_counts(message) if message.redeliveries else None
        spans = received_spans(message, schema, body)
        delivered = DeliveredBatch(batch, counts, self, publishers=message.publishers, spans=spans)
        self._buffered.add(delivered, len(body))
        self._inbox.put(delivered)

    def _take_back(self, spans: Spans) -> None:
        ids = IdSet(spans)
        self._inbox.reduce(lambda batch: self._without(batch, ids))
        self._recalled.add_all(ids)
        self._has_recalled = True
        self._settlements.recalled()
        self._connection.tell(wire.RecallSeen(self._attachment.number))

    def _without(self, batch: DeliveredBatch, ids: IdSet) -> DeliveredBatch | None:
        rest = batch._without(ids)
        self._buffered.replace(batch, rest, len(rest or ()) / len(batch))
        return rest

    def _drop_all(self) -> None:
        """Drop the waiting events, which have gone back."""
        self._inbox.clear()
        self._buffered.took_all()

    def _finished(self) -> None:
        self._met.set()

    def _failed(self, error: PenstockError) -> None:
        self._events_gone(f"the subscription has ended: {error}")
        self._is_deleted = isinstance(error, NameDoesNotExist)
        self._inbox.clear()  # the realm has taken these back
        self._buffered.forget()
        self._loops.forget()
        self._inbox.fail(error)
        self._met.set()

    # --- taking --------------------------------------------------------------------------

    async def next_batch(self, timeout: Duration | None = None) -> DeliveredBatch | None:
        """The next events; None if none come for ``timeout`` seconds. Events left by an iteration
        come first."""
        timeout = timeout_s(timeout)
        if not self._attachment.is_open:
            await self.open()
        return await self._next(self._timeout if timeout is None else timeout)

    async def _next(self, timeout: float | None) -> DeliveredBatch | None:
        for rest in reversed(self._loops.rests()):
            self._leave(*rest)
        batch = await self._inbox.get(timeout)
        while self._settlements.in_order and batch is not None and self._settlements.rolls_back:
            self._inbox.put_back(batch)  # part of it may be recalled
            await self._settlements.rolled_back()
            if self._settlements.has_lost_rollback:
                self._drop_all()
            batch = await self._inbox.get(timeout)
        if batch is not None:
            self._buffered.took(batch)
            if len(self._inbox):
                batch = self._with_waiting(batch)
            self._handed(batch)
        return batch

    def _leave(self, batch: DeliveredBatch, count: int) -> None:
        rest = None if batch.is_stale else batch._part(count)._without(self._recalled)
        if rest is not None:
            self._inbox.put_back(rest)

    def _handed(self, batch: DeliveredBatch) -> None:
        self._has_rolled_back = self._has_recalled = False
        if self._recalled:
            self._recalled.remove_all(IdSet.of(batch.event_ids.tolist()))

    @property
    def _may_recall(self) -> bool:
        """Whether an event of the batch taken last may have been recalled since."""
        settlements = self._settlements
        if not settlements.in_order:
            return False
        waits = self._has_rolled_back or settlements.rolls_back or settlements.has_lost_rollback
        return waits or self._has_recalled

    async def _is_recalled(self, event: Event) -> bool:
        """Whether the realm has taken an event back, once all rollbacks are answered."""
        await self._settlements.rolled_back()
        return self._settlements.has_lost_rollback or event.event_id in self._recalled

    async def _left_of(self, batch: DeliveredBatch, row: int) -> DeliveredBatch | None:
        """What the realm has not taken back of ``batch`` from ``row`` on, once all rollbacks are
        answered."""
        await self._settlements.rolled_back()
        if batch.is_stale or self._settlements.has_lost_rollback:
            return None
        self._has_recalled = self._has_rolled_back = False
        return batch._part(row)._without(self._recalled)

    def _with_waiting(self, batch: DeliveredBatch) -> DeliveredBatch:
        """One batch of all that is here already.

        Settled together they return their credit together; taken one by one, ever smaller
        deliveries would answer ever smaller settlements.
        """
        parts, rows = [batch], len(batch)
        while (following := self._inbox.waiting()) is not None and rows < MERGED_ROWS_MAX:
            if not may_join(batch, following):
                break
            parts.append(self._inbox.take())
            self._buffered.took(following)
            rows += len(following)
        return batch if len(parts) == 1 else joined(parts)

    async def _fetch(self, count: int, timeout: float | None) -> list[DeliveredBatch]:
        """Up to ``count`` events, as many as come within ``timeout`` seconds. If it is cancelled,
        the events that have come are given to the next call."""
        self._settlements.hurry()
        await self._met.wait()  # an earlier demand was cancelled, and is being withdrawn
        if self._settlements.in_order:
            await self._settlements.rolled_back()  # events left by that one may be recalled
            if self._settlements.has_lost_rollback:
                self._inbox.clear()  # all of them have gone back
        self._inbox.raise_failure()
        missing = count - self._inbox.rows
        if missing > 0:
            await self._demanded(missing, timeout)
        found = []
        while count > 0 and len(self._inbox):
            batch = self._inbox.take()
            if len(batch) > count:
                self._inbox.put_back(batch._part(count))
                batch = batch._part(0, count)
            count -= len(batch)
            self._handed(batch)
            found.append(batch)
        if not found:
            self._settlements.raise_refusal()
            self._inbox.raise_failure()
        return found

    async def _demanded(self, count: int, timeout: float | None) -> None:
        """Ask for ``count`` events, and wait until they have come, or the time is up."""
        self._met.clear()
        self._demand = count
        self._connection.tell(wire.Demand(self._attachment.number, count))
        try:
            async with asyncio.timeout(timeout):  # wait_for may swallow a cancellation
                await self._met.wait()
        except TimeoutError:
            self._call_back()
            await self._met.wait()
        except BaseException:
            self._call_back()
            raise
        self._demand = 0

    def _call_back(self) -> None:
        if not self._met.is_set():
            self._demand = 0
            self._connection.tell(wire.Demand(self._attachment.number, 0))

    # --- settling ------------------------------------------------------------------------

    async def ack(self, event_ids: Iterable[int], *, previous: bool = False) -> None:
        """Acknowledge by id; returns when that is on disk. Raises ``IllegalState`` (SEM D15).

        Events that a reconnect has brought again, and that wait here, are not handed out then.
        """
        await self._settle(IdSet.of(event_ids), previous=previous, on_done=self._acknowledged)

    def _acknowledged(self, spans: Spans) -> None:
        """Drop waiting events that are acknowledged: the caller has had them before a reconnect."""
        if spans and self._settlements.cumulative:
            spans = (Span(0, spans[-1][1]),)
        ids = IdSet(spans)
        self._inbox.reduce(lambda batch: self._without(batch, ids))

    async def rollback(self, event_ids: Iterable[int], *, delay: Duration | None = None) -> None:
        """Give back by id, with a ``delay`` (``"5s"``, or seconds) to come again no sooner than
        that (SEM D18); returns when that is on disk. Raises ``IllegalState`` (SEM D15).

        Events that wait here to be handed out, such as those that a reconnect has brought again,
        are left as they are: they have gone back already.
        """
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        ids = IdSet.of(event_ids)
        for batch in self._to_come():
            ids.remove_all(ids.overlap(batch._ids()))
        await self._settle(ids, roll_back=True, delay_ms=delay_ms)

    def _to_come(self) -> list[DeliveredBatch]:
        """What waits here, be it in a batch that a loop has begun."""
        begun = [each for each in self._loops.to_come() if not each[0].is_stale]
        return [*(batch._part(first) for batch, first in begun), *self._inbox]

    async def extend(self, event_ids: Iterable[int], time: Duration) -> int:
        """Have ``time`` (``"30s"``, or seconds) from now on to acknowledge events, by id (SEM D19).
        Gives how many are in hand still. Raises ``IllegalState`` for one that has gone back."""
        return await self._extend(IdSet.of(event_ids), self._generation, time)

    async def _extend(self, ids: IdSet, generation: int, time: Duration) -> int:
        self._check_held(ids.lowest or 0, generation)
        return await self._settlements.extend(ids, milliseconds(time, "time"))

    async def reject(self, event_ids: Iterable[int], reason: str) -> int:
        """Give events up by id: they go to the dead event store at once, with the ``reason`` (SEM
        T11). Gives their number once that is on disk. Raises ``IllegalState`` (SEM D15)."""
        return await self._reject(IdSet.of(event_ids), self._generation, reason)

    async def _reject(self, ids: IdSet, generation: int, reason: str) -> int:
        self._check_held(ids.lowest or 0, generation)
        if self._recalled and (recalled := self._recalled.overlap(ids)):
            raise self._recall_of(recalled.lowest)
        return await self._settlements.reject(ids, reason)

    async def _settle(
        self,
        ids: IdSet,
        *,
        roll_back: bool = False,
        previous: bool = False,
        delay_ms: int | None = None,
        on_done: Callable[[Spans], None] | None = None,
    ) -> None:
        """Acknowledge ``ids``, which it may change, or give them back; returns when that is on
        disk. Raises ``IllegalState`` (SEM D15), and ``SessionClosed`` once it is closed."""
        if not roll_back and self._generation:
            self._check_held(ids.lowest or 0, self._generation)
        if self._generation <= self._closed_through:
            return  # all of them are back
        if roll_back:
            ids.remove_all(self._recalled)  # these are back already
        elif self._recalled and (recalled := self._recalled.overlap(ids)):
            raise self._recall_of(recalled.lowest)
        self._settlements.hurry()  # earlier settlements must arrive before it
        if ids or not roll_back:
            await self._settlements.send(
                ids, roll_back=roll_back, previous=previous, delay_ms=delay_ms, on_done=on_done
            )

    def _check_held(self, event_id: int, generation: int) -> None:
        """Raises ``SessionClosed`` for an event that went back as this was closed (SEM D13), and
        ``IllegalState`` for one that went back before (SEM D15)."""
        gone = f"event {event_id} has gone back to durable {self._durable}"
        if generation <= self._closed_through:
            raise SessionClosed(
                f"the subscription is closed, and {gone}, which delivers it again; acknowledge it "
                "before you close"
            )
        if self._connection.is_closed:
            raise SessionClosed(f"the session is closed, and {gone}, which delivers it again")
        if generation != self._generation:
            raise IllegalState(
                f"{gone}, because {self._why_gone}; nothing was done now, and while the event is "
                "outstanding it is delivered again"
            )

    def _check_acknowledged(self, event_id: int, generation: int) -> None:
        """Raise as :meth:`_check_held`, but for an event that was deleted with its channel or
        durable: an acknowledgement of that is no error, as of one that was purged."""
        if not self._is_deleted or generation == self._generation:
            self._check_held(event_id, generation)

    def _settle_soon(
        self,
        event_id: int,
        generation: int,
        *,
        roll_back: bool,
        previous: bool = False,
        delay_ms: int | None = None,
    ) -> None:
        """Settle without waiting; what one turn of the loop settles travels together.

        An event of an earlier generation is the realm's again: nothing is sent for it. Raises
        ``IllegalState``, or ``SessionClosed`` after a close, if it is to be acknowledged.
        """
        if not roll_back:
            self._check_acknowledged(event_id, generation)
        if generation <= self._closed_through or generation != self._generation:
            return
        if not self._settlements.in_order or event_id not in self._recalled:
            self._settlements.soon(
                event_id, roll_back=roll_back, previous=previous, delay_ms=delay_ms
            )
        elif not roll_back:
            self._settlements.refuse(self._recall_of(event_id))

    def _in_turn(self, settle: Callable[[], None]) -> None:
        """Settle for another thread, which does not wait for the outcome: a refusal is reported,
        and raised by the next flush or close."""
        try:
            settle()
        except PenstockError as error:
            if not is_ending():
                self._settlements.refuse(error)

    def _recall_of(self, event_id: int | None) -> IllegalState:
        return IllegalState(
            f"event {event_id} of durable {self._durable} was recalled because "
            f"{self._settlements.why_recalled}; while it is outstanding it is delivered again"
        )

    async def flush(self) -> None:
        """Wait until everything settled so far is on disk.

        Raises the first refusal, and ``ConnectionLost`` when some of it was on its way as the
        connection was lost: those events may be delivered again.
        """
        await self._settlements.flush()

    @property
    def _has_ended(self) -> bool:
        """The realm, or the session, has ended it: what was not settled is the realm's again."""
        return self._inbox.has_failed

    async def close(self) -> None:
        """Confirm settlements, give back the rest, and leave the seat. Raises as :meth:`flush` what
        was refused or lost and has not been raised."""
        await self._close_quietly()
        self._settlements.raise_first()

    async def _close_quietly(self) -> None:
        if not self._attachment.is_open:
            return
        self._attachment.is_open = False
        self._loops.closed()
        async with self._changing:
            await self._close()

    async def _close(self) -> None:
        self._closed_through = self._generation
        try:
            if self._handling is not None:
                await self._handling.end()
            await self._settlements.confirm()
        finally:
            self._inbox.fail(SessionClosed("the subscription is closed"))
            await self._attachment.leave()

    async def __aenter__(self) -> DurableSubscription:
        return await self.open()
