"""Exclusive holds of durables: events are reserved, acknowledged and rejected by id.

The realm delivers no events to a hold. Its client reads them elsewhere, such as in an archive or
sealed files; the realm records what is acknowledged, and refuses other clients of the durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.delivery_route import DeliveryRoute
from penstock.client.reading.attachment import Attachment
from penstock.client.reading.looping import Closing
from penstock.client.reading.start_positions import check_range
from penstock_core.api.durables import Outstanding
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Attach, Bury, Hold, Settle, Subscribed
from penstock_core.display import safe_repr, short
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    InvalidArgument,
    PenstockError,
    SessionClosed,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.wire.native.asking import check_request


class DurableHold(Closing):
    """An exclusive seat at a durable of any type: ``durable.hold()``.

    ::

        async with billing.hold() as hold:
            outstanding = await hold.take(0, 999)
            ...  # read these events elsewhere
            await hold.ack(999)

    If the connection is lost, the taken events return to the durable, as for any client (SEM D13).
    The seat is then taken again on the next connection; calls wait until it is.
    """

    def __init__(
        self, connection: RealmConnection, channel: ChannelId, durable: str, channel_name: str = ""
    ) -> None:
        """``channel_name`` is only shown."""
        self._channel_name = channel_name
        self._connection = connection
        self._channel = channel
        self._durable = durable
        self._attachment = Attachment(connection)
        self._seat_reconnects = -1
        """Number of reconnects of the session before the connection of the seat; -1
        before the seat is taken."""
        self._failure: PenstockError | None = None
        self._changed = asyncio.Event()
        """Set and replaced when the seat is taken on a new connection, or has ended."""

    @safe_repr
    def __repr__(self) -> str:
        source = f"of channel {short(self._channel_name)} {self._connection.standing}"
        return f"<DurableHold of durable {short(self._durable)} {source}, {self._attachment.state}>"

    async def open(self) -> DurableHold:
        """Take the seat and return the hold; ``async with`` also does so. Raises ``DurableInUse``,
        ``NameDoesNotExist``, and ``InvalidArgument`` if the durable has ``order_by``."""
        if not self._attachment.is_open:
            self._failure = None
            self._attachment.is_open = True  # calls made from now on wait for the seat
            route = DeliveryRoute(reopen=self._reopen, failed=self._failed)
            try:
                await self._attachment.enter(route, self._attach)
            except BaseException:
                self._attachment.is_open = False
                raise
        return self

    async def _attach(self) -> None:
        await self._attachment.request(self._request, Subscribed)
        self._seat_reconnects = self._connection.reconnects
        self._notify()

    def _request(self) -> Attach:
        return Attach(self._channel, self._attachment.number, self._durable, sole=True)

    def _notify(self) -> None:
        """Wake all calls that wait for the seat."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reopen(self) -> None:
        if self._attachment.is_open:
            await self._attach()

    def _failed(self, error: PenstockError) -> None:
        self._failure = error
        self._notify()

    # --- holding -------------------------------------------------------------------------

    async def take(self, start: int, end: int) -> Outstanding:
        """Reserve the outstanding events with ids from ``start`` up to and including ``end`` for
        this client. Return the reserved ids of the range, including those taken before, with their
        redelivery counts. Raises ``InvalidArgument``, ``SessionClosed``."""
        check_range(start, end)
        answer = await self._ask(Hold(self._attachment.number, start, end + 1))
        return msgspec.convert(answer, Outstanding)

    async def ack(self, event_id: int) -> None:
        """Acknowledge all outstanding events up to and including ``event_id``, taken or not, and
        return when the realm has stored that. A repeated call changes nothing."""
        check_range(event_id, None)
        spans = (Span(event_id, event_id + 1),)
        await self._ask(Settle(self._attachment.number, spans, previous=True))

    async def bury(self, event_ids: Iterable[int], reason: str) -> int:
        """Deprecated name of :meth:`reject`."""
        return await self.reject(event_ids, reason)

    async def reject(self, event_ids: Iterable[int], reason: str) -> int:
        """Send outstanding events to the channel's dead event store, with the ``reason`` in their
        origin (SEM T11). Other durables keep them.

        Return the number of events sent; events that are already acknowledged or rejected are
        skipped. Raises ``InvalidArgument`` without ids, and ``IllegalState`` if the channel has no
        dead event store.
        """
        ids = IdSet.from_ids(event_ids)
        if not ids:
            raise InvalidArgument("event_ids is empty; give the ids of the events to reject")
        count: int = await self._ask(Bury(self._attachment.number, ids.spans, reason))
        return count

    async def _ask(self, message: Request[Any]) -> Any:
        """Send a request on a connection that has the seat, and return the answer. It is repeated
        after a lost connection: repeating takes, acknowledgements and rejections is harmless."""
        check_request(message)
        while True:
            if self._failure is not None:
                raise self._failure
            if not self._attachment.is_open:
                raise SessionClosed("the durable is not held; open it first")
            # This is read before the request, because the seat may be taken again while that waits
            # for its answer.
            changed = self._changed
            if self._seat_reconnects == self._connection.reconnects:
                try:
                    return await self._connection.request(message, resend=False, waits=False)
                except ConnectionLost:
                    pass
            await changed.wait()

    async def close(self) -> None:
        """Leave the seat. Taken and unacknowledged events return to the durable (SEM D13)."""
        if self._attachment.is_open:
            self._notify()
            await self._attachment.leave()

    async def __aenter__(self) -> DurableHold:
        return await self.open()
