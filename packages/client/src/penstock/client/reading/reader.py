"""Readers of a queue: each event goes to one of them (SEM Q).

A reader asks for events when it has room for them, and holds no more than its window. Events that
it has not handed out, or that are not committed, go back when it closes or its connection ends.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
from msgspec.structs import replace

from penstock.client.connection.arguments import (
    Duration,
    check_count,
    milliseconds,
    timeout_s,
)
from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.attachment import Attachment
from penstock.client.reading.inbox import deadline_of
from penstock.client.reading.looping import Closing
from penstock.client.reading.received import ReceivedBatch, ReceivedEvent
from penstock.client.reading.seat_attachment import SeatAttachment
from penstock.client.reading.settlements import lost_before_sent
from penstock.client.reading.subscription import received_batch, redelivery_counts
from penstock_core.api.subscriptions import Attach
from penstock_core.columns.events.event import Event
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
"""The durable of a queue that its readers share."""
WINDOW_DEFAULT = 10
RELAYED_MAX = 1_000
"""Events of a transient queue that wait for a plain reader's next call."""


class DeliveredPart:
    """The events of one delivery, and how many of them were handed out."""

    def __init__(self, events: ReceivedBatch, seat: Attachment) -> None:
        self._events = events
        self._seat = seat
        self._next = 0
        self.generation = seat.generation

    def __len__(self) -> int:
        """Number of events that were not handed out."""
        return len(self._events) - self._next

    @property
    def is_stale(self) -> bool:
        """Whether the connection was lost since: the realm delivers these again."""
        return self.generation != self._seat.generation

    def __iter__(self) -> Iterator[tuple[int, ReceivedEvent]]:
        """The events that are left, with their ids; each counts as handed out."""
        events, ids = self._events, self._events.event_ids.tolist()
        for event in itertools.islice(events, self._next, None):
            if self.is_stale or events is not self._events:
                return
            self._next += 1
            yield ids[self._next - 1], event

    def take(self, limit: int) -> ReceivedBatch:
        """Hand out up to ``limit`` at once, in columns."""
        first, self._next = self._next, min(self._next + limit, len(self._events))
        if first == 0 and self._next == len(self._events):
            return self._events
        events = self._events
        return events._part(first, self._next - first)

    def without(self, ids: IdSet) -> DeliveredPart | None:
        """Forget those of ``ids`` that were not handed out; None if no others are left."""
        events = self._events
        kept = [event_id not in ids for event_id in events.event_ids[self._next :].tolist()]
        if not all(kept):
            rows = events.to_arrow().slice(self._next).filter(pa.array(kept, pa.bool_()))
            self._events = events._with(rows)
            self._next = 0
        return self if len(self) else None

    def holds(self, event_id: int) -> bool:
        """Whether an event is among those not handed out."""
        return bool((self._events.event_ids[self._next :] == event_id).any())


class Reader(Closing):
    """Iterate it, or :meth:`fetch`. Not for several tasks at once.

    A plain reader's events are off the queue once they are handed to you. With a transactional
    one they are when you :meth:`commit`; until then the realm holds them for you, at most
    ``window`` of them, and :meth:`rollback`, closing, or the end of the connection give them
    back, counted (SEM Q2, Q3).
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
                "a plain reader acknowledges events as it hands them out, so ack_timeout has no "
                "effect; open the reader with transactional=True"
            )
        self._timeout = timeout_s(timeout)
        self._connection = connection
        self._name = name
        self._transactional = transactional
        self._relayed = relayed
        """Whether the queue stores nothing: events come without a demand, and wait here."""
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
        self._settlements = self._seat.settlements
        self._held = IdSet()
        """Handed out and not committed."""
        self._gone = IdSet()
        """Handed out, not committed, and lost with a connection."""
        self._returned = IdSet()
        """Handed out, not committed, and given back by closing."""
        self._late = IdSet()
        """Handed out, not committed in time, and taken back by the realm (SEM D19)."""

    def __repr__(self) -> str:
        return f"<Reader of queue {self._name!r} at {self._connection.place}>"

    # --- coming and going ----------------------------------------------------------------

    async def open(self) -> Reader:
        """Take a seat at the queue. Raises ``InvalidSelector``. Iterating opens it, too."""
        seat = self._seat
        if not seat.is_open:
            seat.forget()
            route = seat.route(self._delivered)
            await seat.open(replace(route, recalled=self._recalled, lost=self._lost), seat.attach)
            self._returned = IdSet()
        return self

    async def close(self) -> None:
        """Give back events that are not committed or not handed out, and leave the seat. A plain
        reader's raises as :meth:`flush` what has not been raised."""
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
            self._held, self._gone, self._late = IdSet(), IdSet(), IdSet()
            await seat.leave()

    async def __aenter__(self) -> Reader:
        return await self.open()

    # --- what comes ----------------------------------------------------------------------

    def _delivered(self, message: wire.Delivery, schema: pa.Schema, body: memoryview) -> None:
        batch = received_batch(message, schema, body)
        counts = redelivery_counts(message)
        events = ReceivedBatch(
            batch, counts or None, self._connection.replier, publishers=message.publishers
        )
        self._seat.inbox.put(DeliveredPart(events, self._seat))

    def _recalled(self, spans: Spans) -> None:
        """The realm has taken these back, because they were not committed in time."""
        ids = IdSet(spans)
        inbox = self._seat.inbox
        inbox.reduce(lambda part: part.without(ids))
        self._late.add_all(self._held.remove_all(ids))
        self._seat.recall(spans)
        inbox.wake()  # there is room in the window

    def _lost(self) -> None:
        """The connection is lost, and what is in the user's hands is the realm's again."""
        if self._seat.is_open:
            self._gone.add_all(self._held)
            self._held = IdSet()
        self._seat.lost()

    # --- taking --------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return self._window - len(self._held) - self._seat.inbox.rows

    def _demand(self, count: int) -> None:
        if not self._relayed:
            self._seat.demand(count)

    async def _change(self, deadline_s: float | None) -> bool:
        """Wait until something comes or changes; gives False if nothing did until the deadline.

        Then the demand is withdrawn, and what the realm had granted by then comes before the
        answer. So even without any time one gets the events that are there.
        """
        seat = self._seat
        if await seat.inbox.changes(deadline_s):
            return True
        seat.withdraw()
        await seat.demand_ended.wait()
        return bool(len(seat.inbox)) or seat.inbox.has_failed

    def _head(self) -> DeliveredPart | None:
        inbox = self._seat.inbox
        while (part := inbox.waiting()) is not None and (part.is_stale or not len(part)):
            inbox.take()
        return part

    async def _next_part(self, timeout: Duration | None = None) -> DeliveredPart | None:
        """The events that are here, once there are some; None: none came in time."""
        timeout = timeout_s(timeout)
        await self.open()
        deadline_s = deadline_of(self._timeout if timeout is None else timeout)
        while True:
            head = self._head()
            room = self._room
            if room * 2 >= self._window or head is None:
                self._demand(room)
            if head is not None:
                return head
            self._seat.inbox.raise_failure()
            if not await self._change(deadline_s):
                return None

    def _handed(self, event_id: int, generation: int) -> None:
        """An event is in the user's hands now."""
        # the connection was lost just now, and they are delivered again
        if generation != self._seat.generation:
            if self._transactional:
                self._gone.add(Span(event_id, event_id + 1))
            else:
                self._settlements.refuse(lost_before_sent(event_id))
        elif self._transactional:
            self._hold(IdSet((Span(event_id, event_id + 1),)))
        else:
            self._settlements.soon(event_id, roll_back=False)

    def _hold(self, ids: IdSet) -> None:
        self._held.add_all(ids)
        self._gone.remove_all(ids)
        self._late.discard_all(ids)

    async def __aiter__(self) -> AsyncIterator[ReceivedEvent]:
        async with self._looping():
            while (part := await self._next_part()) is not None:
                for event_id, event in part:
                    self._handed(event_id, part.generation)
                    yield event

    @contextlib.asynccontextmanager
    async def _looping(self) -> AsyncIterator[None]:
        """Close at the end of a loop what it has opened. One that is left early is finalized by
        Python, and nobody could catch an error."""
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
        """Iterate over arriving columns; at its end the iteration closes what it has opened."""
        async with self._looping():
            while (batch := await self.next_batch()) is not None:
                yield batch

    async def next_batch(self, timeout: Duration | None = None) -> ReceivedBatch | None:
        """The events that are here, in columns; None if nothing comes for ``timeout`` seconds."""
        part = await self._next_part(timeout)
        return None if part is None else self._taken(part, len(part))

    def _taken(self, part: DeliveredPart, limit: int) -> ReceivedBatch:
        batch = part.take(limit)
        ids = IdSet.from_ids(batch.event_ids.tolist())
        if self._transactional:
            self._hold(ids)
        else:
            self._settlements.watch(self._settlements.send(ids))
        return batch

    async def fetch(self, count: int, timeout: Duration = 0.0) -> list[ReceivedEvent]:
        """Take up to ``count`` events, as many as come within ``timeout`` seconds; a transactional
        reader gets no more than its window has room for."""
        return [event for batch in await self.fetch_batches(count, timeout) for event in batch]

    async def fetch_batches(
        self, count: int, timeout: Duration | None = 0.0
    ) -> list[ReceivedBatch]:
        """Take events as :meth:`fetch` does, in columns."""
        check_count(count, "count")
        timeout = timeout_s(timeout)
        await self.open()
        deadline_s = deadline_of(timeout)
        taken: list[ReceivedBatch] = []
        while count:
            if (head := self._head()) is not None:
                taken.append(self._taken(head, count))
                count -= len(taken[-1])
                continue
            failed = self._seat.inbox.has_failed
            if failed and not taken:
                self._seat.inbox.raise_failure()
            self._demand(min(count, self._room) if self._transactional else count)
            if failed or not await self._change(deadline_s):
                break
        return taken

    # --- settling ------------------------------------------------------------------------

    async def commit(self, event: Event | int | None = None, *, individual: bool = False) -> None:
        """Take events off the queue for good: all that are in hand; up to and including
        ``event`` (or its id); or with ``individual`` that one alone. Returns when that is on disk.

        Raises ``SessionClosed`` when they went back as the reader was closed, also at the end of
        an iteration that had opened it, and ``ConnectionLost`` when some of them did because the
        connection was lost: nothing was committed, and they are delivered again. Raises
        ``IllegalState`` for an event that was not handed out.
        """
        self._check_returned()
        self._check_late(event)
        ids = self._held_of("commit", event, individual=individual)
        await self._settle(ids, roll_back=False)

    def _held_of(self, verb: str, event: Event | int | None, *, individual: bool) -> IdSet:
        """The events that are chosen. Raises ``ConnectionLost``, once, if some of them went back
        with a connection."""
        ids = self._chosen(verb, event, individual=individual)
        lost = self._gone_of(event, ids)
        if lost:
            self._gone.remove_all(lost)
            raise ConnectionLost(
                f"the connection was lost since {len(lost)} of these events were delivered (the "
                f"first is {lost.lowest}): they went back to the queue and are delivered again; "
                "nothing was done now"
            )
        return ids

    def _gone_of(self, event: Event | int | None, ids: IdSet) -> IdSet:
        """Events that were lost with a connection: those of ``ids``, or all without an event."""
        return self._gone.copy() if event is None else self._gone.overlap(ids)

    async def rollback(
        self,
        event: Event | int | None = None,
        *,
        individual: bool = False,
        delay: Duration | None = None,
    ) -> None:
        """Give events back, as :meth:`commit` takes them off: they keep their ids and their
        places, and come again with one more redelivery on the count (SEM Q3); with a ``delay``
        (``"5s"``, or seconds) no sooner than that, else as the queue's backoff says (SEM D18)."""
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        ids = self._chosen("rollback", event, individual=individual)
        back = self._gone_of(event, ids)
        self._gone.remove_all(back)
        ids.remove_all(back)
        with contextlib.suppress(ConnectionLost):  # the realm has then taken all of them back
            await self._settle(ids, roll_back=True, delay_ms=delay_ms)

    async def extend(
        self, event: Event | int | None = None, *, time: Duration, individual: bool = False
    ) -> None:
        """Have ``time`` (``"30s"``, or seconds) from now on to commit events, chosen as for
        :meth:`commit`, with a reader that has an ``ack_timeout`` (SEM D19).

        Raises ``IllegalState`` for an event that is not in this reader's hands any more, and
        ``ConnectionLost`` if it went back with the connection.
        """
        time_ms = milliseconds(time, "time")
        ids = self._held_of("extend", event, individual=individual)
        if ids:
            await self._settlements.extend(ids, time_ms)

    async def reject(
        self, event: Event | int | None = None, *, reason: str, individual: bool = False
    ) -> None:
        """Give events up, as :meth:`commit` takes them off: they go to the dead event store at
        once, with the cause ``rejected`` and the ``reason`` (SEM T11). Returns when that is on
        disk.

        Raises ``IllegalState`` for an event that was not handed out, and without a dead event
        store; then they are still in hand. Raises ``SessionClosed`` and ``ConnectionLost`` as
        :meth:`commit`.
        """
        self._check_returned()
        self._check_late(event)
        ids = self._held_of("reject", event, individual=individual)
        held, generation = self._held.overlap(ids), self._seat.generation
        if ids:
            await self._settlements.reject(ids, reason)
        if generation == self._seat.generation:
            self._held.remove_all(held)
        self._seat.inbox.wake()  # there is room in the window

    def _check_returned(self) -> None:
        returned, self._returned = self._returned, IdSet()
        if returned:
            raise SessionClosed(
                f"{len(returned)} events that were handed out and not committed went back to the "
                f"queue as the reader was closed (the first is {returned.lowest}): nothing was "
                "committed; commit before you close"
            )

    def _check_late(self, event: Event | int | None) -> None:
        """Raises ``IllegalState``, once, for events that were not committed in time."""
        late = self._late.copy()
        if event is not None:
            event_id = event.event_id if isinstance(event, Event) else event
            late = late.within(Span(event_id, event_id + 1)) if event_id is not None else IdSet()
        self._late.discard_all(late)
        if late:
            raise IllegalState(
                f"{len(late)} of these events (the first is {late.lowest}) went back to the queue, "
                f"because they were not committed within {self._ack_timeout_ms / 1_000:g} s "
                "(ack_timeout): nothing was done now"
            )

    def _chosen(self, verb: str, event: Event | int | None, *, individual: bool) -> IdSet:
        if not self._transactional:
            raise IllegalState(
                f"{verb} on a plain reader: its events leave the queue when they are handed out"
                "; open the reader with transactional=True"
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
            chosen.add_all(self._gone.within(Span(0, event_id + 1)))
            if event_id not in chosen:
                raise IllegalState(
                    f"event {event_id} is not in this reader's hands: it was never handed out "
                    f"here, or is already settled"
                )
            return chosen
        is_gone = event_id in self._gone  # it may wait here again
        if not is_gone and any(part.holds(event_id) for part in self._seat.inbox):
            raise IllegalState(f"event {event_id} has not been handed out yet")
        return IdSet((Span(event_id, event_id + 1),))

    async def _settle(self, ids: IdSet, *, roll_back: bool, delay_ms: int | None = None) -> None:
        held, generation = self._held.overlap(ids), self._seat.generation
        self._held.remove_all(held)
        if not ids:
            return
        try:
            await self._settlements.send(ids, roll_back=roll_back, delay_ms=delay_ms)
        except ConnectionLost:
            raise  # nothing is held any more
        except PenstockError:
            if generation == self._seat.generation:
                self._held.add_all(held)
            raise
        self._seat.inbox.wake()  # there is room in the window

    async def flush(self) -> None:
        """Plain readers: wait until events that were handed out are off the queue on disk.

        Raises ``ConnectionLost`` if the connection was lost before: some of them may be delivered
        again.
        """
        await self._settlements.flush()
