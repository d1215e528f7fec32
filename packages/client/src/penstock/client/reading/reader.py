"""Readers of a queue: each event goes to one of them (SEM Q).

A reader requests events when it has room for them, and holds no more than its window. Events that
the application has not received or not committed return to the queue when the reader closes or its
connection ends.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
from msgspec.structs import replace

from penstock.client.connection import tracing
from penstock.client.connection.arguments import (
    Duration,
    check_count,
    milliseconds,
    timeout_s,
)
from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.tracing import OperationSource
from penstock.client.reading.attachment import Attachment
from penstock.client.reading.inbox import deadline_of
from penstock.client.reading.looping import Closing
from penstock.client.reading.received import ReceivedBatch, ReceivedEvent
from penstock.client.reading.seat_attachment import SeatAttachment
from penstock.client.reading.settlements import lost_before_sent
from penstock.client.reading.subscription import received_batch, redelivery_counts
from penstock_core.api.subscriptions import Attach
from penstock_core.columns.events.event import Event
from penstock_core.display import safe_repr, short
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    IllegalState,
    InvalidArgument,
    PenstockError,
    SessionClosed,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.wire.native import messages as wire

READERS = ""
"""Name of the durable that all readers of a queue share."""
WINDOW_DEFAULT = 10
"""Default for the maximum number of events that a reader holds."""
RELAYED_MAX = 1_000
"""Maximum number of events of a transient queue that wait for a plain reader's next call."""


class DeliveredPart:
    """The events of one delivery, and the number of them that the application has received."""

    def __init__(self, events: ReceivedBatch, seat: Attachment) -> None:
        self._events = events
        self._seat = seat
        self._next = 0
        self.generation = seat.generation

    def __len__(self) -> int:
        """Number of events that the application has not received."""
        return len(self._events) - self._next

    @property
    def is_stale(self) -> bool:
        """Whether the connection has been lost since the delivery: the realm delivers the events
        again."""
        return self.generation != self._seat.generation

    def to_arrow(self) -> pa.RecordBatch:
        """Return the unreceived events."""
        return self._events.to_arrow().slice(self._next)

    def __iter__(self) -> Iterator[tuple[int, ReceivedEvent]]:
        """Yield the unreceived events with their ids; each counts as received."""
        events, ids = self._events, self._events.event_ids.tolist()
        for event in itertools.islice(events, self._next, None):
            # A recall may have replaced the events since the last step.
            if self.is_stale or events is not self._events:
                return
            self._next += 1
            yield ids[self._next - 1], event

    def take(self, limit: int) -> ReceivedBatch:
        """Return up to ``limit`` unreceived events as a batch; they count as received."""
        first, self._next = self._next, min(self._next + limit, len(self._events))
        if first == 0 and self._next == len(self._events):
            return self._events
        events = self._events
        return events._part(first, self._next - first)

    def without(self, ids: IdSet) -> DeliveredPart | None:
        """Remove unreceived events with ``ids``. Return the part, or None if no event is left."""
        events = self._events
        kept = [event_id not in ids for event_id in events.event_ids[self._next :].tolist()]
        if not all(kept):
            rows = events.to_arrow().slice(self._next).filter(pa.array(kept, pa.bool_()))
            self._events = events._with(rows)
            self._next = 0
        return self if len(self) else None

    def holds(self, event_id: int) -> bool:
        """Return whether an event has arrived and is unreceived."""
        return bool((self._events.event_ids[self._next :] == event_id).any())


class Reader(Closing):
    """A reader of a queue, opened by :meth:`Queue.reader`: iterate over it, or call :meth:`fetch`.
    Only one task may use it at a time.

    A plain reader removes an event from the queue by receiving it. A transactional reader removes
    it by :meth:`commit`; until then the realm reserves the event for this reader, at most
    ``window`` of them. :meth:`rollback`, closing, and the end of the connection return events to
    the queue with one more redelivery (SEM Q2, Q3).
    """

    def __init__(
        self,
        connection: RealmConnection,
        queue: ChannelId,
        *,
        transactional: bool = False,
        window: int = WINDOW_DEFAULT,
        selector: str = "",
        timeout: Duration | None = None,
        relayed: bool = False,
        ack_timeout: Duration | None = None,
        name: str = "",
    ) -> None:
        check_count(window, "window")
        self._ack_timeout_ms = 0
        if ack_timeout is not None:
            self._ack_timeout_ms = milliseconds(ack_timeout, "ack_timeout")
        if self._ack_timeout_ms and not transactional:
            raise InvalidArgument(
                "ack_timeout has no effect on a plain reader, which acknowledges events as it "
                "receives them; open the reader with transactional=True"
            )
        self._timeout = timeout_s(timeout)
        self._connection = connection
        self._name = name
        self._transactional = transactional
        self._relayed = relayed
        """Whether the queue is transient: it stores no events, so they are sent without a demand
        and wait here."""
        self._window = window
        message = Attach(
            queue,
            0,
            READERS,
            window=max(window, RELAYED_MAX) if relayed and not transactional else window,
            pull=not relayed,
            selector=selector,
            ack_timeout_ms=self._ack_timeout_ms,
        )
        self._seat = SeatAttachment[DeliveredPart](connection, message)
        self._seat.source = OperationSource(connection, name)
        self._settlements = self._seat.settlements
        self._held = IdSet()
        """Events received and not committed."""
        self._lost_ids = IdSet()
        """Events received, not committed, and returned to the queue because a connection was
        lost."""
        self._returned = IdSet()
        """Events received, not committed, and returned to the queue by closing."""
        self._timed_out_ids = IdSet()
        """Events received, not committed in time, and recalled by the realm (SEM D19)."""

    @safe_repr
    def __repr__(self) -> str:
        seat = self._seat
        state = f"{seat.state}, {seat.inbox.count_unread()} events unread"
        if self._transactional:
            state += f", {len(self._held)} uncommitted"
        return f"<Reader of queue {short(self._name)} {self._connection.standing}, {state}>"

    # --- opening and closing -------------------------------------------------------------

    async def open(self) -> Reader:
        """Take a seat at the queue and return the reader; ``async with``, iterating and fetching do
        so, too. Raises ``InvalidSelector``, ``AccessDenied``."""
        seat = self._seat
        if not seat.is_open:
            seat.forget()
            route = seat.route(self._delivered)
            route = replace(route, recalled=self._recalled, lost=self._connection_lost)
            await seat.open(route, seat.attach)
            self._returned = IdSet()
        return self

    async def close(self) -> None:
        """Return uncommitted and unreceived events to the queue, and leave the seat. On a plain
        reader it raises, as :meth:`flush` does, an error that has not been raised yet."""
        await self._close_quietly()
        self._settlements.raise_first()

    async def _close_quietly(self) -> None:
        """Close, and keep errors of settlements for the next flush or close."""
        seat = self._seat
        if not seat.is_open:
            return
        seat.is_open = False
        try:
            await self._settlements.confirm()
        finally:
            seat.failed(SessionClosed("the reader is closed"))
            seat.inbox.clear()
            self._returned = self._held if self._transactional else IdSet()
            self._held, self._lost_ids, self._timed_out_ids = IdSet(), IdSet(), IdSet()
            await seat.leave()

    async def __aenter__(self) -> Reader:
        return await self.open()

    # --- calls of the connection ---------------------------------------------------------

    def _delivered(self, message: wire.Delivery, schema: pa.Schema, body: memoryview) -> None:
        """Add a delivery to the inbox of the seat."""
        batch = received_batch(message, schema, body)
        counts = redelivery_counts(message)
        events = ReceivedBatch(
            batch, counts or None, self._connection.replier, publishers=message.publishers
        )
        self._seat.inbox.put(DeliveredPart(events, self._seat))

    def _recalled(self, spans: Spans) -> None:
        """Forget events that the realm has recalled because they were not committed in time."""
        ids = IdSet(spans)
        inbox = self._seat.inbox
        inbox.reduce(lambda part: part.without(ids))
        self._timed_out_ids.add_all(self._held.remove_all(ids))
        self._seat.recall(spans)
        inbox.wake()  # the window has room again

    def _connection_lost(self) -> None:
        """Count uncommitted events as returned to the queue, because the connection is lost."""
        if self._seat.is_open:
            self._lost_ids.add_all(self._held)
            self._held = IdSet()
        self._seat.lost()

    # --- receiving -----------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Number of events that the reader may request now."""
        return self._window - len(self._held) - self._seat.inbox.rows

    def _demand(self, count: int) -> None:
        if not self._relayed:
            self._seat.demand(count)

    async def _change(self, deadline_s: float | None) -> bool:
        """Wait until a batch arrives or the seat changes. Return False at the deadline.

        At the deadline the demand is withdrawn. Events that the realm has sent by then arrive
        before its confirmation, so that even a timeout of 0 delivers events that are ready.
        """
        seat = self._seat
        if await seat.inbox.changes(deadline_s):
            return True
        seat.withdraw()
        await seat.demand_ended.wait()
        return bool(len(seat.inbox)) or seat.inbox.has_failed

    def _head(self) -> DeliveredPart | None:
        """Return the first waiting part with unreceived events, and drop those before it."""
        inbox = self._seat.inbox
        while (part := inbox.waiting()) is not None and (part.is_stale or not len(part)):
            inbox.take()
        return part

    async def _next_part(self, timeout: Duration | None = None) -> DeliveredPart | None:
        """Return the next part with unreceived events; None if none arrive in time."""
        return await tracing.received(self._seat.source, self._part(timeout))

    async def _part(self, timeout: Duration | None) -> DeliveredPart | None:
        """Return the next part without recording it."""
        timeout = timeout_s(timeout)
        await self.open()
        deadline_s = deadline_of(self._timeout if timeout is None else timeout)
        while True:
            head = self._head()
            room = self._room
            # Requesting when half of the window is free saves a round trip for each event.
            if room * 2 >= self._window or head is None:
                self._demand(room)
            if head is not None:
                return head
            self._seat.inbox.raise_failure()
            if not await self._change(deadline_s):
                return None

    def _received(self, event_id: int, generation: int) -> None:
        """Count an event as received: hold it, or acknowledge it if the reader is plain."""
        if generation != self._seat.generation:
            # The connection has just been lost, so the realm delivers the event again.
            if self._transactional:
                self._lost_ids.add(Span(event_id, event_id + 1))
            else:
                self._settlements.refuse(lost_before_sent(event_id))
        elif self._transactional:
            self._hold(IdSet((Span(event_id, event_id + 1),)))
        else:
            self._settlements.settle_soon(event_id, roll_back=False)

    def _hold(self, ids: IdSet) -> None:
        """Record that the application has received ``ids``."""
        self._held.add_all(ids)
        self._lost_ids.remove_all(ids)
        self._timed_out_ids.discard_all(ids)

    async def __aiter__(self) -> AsyncIterator[ReceivedEvent]:
        async with self._looping():
            while (part := await self._next_part()) is not None:
                for event_id, event in part:
                    self._received(event_id, part.generation)
                    yield event

    @contextlib.asynccontextmanager
    async def _looping(self) -> AsyncIterator[None]:
        """Close the reader at the end of a loop that has opened it.

        After a loop that was left early, Python closes the generator outside the caller's code,
        where the caller could not catch an error. Errors are then kept for the next flush or close.
        """
        opened_here = not self._seat.is_open
        try:
            yield
        except BaseException:
            if opened_here:
                await self._close_quietly()
            raise
        if opened_here:
            await self.close()

    async def batches(self) -> AsyncIterator[ReceivedBatch]:
        """Iterate over events in batches with Arrow columns. An iteration that has opened the
        reader closes it at its end."""
        async with self._looping():
            while (batch := await self.next_batch()) is not None:
                yield batch

    async def next_batch(self, timeout: Duration | None = None) -> ReceivedBatch | None:
        """Return the events that have arrived, in one batch; None if none arrive within ``timeout``
        seconds (default: the reader's timeout)."""
        part = await self._next_part(timeout)
        return None if part is None else self._receive(part, len(part))

    def _receive(self, part: DeliveredPart, limit: int) -> ReceivedBatch:
        """Return up to ``limit`` events of a part, held or, by a plain reader, acknowledged."""
        batch = part.take(limit)
        ids = IdSet.from_ids(batch.event_ids.tolist())
        if self._transactional:
            self._hold(ids)
        else:
            self._settlements.watch(self._settlements.send(ids))
        return batch

    async def fetch(self, count: int, timeout: Duration = 0.0) -> list[ReceivedEvent]:
        """Return up to ``count`` events, as many as arrive within ``timeout`` seconds. A
        transactional reader gets no more than its window has room for."""
        return [event for batch in await self.fetch_batches(count, timeout) for event in batch]

    async def fetch_batches(
        self, count: int, timeout: Duration | None = 0.0
    ) -> list[ReceivedBatch]:
        """Return events as :meth:`fetch` does, in batches with Arrow columns."""
        check_count(count, "count")
        fetch = self._fetch(count, timeout_s(timeout))
        return await tracing.received_all(self._seat.source, fetch)

    async def _fetch(self, count: int, timeout: float | None) -> list[ReceivedBatch]:
        """Fetch without recording it."""
        await self.open()
        deadline_s = deadline_of(timeout)
        batches: list[ReceivedBatch] = []
        while count:
            if (head := self._head()) is not None:
                batches.append(self._receive(head, count))
                count -= len(batches[-1])
                continue
            # Events received before a failure are returned; the next call raises it.
            failed = self._seat.inbox.has_failed
            if failed and not batches:
                self._seat.inbox.raise_failure()
            self._demand(min(count, self._room) if self._transactional else count)
            if failed or not await self._change(deadline_s):
                break
        return batches

    # --- settling ------------------------------------------------------------------------

    async def commit(self, event: Event | int | None = None, *, individual: bool = False) -> None:
        """Remove received events from the queue, and return when the realm has stored that.

        Without ``event``, all uncommitted events of this reader are committed; with ``event`` (an
        event or its id), all up to and including it; with ``individual``, only that one.

        If events have returned to the queue, nothing is committed and they are delivered again:
        the call raises ``SessionClosed`` if they returned because the reader was closed, also at
        the end of an iteration that had opened it, ``ConnectionLost`` if they returned because the
        connection was lost, and ``IllegalState`` if they were not committed within
        ``ack_timeout``. Also raises ``IllegalState`` for an event that this reader has not
        received.
        """
        self._check_returned()
        self._check_late(event)
        ids = self._held_of("commit", event, individual=individual)
        await self._settle(ids, roll_back=False)

    def _held_of(self, verb: str, event: Event | int | None, *, individual: bool) -> IdSet:
        """Return the selected events. Raises ``ConnectionLost``, once, if some of them have
        returned to the queue with a lost connection."""
        ids = self._chosen(verb, event, individual=individual)
        lost = self._lost_of(event, ids)
        if lost:
            self._lost_ids.remove_all(lost)
            raise ConnectionLost(
                f"the connection was lost since {len(lost)} of these events were delivered (the "
                f"first is {lost.lowest}): they returned to the queue and are delivered again; "
                "nothing was done"
            )
        return ids

    def _lost_of(self, event: Event | int | None, ids: IdSet) -> IdSet:
        """Return the events of ``ids`` that were lost with a connection; without ``event``, all
        lost events."""
        return self._lost_ids.copy() if event is None else self._lost_ids.overlap(ids)

    async def rollback(
        self,
        event: Event | int | None = None,
        *,
        individual: bool = False,
        delay: Duration | None = None,
    ) -> None:
        """Return events to the queue; they are selected as for :meth:`commit`.

        They keep their ids and places, and are delivered again with one more redelivery (SEM Q3):
        with a ``delay`` (seconds, or a text such as ``"5s"``) no sooner than that, otherwise after
        the queue's backoff (SEM D18).
        """
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        ids = self._chosen("rollback", event, individual=individual)
        already_back = self._lost_of(event, ids)
        self._lost_ids.remove_all(already_back)
        ids.remove_all(already_back)
        with contextlib.suppress(ConnectionLost):  # losing the connection also rolls them back
            await self._settle(ids, roll_back=True, delay_ms=delay_ms)

    async def extend(
        self, event: Event | int | None = None, *, time: Duration, individual: bool = False
    ) -> None:
        """Restart the ``ack_timeout`` of events: they have to be committed within ``time`` from
        now, in seconds or as a text such as ``"30s"`` (SEM D19). They are selected as for
        :meth:`commit`.

        Raises ``IllegalState`` for an event that this reader no longer holds, and
        ``ConnectionLost`` if it returned to the queue because the connection was lost.
        """
        time_ms = milliseconds(time, "time")
        ids = self._held_of("extend", event, individual=individual)
        if ids:
            await self._settlements.extend(ids, time_ms)

    async def reject(
        self, event: Event | int | None = None, *, reason: str, individual: bool = False
    ) -> None:
        """Send events to the dead event store immediately, with the cause ``rejected`` and the
        ``reason`` (SEM T11), and return when the realm has stored that. They are selected as for
        :meth:`commit`.

        Raises the errors of :meth:`commit`, and ``IllegalState`` if the queue has no dead event
        store; the reader then still holds the events.
        """
        self._check_returned()
        self._check_late(event)
        ids = self._held_of("reject", event, individual=individual)
        held, generation = self._held.overlap(ids), self._seat.generation
        if ids:
            await self._settlements.reject(ids, reason)
        if generation == self._seat.generation:
            self._held.remove_all(held)
        self._seat.inbox.wake()  # the window has room again

    def _check_returned(self) -> None:
        """Raise ``SessionClosed``, once, for events that have returned to the queue by closing."""
        returned, self._returned = self._returned, IdSet()
        if returned:
            raise SessionClosed(
                f"the reader was closed with {len(returned)} uncommitted events, which returned to "
                f"the queue (the first is {returned.lowest}); nothing was committed; commit before "
                "you close the reader"
            )

    def _check_late(self, event: Event | int | None) -> None:
        """Raise ``IllegalState``, once, for events that were not committed in time."""
        late = self._timed_out_ids.copy()
        if event is not None:
            event_id = event.event_id if isinstance(event, Event) else event
            late = late.within(Span(event_id, event_id + 1)) if event_id is not None else IdSet()
        self._timed_out_ids.discard_all(late)
        if late:
            raise IllegalState(
                f"the queue has taken back {len(late)} of these events (the first is "
                f"{late.lowest}), because they were not committed within "
                f"{self._ack_timeout_ms / 1_000:g} s (ack_timeout); nothing was done"
            )

    def _chosen(self, verb: str, event: Event | int | None, *, individual: bool) -> IdSet:
        """Return the ids that a settlement selects. Raises ``IllegalState``,
        ``InvalidArgument``."""
        if not self._transactional:
            raise IllegalState(
                f"a plain reader has no {verb}: it removes events from the queue as it receives "
                "them; open the reader with transactional=True"
            )
        if event is None:
            if individual:
                raise InvalidArgument(f"{verb}(individual=True) needs an event or its id")
            return self._held.copy()
        event_id = event.event_id if isinstance(event, Event) else event
        if type(event_id) is not int or event_id < 0:
            raise InvalidArgument(f"{verb} {event!r}: give an event that was read, or its id")
        if not individual:
            chosen = self._held.within(Span(0, event_id + 1))
            chosen.add_all(self._lost_ids.within(Span(0, event_id + 1)))
            if event_id not in chosen:
                raise IllegalState(
                    f"event {event_id} is not held by this reader: the reader has not received it, "
                    f"or it is already settled"
                )
            return chosen
        is_lost = event_id in self._lost_ids  # a lost event may wait in the inbox again
        if not is_lost and any(part.holds(event_id) for part in self._seat.inbox):
            raise IllegalState(f"event {event_id} has not been received from this reader yet")
        return IdSet((Span(event_id, event_id + 1),))

    async def _settle(self, ids: IdSet, *, roll_back: bool, delay_ms: int | None = None) -> None:
        """Settle events; those of a refused settlement are held again."""
        held, generation = self._held.overlap(ids), self._seat.generation
        self._held.remove_all(held)
        if not ids:
            return
        try:
            await self._settlements.send(ids, roll_back=roll_back, delay_ms=delay_ms)
        except ConnectionLost:
            raise  # the events have returned to the queue
        except PenstockError:
            if generation == self._seat.generation:
                self._held.add_all(held)
            raise
        self._seat.inbox.wake()  # the window has room again

    async def flush(self) -> None:
        """Wait until the realm has stored the removal of all events that a plain reader has
        received.

        Raises ``ConnectionLost`` if the connection was lost before that: some of the events may be
        delivered again.
        """
        await self._settlements.flush()
