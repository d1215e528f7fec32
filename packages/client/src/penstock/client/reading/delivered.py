"""Events that a durable has delivered, to be settled by the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.client.connection.arguments import Duration, milliseconds
from penstock.client.reading.durable_seat import DurableSeat
from penstock.client.reading.inbox import OpenBatch
from penstock.client.reading.looping import Looping, Openable
from penstock.client.reading.received import ReceivedBatch, ReceivedEvent
from penstock.client.reading.settlements import Settlements
from penstock_core.columns.events.batch import row_ranges
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.rows import Publishers
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import ConnectionLost, IllegalState


class DeliveredEvent(ReceivedEvent):
    """An event of a durable, to be acknowledged, rolled back or rejected.

    :meth:`ack` and :meth:`rollback` send the settlement without waiting for the realm.
    :meth:`DurableSubscription.flush`, and closing the subscription or the session, wait until it is
    stored; they raise a refusal, which is also reported to the session's error listeners.

    Once the event has returned to the durable, because the connection was lost or the subscription
    closed, ``ack``, ``reject`` and ``extend`` raise ``IllegalState``, or ``SessionClosed`` after a
    close; ``rollback`` does nothing.
    """

    __slots__ = ("_generation", "_number", "_seat", "_settlements")

    _seat: DurableSeat[DeliveredBatch]
    _settlements: Settlements
    """The settlements of the seat that has the event."""
    _generation: int
    _number: int
    """The event id, kept here because reading it from the batch is slow."""

    async def ack(self, *, previous: bool = False) -> None:
        """Acknowledge the event; with ``previous``, also all earlier unsettled events of this
        subscription. Raises ``IllegalState`` if the event has returned to the durable because the
        connection was lost (SEM D15), and ``SessionClosed`` if the subscription was closed."""
        if previous:
            self._seat.settle_soon(self._number, self._generation, roll_back=False, previous=True)
            return
        settlements = self._settlements
        number = self._number
        # The usual case without a function call: this runs for every event.
        if (
            settlements.fast_ack_generation == self._generation
            and number not in settlements.rollback_delays
        ):
            settlements.acks.append(number)
        else:
            self._seat.settle_soon(number, self._generation, roll_back=False)

    async def rollback(self, *, delay: Duration | None = None) -> None:
        """Roll the event back, to be delivered again by the rules of the durable's type: with a
        ``delay`` (seconds, or a text such as ``"5s"``) no sooner than that, otherwise after the
        durable's backoff (SEM D18)."""
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        self._seat.settle_soon(self._number, self._generation, roll_back=True, delay_ms=delay_ms)

    async def reject(self, reason: str) -> None:
        """Send the event to the dead event store immediately, with the cause ``rejected`` and the
        ``reason`` (SEM T11), and return when the realm has stored that. Raises ``IllegalState`` if
        the channel has no dead event store; the event is then still unsettled."""
        await self._seat.reject(IdSet.from_ids((self._number,)), self._generation, reason)

    async def extend(self, time: Duration) -> None:
        """Restart the ``ack_timeout`` of the event: it has to be acknowledged within ``time`` from
        now, in seconds or as a text such as ``"30s"`` (SEM D19). Raises ``IllegalState`` if the
        event has already returned to the durable."""
        await self._seat.extend(IdSet.from_ids((self._number,)), self._generation, time)


class DeliveredBatch(ReceivedBatch):
    """A batch of events of a durable, with Arrow columns. Settle its events one by one, or all at
    once with the methods of the batch."""

    __slots__ = ("_generation", "_seat", "_spans")

    def __init__(
        self,
        batch: pa.RecordBatch,
        redeliveries: Mapping[int, int] | None,
        seat: DurableSeat[DeliveredBatch],
        publishers: Publishers = (),
        spans: Spans = (),
    ) -> None:
        """``spans`` are the ids of the events; empty if they have to be read from the batch."""
        super().__init__(
            batch,
            redeliveries,
            seat.connection.replier,
            publishers=publishers,
            event_type=DeliveredEvent,
            channel=seat.channel_name,
            channel_id=seat.channel,
        )
        self._spans = spans
        self._seat = seat
        self._generation = seat.generation

    def __iter__(self) -> Iterator[DeliveredEvent]:
        seat, generation = self._seat, self._generation
        settlements = seat.settlements
        rows, numbers = self._sequential_reader(), self.event_ids.tolist()
        make = DeliveredEvent.__new__
        for first, end in row_ranges(len(numbers)):
            for row, data, properties, count in self._read(rows, first, end):
                # Without __init__, as for all events of batches: this runs for every event.
                event = make(DeliveredEvent)
                event._rows = rows
                event._row = row
                event._data = data
                event._properties = properties
                event.redelivery_count = count
                event._seat = seat
                event._settlements = settlements
                event._generation = generation
                event._number = numbers[row]
                yield event

    def __getitem__(self, row: int) -> DeliveredEvent:
        return self._owned(super().__getitem__(row), self.event_ids[row].item())

    def _owned(self, event: Event, number: int) -> DeliveredEvent:
        """Connect an event of this batch with the seat that can settle it, and return the event."""
        assert isinstance(event, DeliveredEvent), "made with this batch's event type"
        event._seat = self._seat
        event._settlements = self._seat.settlements
        event._generation = self._generation
        event._number = number
        return event

    @property
    def is_stale(self) -> bool:
        """Whether the events have returned to the durable, because the connection was lost or the
        subscription ended since the delivery (SEM D13)."""
        return self._generation != self._seat.generation

    def _part(self, first: int, count: int | None = None) -> DeliveredBatch:
        """Return ``count`` events from row ``first`` on; None means all."""
        rows = self.to_arrow().slice(first, count)
        part = DeliveredBatch(rows, self.redeliveries, self._seat, publishers=self.publishers)
        part._generation = self._generation
        return part

    def _without(self, ids: IdSet) -> DeliveredBatch | None:
        """Return the batch without the events with ``ids``; None if no event is left."""
        batch_ids = self.event_ids
        kept = np.ones(len(batch_ids), dtype=bool)
        # Ids may be unsorted: in a joined batch, redelivered events follow later ids.
        around = Span(int(batch_ids.min()), int(batch_ids.max()) + 1)
        for first, end in ids.within(around).spans:
            kept &= (batch_ids < first) | (batch_ids >= end)
        if kept.all():
            return self
        if not kept.any():
            return None
        batch = self.to_arrow().filter(pa.array(kept))
        return DeliveredBatch(batch, self.redeliveries, self._seat, publishers=self.publishers)

    async def _current_from(self, row: int) -> DeliveredBatch | None:
        """Wait until all rollbacks are answered, and return the events from ``row`` on that the
        realm has not recalled; None if none are left."""
        seat = self._seat
        await seat.settlements.rolled_back()
        if seat.settlements.has_lost_rollback:
            return None
        seat.has_recalled = seat.has_rolled_back = False
        return self._part(row)._current()

    def _current(self) -> DeliveredBatch | None:
        """Return the events that the realm has not recalled; None if none are left."""
        return None if self.is_stale else self._without(self._seat.recalled)

    async def ack(self) -> None:
        """Acknowledge all events of the batch, and return when the realm has stored that. Raises
        ``IllegalState`` if they have returned to the durable because the connection was lost, and
        ``SessionClosed`` if the subscription was closed."""
        self._seat.check_acknowledged(int(self.event_ids[0]), self._generation)
        if not self.is_stale:
            await self._seat.settle(self._ids())

    async def _ack_in_loop(self) -> None:
        """Acknowledge for a loop with ``auto_ack``. If the connection is lost, the error is only
        reported: the realm delivers the events again, so the loop can continue."""
        try:
            await self.ack()
        except (ConnectionLost, IllegalState) as error:
            if not self.is_stale:
                raise
            self._seat.connection.report(error)

    async def rollback(self, *, delay: Duration | None = None) -> None:
        """Roll back all events of the batch, with ``delay`` as for
        :meth:`DeliveredEvent.rollback`, and return when the realm has stored that. Does nothing if
        they have already returned to the durable."""
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        if not self.is_stale:
            await self._seat.settle(self._ids(), roll_back=True, delay_ms=delay_ms)

    async def reject(self, reason: str) -> None:
        """Send all events of the batch to the dead event store, as :meth:`DeliveredEvent.reject`
        does for one. Raises ``IllegalState`` if they have returned to the durable."""
        await self._seat.reject(self._ids(), self._generation, reason)

    async def extend(self, time: Duration) -> None:
        """Restart the ``ack_timeout`` of all events of the batch, as :meth:`DeliveredEvent.extend`
        does for one."""
        await self._seat.extend(self._ids(), self._generation, time)

    def _ids(self) -> IdSet:
        """Return the ids of the events."""
        if self._spans:
            return IdSet(self._spans)
        ids = self.event_ids
        if (np.diff(ids) == 1).all():
            return IdSet((Span(int(ids[0]), int(ids[-1]) + 1),))
        return IdSet.from_ids(ids.tolist())


def may_join(first: DeliveredBatch, second: DeliveredBatch) -> bool:
    """Return whether two batches have the same columns and were delivered on the same
    connection."""
    return first._generation == second._generation and first.to_arrow().schema.equals(
        second.to_arrow().schema, check_metadata=True
    )


def joined(parts: Sequence[DeliveredBatch]) -> DeliveredBatch:
    """Return the events of ``parts`` as one batch, in order."""
    first = parts[0]
    redeliveries = {i: n for part in parts for i, n in (part.redeliveries or {}).items()}
    publishers = first.publishers
    if any(tuple(part.publishers) != tuple(publishers) for part in parts):
        publishers = [named for part in parts for named in _publishers(part)]
    batch = pa.concat_batches([part.to_arrow() for part in parts])
    have_spans = all(part._spans for part in parts)
    spans = tuple(span for part in parts for span in part._spans) if have_spans else ()
    return DeliveredBatch(
        batch, redeliveries or None, first._seat, publishers=publishers, spans=spans
    )


def _publishers(part: DeliveredBatch) -> list[tuple[str, Sequence[tuple[int, int]]]]:
    """Return the publishers of the events with their ids, also where one publisher has all of
    them."""
    ids = IdSet.from_ids(part.event_ids.tolist()).spans
    return [(publisher, spans or ids) for publisher, spans in part.publishers]


class DeliveringLoops(Looping[DeliveredBatch]):
    """Iteration over the events of a durable, or of the durables of one name on several
    channels."""

    def __init__(self, opened: Openable, *, auto_ack: bool) -> None:
        super().__init__(opened)
        self._auto_ack = auto_ack

    def batches(self) -> AsyncIterator[DeliveredBatch]:
        """Iterate over events in batches with Arrow columns. With ``auto_ack``, a batch is
        acknowledged when the next one is requested. An iteration that has opened the subscription
        closes it at its end."""
        return self._loops.add(self._batches)

    async def _batches(
        self, open_batch: OpenBatch[DeliveredBatch]
    ) -> AsyncIterator[DeliveredBatch]:
        opened = self._opened
        async with self._looping(open_batch):
            while (batch := await self.next_batch()) is not None:
                if self._auto_ack:
                    open_batch.begin(batch, len(batch))  # delivered again if the loop is left here
                yield batch
                if not opened.is_open:
                    return
                if self._auto_ack:
                    open_batch.forget()
                    await batch._ack_in_loop()

    def __aiter__(self) -> AsyncIterator[DeliveredEvent]:
        """Iterate over events. With ``auto_ack``, an event is acknowledged when the next one is
        requested. Events that one iteration does not deliver are delivered by the next."""
        return self._loops.add(self._events)

    async def _events(self, open_batch: OpenBatch[DeliveredBatch]) -> AsyncIterator[DeliveredEvent]:
        opened = self._opened
        async with self._looping(open_batch):
            while (batch := await self.next_batch()) is not None:
                rest: DeliveredBatch | None = batch
                while rest is not None:
                    batch, rest = rest, None
                    seat = batch._seat
                    open_batch.begin(batch, int(self._auto_ack))
                    for row, event in enumerate(batch):
                        if seat.may_recall:
                            rest = await batch._current_from(row)
                            open_batch.forget()
                            break
                        if batch.is_stale or seat.has_ended:
                            break  # the rest has returned to the durable, which delivers it again
                        open_batch.count += not self._auto_ack
                        yield event
                        if not opened.is_open:  # closed by the caller: the rest has returned
                            return
                        if self._auto_ack:  # not earlier: leaving the loop must not acknowledge
                            try:
                                await event.ack()
                            except IllegalState as error:  # returned: it is delivered again
                                seat.connection.report(error)
                            open_batch.count += 1
