"""Events of a durable, in the hands of its client."""

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
    """An event to be acknowledged, rolled back or rejected.

    The first two are sent at once and confirmed by :meth:`DurableSubscription.flush` (or by closing
    the subscription or the session); a refusal is reported on the session and raised there. Once
    it has gone back, ``ack``, ``reject`` and ``extend`` raise ``IllegalState``, or
    ``SessionClosed`` after a close; ``rollback`` has nothing left to do.
    """

    __slots__ = ("_generation", "_number", "_seat", "_settlements")

    _seat: DurableSeat[DeliveredBatch]
    _settlements: Settlements
    """The settlements of its seat."""
    _generation: int
    _number: int
    """Its id, for settling it quickly."""

    async def ack(self, *, previous: bool = False) -> None:
        """Acknowledge; with ``previous`` every earlier event this subscription holds, too. Raises
        ``IllegalState`` if the event went back as the connection was lost (SEM D15)."""
        if previous:
            self._seat.settle_soon(self._number, self._generation, roll_back=False, previous=True)
            return
        settlements = self._settlements
        number = self._number
        if settlements.takes_acks_of == self._generation and number not in settlements.backs:
            settlements.acks.append(number)
        else:
            self._seat.settle_soon(number, self._generation, roll_back=False)

    async def rollback(self, *, delay: Duration | None = None) -> None:
        """Roll back: it is redelivered as the durable's type says, with a ``delay`` (``"5s"``, or
        seconds) no sooner than that; without one the durable's backoff counts (SEM D18)."""
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        self._seat.settle_soon(self._number, self._generation, roll_back=True, delay_ms=delay_ms)

    async def reject(self, reason: str) -> None:
        """Give it up: it goes to the dead event store at once, with the cause ``rejected`` and the
        ``reason`` (SEM T11). Returns when that is on disk; raises ``IllegalState`` without a dead
        event store, and then it is still in hand."""
        await self._seat.reject(IdSet.from_ids((self._number,)), self._generation, reason)

    async def extend(self, time: Duration) -> None:
        """Have ``time`` (``"30s"``, or seconds) from now on to acknowledge it, on a durable with
        ``ack_timeout`` (SEM D19). Raises ``IllegalState`` when it has gone back already."""
        await self._seat.extend(IdSet.from_ids((self._number,)), self._generation, time)


class DeliveredBatch(ReceivedBatch):
    """Events of one delivery; settle them one by one, or all at once."""

    __slots__ = ("_generation", "_seat", "_spans")

    def __init__(
        self,
        batch: pa.RecordBatch,
        redeliveries: Mapping[int, int] | None,
        seat: DurableSeat[DeliveredBatch],
        publishers: Publishers = (),
        spans: Spans = (),
    ) -> None:
        """``spans`` are the ids of its events, where they are known without looking."""
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
                event = make(DeliveredEvent)  # as the events of its batch are made
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
        assert isinstance(event, DeliveredEvent), "made with this batch's event type"
        event._seat = self._seat
        event._settlements = self._seat.settlements
        event._generation = self._generation
        event._number = number
        return event

    @property
    def is_stale(self) -> bool:
        """Whether the connection was lost since: the realm delivers these again (SEM D13)."""
        return self._generation != self._seat.generation

    def _part(self, first: int, count: int | None = None) -> DeliveredBatch:
        """``count`` of its events (None: all) from row ``first`` on."""
        rows = self.to_arrow().slice(first, count)
        part = DeliveredBatch(rows, self.redeliveries, self._seat, publishers=self.publishers)
        part._generation = self._generation
        return part

    def _without(self, ids: IdSet) -> DeliveredBatch | None:
        """The other events of the batch; None if there are none."""
        own = self.event_ids
        kept = np.ones(len(own), dtype=bool)
        # Redelivered events come after later ids in a batch of several deliveries.
        around = Span(int(own.min()), int(own.max()) + 1)
        for first, end in ids.within(around).spans:
            kept &= (own < first) | (own >= end)
        if kept.all():
            return self
        if not kept.any():
            return None
        batch = self.to_arrow().filter(pa.array(kept))
        return DeliveredBatch(batch, self.redeliveries, self._seat, publishers=self.publishers)

    async def _left_from(self, row: int) -> DeliveredBatch | None:
        """The events from ``row`` on that the realm has not taken back, once all rollbacks are
        answered; None if there are none."""
        seat = self._seat
        await seat.settlements.rolled_back()
        if seat.settlements.has_lost_rollback:
            return None
        seat.has_recalled = seat.has_rolled_back = False
        return self._part(row)._current()

    def _current(self) -> DeliveredBatch | None:
        """The events that the realm has not taken back; None if there are none."""
        return None if self.is_stale else self._without(self._seat.recalled)

    async def ack(self) -> None:
        """Acknowledge all of them; returns when that is on disk. Raises ``IllegalState`` when they
        are stale, and ``SessionClosed`` when they went back as their subscription was closed."""
        self._seat.check_acknowledged(int(self.event_ids[0]), self._generation)
        if not self.is_stale:
            await self._seat.settle(self._ids())

    async def _ack_in_loop(self) -> None:
        """Acknowledge for a loop with ``auto_ack``. Events that go back with their connection are
        delivered again, so the loop goes on."""
        try:
            await self.ack()
        except (ConnectionLost, IllegalState) as error:
            if not self.is_stale:
                raise
            self._seat.connection.report(error)

    async def rollback(self, *, delay: Duration | None = None) -> None:
        """Give all of them back, to come again after ``delay`` as single events do; returns when
        that is on disk, at once when they are stale."""
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        if not self.is_stale:
            await self._seat.settle(self._ids(), roll_back=True, delay_ms=delay_ms)

    async def reject(self, reason: str) -> None:
        """Give all of them up, as :meth:`DeliveredEvent.reject` does one; returns when that is on
        disk. Raises ``IllegalState`` when they are stale."""
        await self._seat.reject(self._ids(), self._generation, reason)

    async def extend(self, time: Duration) -> None:
        """Have ``time`` from now on to acknowledge all of them, as :meth:`DeliveredEvent.extend`
        does for one."""
        await self._seat.extend(self._ids(), self._generation, time)

    def _ids(self) -> IdSet:
        """The ids of its events."""
        if self._spans:
            return IdSet(self._spans)
        ids = self.event_ids
        if (np.diff(ids) == 1).all():
            return IdSet((Span(int(ids[0]), int(ids[-1]) + 1),))
        return IdSet.from_ids(ids.tolist())


def may_join(one: DeliveredBatch, other: DeliveredBatch) -> bool:
    """Whether both can be one batch: same columns, same connection."""
    return one._generation == other._generation and one.to_arrow().schema.equals(
        other.to_arrow().schema, check_metadata=True
    )


def joined(parts: Sequence[DeliveredBatch]) -> DeliveredBatch:
    """The events of ``parts``, in that order, as one batch."""
    first = parts[0]
    redeliveries = {i: n for part in parts for i, n in (part.redeliveries or {}).items()}
    publishers = first.publishers
    if any(tuple(part.publishers) != tuple(publishers) for part in parts):
        publishers = [named for part in parts for named in _publishers(part)]
    batch = pa.concat_batches([part.to_arrow() for part in parts])
    are_known = all(part._spans for part in parts)
    spans = tuple(span for part in parts for span in part._spans) if are_known else ()
    return DeliveredBatch(
        batch, redeliveries or None, first._seat, publishers=publishers, spans=spans
    )


def _publishers(part: DeliveredBatch) -> list[tuple[str, Sequence[tuple[int, int]]]]:
    """The publisher of each event, with every id named."""
    ids = IdSet.from_ids(part.event_ids.tolist()).spans
    return [(publisher, spans or ids) for publisher, spans in part.publishers]


class DeliveringLoops(Looping[DeliveredBatch]):
    """Loops over events of a durable, or of durables of one name on several channels."""

    def __init__(self, opened: Openable, *, auto_ack: bool) -> None:
        super().__init__(opened)
        self._auto_ack = auto_ack

    def batches(self) -> AsyncIterator[DeliveredBatch]:
        """Iterate over arriving columns; at its end the iteration closes what it has opened."""
        return self._loops.add(self._batches)

    async def _batches(self, begun: OpenBatch[DeliveredBatch]) -> AsyncIterator[DeliveredBatch]:
        opened = self._opened
        async with self._looping(begun):
            while (batch := await self.next_batch()) is not None:
                if self._auto_ack:
                    begun.begin(batch, len(batch))  # until the caller has processed it
                yield batch
                if not opened.is_open:
                    return
                if self._auto_ack:
                    begun.forget()
                    await batch._ack_in_loop()

    def __aiter__(self) -> AsyncIterator[DeliveredEvent]:
        """Iterate over arriving events; those that one iteration leaves come with the next."""
        return self._loops.add(self._events)

    async def _events(self, begun: OpenBatch[DeliveredBatch]) -> AsyncIterator[DeliveredEvent]:
        opened = self._opened
        async with self._looping(begun):
            while (batch := await self.next_batch()) is not None:
                rest: DeliveredBatch | None = batch
                while rest is not None:
                    batch, rest = rest, None
                    seat = batch._seat
                    begun.begin(batch, int(self._auto_ack))
                    for row, event in enumerate(batch):
                        if seat.may_recall:
                            rest = await batch._left_from(row)
                            begun.forget()
                            break
                        if batch.is_stale or seat.has_ended:
                            break  # the realm has taken back the rest, and delivers it again
                        begun.count += not self._auto_ack
                        yield event
                        if not opened.is_open:  # closed meanwhile: all of it has gone back
                            return
                        if self._auto_ack:  # until here it is not processed, and would come again
                            try:
                                await event.ack()
                            except IllegalState as error:  # it comes again, so the loop goes on
                                seat.connection.report(error)
                            begun.count += 1
