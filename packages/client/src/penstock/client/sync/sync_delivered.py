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
    """An event of a durable, to be acknowledged, rolled back or rejected.

    :meth:`ack` and :meth:`rollback` send the settlement without waiting for the realm.
    :meth:`DurableSubscription.flush`, and closing the subscription or the session, wait until it is
    stored; they raise a refusal, which is also reported to the session's error listeners.

    Once the event has returned to the durable, because the connection was lost or the subscription
    closed, ``ack``, ``reject`` and ``extend`` raise ``IllegalState``, or ``SessionClosed`` after a
    close; ``rollback`` does nothing.
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
        """Acknowledge the event; with ``previous``, also all earlier unsettled events of this
        subscription. Raises ``IllegalState`` if the event has returned to the durable because the
        connection was lost (SEM D15), and ``SessionClosed`` if the subscription was closed."""
        self._settle(roll_back=False, previous=previous)

    def rollback(self, *, delay: Duration | None = None) -> None:
        """Roll the event back, to be delivered again by the rules of the durable's type: with a
        ``delay`` (seconds, or a text such as ``"5s"``) no sooner than that, otherwise after the
        durable's backoff (SEM D18)."""
        self._settle(
            roll_back=True, delay_ms=None if delay is None else milliseconds(delay, "delay")
        )

    def reject(self, reason: str) -> None:
        """Send the event to the dead event store at once, with the cause ``rejected`` and the
        ``reason`` (SEM T11), and return when the realm has stored that. Raises ``IllegalState`` if
        the channel has no dead event store; the event is then still unsettled."""
        self._loop.call(self._seat.reject(self._id_set(), self._generation, reason))

    def extend(self, time: Duration) -> None:
        """Restart the ``ack_timeout`` of the event: it has to be acknowledged within ``time`` from
        now, in seconds or as a text such as ``"30s"`` (SEM D19). Raises ``IllegalState`` if the
        event has already returned to the durable."""
        self._loop.call(self._seat.extend(self._id_set(), self._generation, time))

    def _id_set(self) -> IdSet:
        assert self.event_id is not None, "a delivered event has an id"
        return IdSet.from_ids((self.event_id,))

    def _settle(
        self, *, roll_back: bool, previous: bool = False, delay_ms: int | None = None
    ) -> None:
        """Start to settle the event on the loop, without waiting. Raises as :meth:`ack`."""
        event_id, seat, generation = self.event_id, self._seat, self._generation
        assert event_id is not None, "a delivered event has an id"
        if roll_back:
            # `has_rolled_back` is set in this thread, so that the thread's loop over events sees it
            # before the next event.
            seat.has_rolled_back = True
        else:
            try:
                seat.check_acknowledged(event_id, generation)
            except SessionClosed:
                hold_daemon()  # if the interpreter is ending, this daemon thread ends silently
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
    """A batch of events of a durable, with Arrow columns. Settle its events one by one, or all at
    once with the methods of the batch."""

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
        """Connect an event of this batch with the seat that can settle it, and return the event."""
        assert isinstance(event, DeliveredEvent), "made with this batch's event type"
        event._seat, event._generation = self._inner._seat, self._inner._generation
        return event

    @property
    def is_stale(self) -> bool:
        """Whether the events have returned to the durable, because the connection was lost or the
        subscription ended since the delivery (SEM D13)."""
        return self._inner.is_stale

    def ack(self) -> None:
        """Acknowledge all events of the batch, and return when the realm has stored that. Raises
        ``IllegalState`` if they have returned to the durable because the connection was lost, and
        ``SessionClosed`` if the subscription was closed."""
        self._loop.call(self._inner.ack())

    def rollback(self, *, delay: Duration | None = None) -> None:
        """Roll back all events of the batch, with ``delay`` as for
        :meth:`DeliveredEvent.rollback`, and return when the realm has stored that. Does nothing if
        they have already returned to the durable."""
        self._loop.call(self._inner.rollback(delay=delay))

    def reject(self, reason: str) -> None:
        """Send all events of the batch to the dead event store, as :meth:`DeliveredEvent.reject`
        does for one. Raises ``IllegalState`` if they have returned to the durable."""
        self._loop.call(self._inner.reject(reason))

    def extend(self, time: Duration) -> None:
        """Restart the ``ack_timeout`` of all events of the batch, as :meth:`DeliveredEvent.extend`
        does for one."""
        self._loop.call(self._inner.extend(time))
