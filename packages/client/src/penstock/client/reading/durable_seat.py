"""A seat at a durable: the events delivered to it that have not returned to the durable, and their
settlement."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Protocol, TypeVar

from penstock.client.connection.arguments import Duration, milliseconds
from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.threads import is_ending
from penstock.client.connection.tracing import OperationSource
from penstock.client.reading.seat_attachment import SeatAttachment
from penstock_core.api.subscriptions import Attach, Subscribed
from penstock_core.columns.events.batch import Int64s
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import (
    IllegalState,
    NameDoesNotExist,
    PenstockError,
    SessionClosed,
)


class WaitingBatch(Sized, Protocol):
    """A batch of delivered events."""

    @property
    def event_ids(self) -> Int64s: ...


B = TypeVar("B", bound=WaitingBatch)


class DurableSeat(SeatAttachment[B]):
    """A seat at a durable. Its events refer to it, and use it to settle themselves."""

    def __init__(
        self,
        connection: RealmConnection,
        attach: Attach,
        on_arrival: Callable[[], None] | None,
        *,
        without: Callable[[B, IdSet], B | None],
        channel_name: str,
    ) -> None:
        """``without`` removes events from a batch; it returns None if no event is left."""
        super().__init__(connection, attach, on_arrival)
        self.channel = attach.channel
        self.channel_name = channel_name
        self.durable = attach.durable
        self.source = OperationSource(connection, channel_name, attach.durable)
        self.recalled = IdSet()
        """Events that the realm has recalled (SEM D11) and not delivered again since."""
        self.has_recalled = False
        """Whether the realm has recalled events since a batch was last received."""
        self.has_rolled_back = False
        """Whether another thread has rolled back an event since a batch was last received."""
        self._without = without
        self._return_reason = "it was delivered to an earlier subscription"
        """Why events of earlier generations have returned to the durable."""
        self._is_deleted = False
        """Whether the channel or durable was deleted; acknowledging its events is then no error
        (SEM D15)."""
        self._closed_through = 0
        """Events of generations up to this one have returned because the subscription was
        closed."""

    async def attach(self) -> Subscribed:
        # Cleared before the request: events may be delivered, rolled back and recalled before the
        # answer to it has been processed here.
        self.recalled = IdSet()
        answer = await super().attach()
        self.settlements.attached(answer, is_recalled=bool(self.recalled))
        return answer

    def retire(self) -> None:
        """Count all delivered events as returned, because the subscription is being closed."""
        self.is_open = False
        self._closed_through = self.generation

    # --- calls of the connection ---------------------------------------------------------

    def lost(self) -> None:
        if self.is_open:
            self._return_reason = "the connection was lost"
        super().lost()

    def failed(self, error: PenstockError) -> None:
        self.generation += 1
        self._return_reason = f"the subscription has ended: {error}"
        self._is_deleted = isinstance(error, NameDoesNotExist)
        self.inbox.clear()  # the waiting events have returned to the durable
        super().failed(error)

    def recall(self, spans: Spans) -> None:
        ids = IdSet(spans)
        self.remove(ids)
        self.recalled.add_all(ids)
        self.has_recalled = True
        self.settlements.prepare_recall()
        super().recall(spans)

    def remove(self, ids: IdSet) -> None:
        """Remove events from the waiting batches."""
        self.inbox.reduce(lambda batch: self._without(batch, ids))

    async def rolled_back(self) -> None:
        """Wait until all rollbacks so far are answered. If one was lost with the connection, drop
        the waiting events: all of them have returned to the durable."""
        await self.settlements.rolled_back()
        if self.settlements.has_lost_rollback:
            self.inbox.drop()

    # --- unsettled events ----------------------------------------------------------------

    def received(self, batch: B) -> None:
        """Record that the application has received a batch."""
        self.has_rolled_back = self.has_recalled = False
        if self.recalled:
            self.recalled.remove_all(IdSet.from_ids(batch.event_ids.tolist()))

    @property
    def may_recall(self) -> bool:
        """Whether an event of the batch received last may have been recalled since."""
        settlements = self.settlements
        if not settlements.in_order:
            return False
        waits = self.has_rolled_back or settlements.rolls_back or settlements.has_lost_rollback
        return waits or self.has_recalled

    async def is_recalled(self, event_id: int | None) -> bool:
        """Wait until all rollbacks are answered, and return whether the realm has recalled an
        event."""
        await self.settlements.rolled_back()
        return self.settlements.has_lost_rollback or event_id in self.recalled

    @property
    def has_ended(self) -> bool:
        """Whether the realm or the session has ended the seat: unsettled events have returned to
        the durable."""
        return self.inbox.has_failed

    def check_held(self, event_id: int, generation: int) -> None:
        """Raise ``SessionClosed`` for an event that returned because the subscription was closed
        (SEM D13), and ``IllegalState`` for one that returned for another reason (SEM D15)."""
        returned = f"event {event_id} has returned to durable {self.durable}"
        if generation <= self._closed_through:
            raise SessionClosed(
                f"the subscription is closed, and {returned}, which delivers it again; acknowledge "
                "events before you close the subscription"
            )
        if self.connection.is_closed:
            raise SessionClosed(f"the session is closed, and {returned}, which delivers it again")
        if generation != self.generation:
            raise IllegalState(
                f"{returned}, because {self._return_reason}; nothing was done, and "
                "the event is delivered again while it is outstanding"
            )

    def check_acknowledged(self, event_id: int, generation: int) -> None:
        """Raise the errors of :meth:`check_held`, except for an event that was deleted with its
        channel or durable: acknowledging it is allowed, as for a purged event."""
        if not self._is_deleted or generation == self.generation:
            self.check_held(event_id, generation)

    def _refuse_recalled(self, ids: IdSet) -> None:
        if self.recalled and (recalled := self.recalled.overlap(ids)):
            raise self._recall_of(recalled.lowest)

    def _recall_of(self, event_id: int | None) -> IllegalState:
        return IllegalState(
            f"event {event_id} of durable {self.durable} was recalled because "
            f"{self.settlements.why_recalled}; it is delivered again while it is outstanding"
        )

    # --- settling ------------------------------------------------------------------------

    async def settle(
        self,
        ids: IdSet,
        *,
        roll_back: bool = False,
        previous: bool = False,
        delay_ms: int | None = None,
        on_done: Callable[[Spans], None] | None = None,
    ) -> None:
        """Acknowledge ``ids`` or roll them back, and return when the realm has stored that. The
        call may modify ``ids``. Raises ``IllegalState`` (SEM D15), and ``SessionClosed`` after the
        subscription was closed."""
        if not roll_back and self.generation:
            self.check_held(ids.lowest or 0, self.generation)
        if self.generation <= self._closed_through:
            return  # closing has already rolled all of them back
        if roll_back:
            ids.remove_all(self.recalled)  # the realm has already taken these back
        else:
            self._refuse_recalled(ids)
        self.settlements.hurry()  # earlier settlements must arrive before this one
        if ids or not roll_back:
            await self.settlements.send(
                ids, roll_back=roll_back, previous=previous, delay_ms=delay_ms, on_done=on_done
            )

    def acknowledged(self, spans: Spans) -> None:
        """Drop waiting events that the caller has acknowledged, as it received them before a
        reconnect."""
        if spans and self.settlements.cumulative:
            spans = (Span(0, spans[-1][1]),)
        self.remove(IdSet(spans))

    def settle_soon(
        self,
        event_id: int,
        generation: int,
        *,
        roll_back: bool,
        previous: bool = False,
        delay_ms: int | None = None,
    ) -> None:
        """Settle without waiting. Settlements made in one turn of the event loop are sent together.

        An event of an earlier generation has returned to the durable: a rollback of it does
        nothing, and an acknowledgement raises ``IllegalState``, or ``SessionClosed`` after a close.
        """
        if not roll_back:
            self.check_acknowledged(event_id, generation)
        if generation <= self._closed_through or generation != self.generation:
            return
        if not self.settlements.in_order or event_id not in self.recalled:
            self.settlements.settle_soon(
                event_id, roll_back=roll_back, previous=previous, delay_ms=delay_ms
            )
        elif not roll_back:
            self.settlements.refuse(self._recall_of(event_id))

    def settle_for_thread(self, settle: Callable[[], None]) -> None:
        """Settle for another thread, which does not wait for the outcome: an error is reported, and
        raised by the next flush or close."""
        try:
            settle()
        except PenstockError as error:
            if not is_ending():
                self.settlements.refuse(error)

    async def extend(self, ids: IdSet, generation: int, time: Duration) -> int:
        """Restart the acknowledgement timeout of events with ``time`` from now. Return the number
        of events that the client still holds."""
        time_ms = milliseconds(time, "time")
        self.check_held(ids.lowest or 0, generation)
        return await self.settlements.extend(ids, time_ms)

    async def reject(self, ids: IdSet, generation: int, reason: str) -> int:
        """Send events to the dead event store. Return their number when the realm has stored
        that."""
        self.check_held(ids.lowest or 0, generation)
        self._refuse_recalled(ids)
        return await self.settlements.reject(ids, reason)
