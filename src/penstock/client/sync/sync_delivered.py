"""Events of a durable, for blocking callers."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.client.connection.threads import LoopThread
from penstock.client.reading import delivered
from penstock.client.reading.durable_subscription import DurableSubscription
from penstock.columns.events.batch import EventBatch
from penstock.columns.events.event import Event


class DeliveredEvent(Event):
    """An event to be acknowledged or rolled back.

    Both are sent at once and confirmed by the subscription's ``flush`` (or by closing it, or the
    session). After that it has gone back: ``ack`` raises ``SessionClosed``.
    """

    __slots__ = ("_attachment", "_loop", "_subscription")

    _subscription: DurableSubscription
    _attachment: int
    _loop: LoopThread

    @classmethod
    def _of(cls, event: delivered.DeliveredEvent, loop: LoopThread) -> DeliveredEvent:
        """Wrap an event of the asynchronous client for blocking callers."""
        assert event._rows is not None, "it was delivered"
        twin = cls.received(event._rows, event._row, event.redelivery_count)
        twin._subscription, twin._attachment = event._subscription, event._attachment
        twin._loop = loop
        return twin

    def ack(self, *, previous: bool = False) -> None:
        """Acknowledge; with ``previous`` every earlier event this subscription holds, too."""
        self._settle(roll_back=False, previous=previous)

    def rollback(self) -> None:
        """Give it back: redelivered as its durable's type says."""
        self._settle(roll_back=True)

    def _settle(self, *, roll_back: bool, previous: bool = False) -> None:
        event_id, subscription, attachment = self.event_id, self._subscription, self._attachment
        assert event_id is not None, "a delivered event has an id"
        if roll_back:
            subscription._has_rolled_back = True
        else:
            subscription._check_held(event_id, attachment)
        self._loop.soon(
            lambda: subscription._settle_in_turn(
                event_id, attachment, roll_back=roll_back, previous=previous
            )
        )


class DeliveredBatch(EventBatch):
    """Events of one delivery; settle them one by one, or all at once."""

    __slots__ = ("_inner", "_loop")

    def __init__(self, inner: delivered.DeliveredBatch, loop: LoopThread) -> None:
        super().__init__(inner.to_arrow(), inner.redeliveries, DeliveredEvent, inner.publishers)
        self._inner = inner
        self._loop = loop

    def __iter__(self) -> Iterator[DeliveredEvent]:
        for event in super().__iter__():
            yield self._owned(event)

    def __getitem__(self, row: int) -> DeliveredEvent:
        return self._owned(super().__getitem__(row))

    def _owned(self, event: Event) -> DeliveredEvent:
        assert isinstance(event, DeliveredEvent), "made with this batch's event type"
        event._subscription, event._attachment = self._inner._subscription, self._inner._attachment
        event._loop = self._loop
        return event

    @property
    def is_stale(self) -> bool:
        """Whether the connection was lost since: the realm delivers these again (SEM D13)."""
        return self._inner.is_stale

    def ack(self) -> None:
        """Acknowledge all of them; returns when that is on disk, at once when they are stale."""
        self._loop.call(self._inner.ack())

    def rollback(self) -> None:
        """Give all of them back; returns when that is on disk, at once when they are stale."""
        self._loop.call(self._inner.rollback())
