"""A seat at a durable or a queue, across reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from typing import Generic, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.delivery_route import DeliveryRoute
from penstock.client.reading.attachment import Attachment
from penstock.client.reading.inbox import Buffered, Inbox
from penstock.client.reading.settlements import Settlements
from penstock_core.api.subscriptions import Attach, Subscribed
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire

B = TypeVar("B", bound=Sized)


class SeatAttachment(Attachment, Generic[B]):
    """A seat: the waiting events, the open demand and the settlements.

    When the connection is lost, all unsettled events return to the durable. Another client may
    receive them before this one has its seat again.
    """

    def __init__(
        self,
        connection: RealmConnection,
        attach: Attach,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        """``attach`` is the request for the seat; the seat's number is inserted each time it is
        sent. ``on_arrival`` is called when a batch arrives, and at the end."""
        super().__init__(connection)
        self.inbox: Inbox[B] = Inbox(Buffered(self, attach.bytes_max), on_arrival)
        self.settlements = Settlements(self)
        self.demand_ended = asyncio.Event()
        """Cleared while a demand is open; set when the demand is met or its withdrawal
        confirmed."""
        self.demand_ended.set()
        self._message = attach
        self._demand = 0
        """Number of events in the open demand; 0 if it was withdrawn."""

    def route(
        self, delivered: Callable[[wire.Delivery, pa.Schema, memoryview], None]
    ) -> DeliveryRoute:
        """Return the functions that the connection calls; ``delivered`` receives deliveries."""
        return DeliveryRoute(
            reopen=self._reopen,
            failed=self.failed,
            delivered=delivered,
            finished=self.finished,
            recalled=self.recall,
            hurry=self.settlements.hurry,
            lost=self.lost,
        )

    async def attach(self) -> Subscribed:
        """Request the seat on the present connection."""
        self.generation += 1
        return await self.request(
            lambda: replace(self._message, subscription=self.number), Subscribed, self.forget
        )

    async def _reopen(self) -> None:
        """Take the seat again after a reconnect, and repeat the open demand."""
        if not self.is_open:
            return
        self.inbox.clear()  # the waiting events have returned to the durable
        self.settlements.forget()
        await self.attach()
        if self._demand:
            self.connection.tell(wire.Demand(self.number, self._demand))
        else:
            self.finished()

    def forget(self) -> None:
        """Begin with an empty inbox: events of an earlier connection have returned to the
        durable."""
        self.inbox = self.inbox.renewed()

    # --- calls of the connection ---------------------------------------------------------

    def lost(self) -> None:
        """Count all delivered events as returned to the durable, because the connection is lost."""
        if self.is_open:
            self.generation += 1
            self.inbox.clear()

    def failed(self, error: PenstockError) -> None:
        """End the seat with ``error``."""
        self.finished()
        self.inbox.fail(error)

    def finished(self) -> None:
        """End the demand."""
        self._demand = 0
        self.demand_ended.set()
        self.inbox.wake()

    def recall(self, spans: Spans) -> None:
        """Confirm to the realm that it has recalled events."""
        self.connection.tell(wire.RecallSeen(self.number))

    # --- demands -------------------------------------------------------------------------

    def demand(self, count: int) -> None:
        """Request ``count`` events, unless a demand is open."""
        if count > 0 and self.demand_ended.is_set():
            self.demand_ended.clear()
            self._demand = count
            self.connection.tell(wire.Demand(self.number, count))

    def withdraw(self) -> None:
        """Withdraw the open demand. Events that the realm has already sent still arrive."""
        if self._demand:
            self._demand = 0
            self.connection.tell(wire.Demand(self.number, 0))
