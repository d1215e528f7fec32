"""Events of a durable, for blocking callers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from penstock.client.connection.arguments import Duration, milliseconds
from penstock.client.connection.threads import LoopThread, hold_daemon
from penstock.client.reading import delivered
from penstock.client.reading.durable_seat import DurableSeat
from penstock.client.sync.sync_received import ReceivedBatch, ReceivedEvent
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.errors import SessionClosed


class DeliveredEvent(ReceivedEvent):
    """An event to be acknowledged, rolled back or rejected.

    The first two are sent at once and confirmed by the subscription's ``flush`` (or by closing it,
    or the session), which raises a refusal. Once it has gone back, ``ack``, ``reject`` and
    ``extend`` raise ``IllegalState``, or ``SessionClosed`` after a close; ``rollback`` has nothing
    left to do.
    """

    __slots__ = ("_generation", "_seat")

    _seat: DurableSeat[delivered.DeliveredBatch]
    _generation: int

    @classmethod
    def _of(cls, event: delivered.DeliveredEvent, loop: LoopThread) -> DeliveredEvent:
        """Wrap an event of the asynchronous client for blocking callers."""
        assert event._rows is not None, "it was delivered"
        twin = cls.received(event._rows, event._row, event.redelivery_count)
        twin._seat, twin._generation = event._seat, event._generation
        twin._loop = loop
        return twin

    def ack(self, *, previous: bool = False) -> None:
        """Acknowledge; with ``previous`` every earlier event this subscription holds, too. Raises
        ``IllegalState`` if the event went back as the connection was lost (SEM D15)."""
        self._settle(roll_back=False, previous=previous)

    def rollback(self, *, delay: Duration | None = None) -> None:
        """Give it back: redelivered as its durable's type says, with a ``delay`` (``"5s"``, or
        seconds) no sooner than that; without one the durable's backoff counts (SEM D18)."""
        self._settle(
            roll_back=True, delay_ms=None if delay is None else milliseconds(delay, "delay")
        )

    def reject(self, reason: str) -> None:
        """Give it up: it goes to the dead event store at once, with the cause ``rejected`` and the
        ``reason`` (SEM T11). Returns when that is on disk; raises ``IllegalState`` without a dead
        event store, and then it is still in hand."""
        self._loop.call(self._seat.reject(self._id_set(), self._generation, reason))

    def extend(self, time: Duration) -> None:
        """Have ``time`` (``"30s"``, or seconds) from now on to acknowledge it, on a durable with
        ``ack_timeout`` (SEM D19). Raises ``IllegalState`` when it has gone back already."""
        self._loop.call(self._seat.extend(self._id_set(), self._generation, time))

    def _id_set(self) -> IdSet:
        assert self.event_id is not None, "a delivered event has an id"
        return IdSet.from_ids((self.event_id,))

    def _settle(
        self, *, roll_back: bool, previous: bool = False, delay_ms: int | None = None
    ) -> None:
        event_id, seat, generation = self.event_id, self._seat, self._generation
        assert event_id is not None, "a delivered event has an id"
        if roll_back:
            seat.has_rolled_back = True
        else:
            try:
                seat.check_acknowledged(event_id, generation)
            except SessionClosed:
                hold_daemon()
                raise
        settle = partial(
            seat.settle_soon,
            event_id,
            generation,
            roll_back=roll_back,
            previous=previous,
            delay_ms=delay_ms,
        )
        self._loop.soon(lambda: seat.settle_for_thread(settle))


class DeliveredBatch(ReceivedBatch):
    """Events of one delivery; settle them one by one, or all at once."""

    __slots__ = ()

    _inner: delivered.DeliveredBatch

    def __init__(self, inner: delivered.DeliveredBatch, loop: LoopThread) -> None:
        super().__init__(inner, loop, DeliveredEvent)

    def __iter__(self) -> Iterator[DeliveredEvent]:
        for event in super().__iter__():
            yield self._owned(event)

    def __getitem__(self, row: int) -> DeliveredEvent:
        return self._owned(super().__getitem__(row))

    def _owned(self, event: Event) -> DeliveredEvent:
        assert isinstance(event, DeliveredEvent), "made with this batch's event type"
        event._seat, event._generation = self._inner._seat, self._inner._generation
        return event

    @property
    def is_stale(self) -> bool:
        """Whether the connection was lost since: the realm delivers these again (SEM D13)."""
        return self._inner.is_stale

    def ack(self) -> None:
        """Acknowledge all of them; returns when that is on disk. Raises ``IllegalState`` when they
        are stale, and ``SessionClosed`` when they went back as their subscription was closed."""
        self._loop.call(self._inner.ack())

    def rollback(self, *, delay: Duration | None = None) -> None:
        """Give all of them back, to come again after ``delay`` as single events do; returns when
        that is on disk, at once when they are stale."""
        self._loop.call(self._inner.rollback(delay=delay))

    def reject(self, reason: str) -> None:
        """Give all of them up, as :meth:`DeliveredEvent.reject` does one; returns when that is on
        disk. Raises ``IllegalState`` when they are stale."""
        self._loop.call(self._inner.reject(reason))

    def extend(self, time: Duration) -> None:
        """Have ``time`` from now on to acknowledge all of them, as :meth:`DeliveredEvent.extend`
        does for one."""
        self._loop.call(self._inner.extend(time))
