"""A durable held as a whole: its events are taken, acknowledged and rejected by id.

Nothing is delivered. Who holds a durable reads its events where it likes; the realm only keeps
the books, and keeps everybody else out.
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
    """The only seat at a durable, whatever the durable's type.

    If the connection is lost, the realm takes back what was held, as from any client (SEM D13). The
    seat is taken again on the next connection, and calls made meanwhile wait for it.
    """

    def __init__(self, connection: RealmConnection, channel: ChannelId, durable: str) -> None:
        self._connection = connection
        self._channel = channel
        self._durable = durable
        self._attachment = Attachment(connection)
        self._seated_on = -1
        """The connection, by the number of reconnects before it, that the seat belongs to."""
        self._failure: PenstockError | None = None
        self._changed = asyncio.Event()
        """Replaced once set: the seat was taken on another connection, or is lost for good."""

    async def open(self) -> DurableHold:
        """Take the seat. Raises ``DurableInUse``, ``NameDoesNotExist``, ``InvalidArgument`` where
        the durable has ``order_by``."""
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
        self._seated_on = self._connection.reconnects
        self._tell()

    def _request(self) -> Attach:
        return Attach(self._channel, self._attachment.number, self._durable, sole=True)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reopen(self) -> None:
        if self._attachment.is_open:
            await self._attach()

    def _failed(self, error: PenstockError) -> None:
        self._failure = error
        self._tell()

    # --- holding -------------------------------------------------------------------------

    async def take(self, start: int, end: int) -> Outstanding:
        """Have the outstanding events from ``start`` up to and including ``end`` in hands; gives
        those that are, the ones taken before among them."""
        check_range(start, end)
        answer = await self._asked(Hold(self._attachment.number, start, end + 1))
        return msgspec.convert(answer, Outstanding)

    async def ack(self, event_id: int) -> None:
        """Acknowledge everything outstanding up to and including ``event_id``, held or not;
        returns when that is on disk. Repeating it changes nothing."""
        check_range(event_id, None)
        spans = (Span(event_id, event_id + 1),)
        await self._asked(Settle(self._attachment.number, spans, previous=True))

    async def bury(self, event_ids: Iterable[int], reason: str) -> int:
        """Deprecated name of :meth:`reject`."""
        return await self.reject(event_ids, reason)

    async def reject(self, event_ids: Iterable[int], reason: str) -> int:
        """Send outstanding events to the channel's dead event store, with the ``reason`` in their
        origin (SEM T11); other durables keep them.

        Gives their number; events that are acknowledged or rejected already are left out. Raises
        ``IllegalState`` without a dead event store.
        """
        ids = IdSet.from_ids(event_ids)
        if not ids:
            raise InvalidArgument("give the ids of the events to reject")
        count: int = await self._asked(Bury(self._attachment.number, ids.spans, reason))
        return count

    async def _asked(self, message: Request[Any]) -> Any:
        """The answer over a connection the seat belongs to. Asking twice does no harm."""
        check_request(message)
        while True:
            if self._failure is not None:
                raise self._failure
            if not self._attachment.is_open:
                raise SessionClosed("the durable is not held; open it first")
            changed = self._changed
            if self._seated_on == self._connection.reconnects:
                try:
                    return await self._connection.request(message, resend=False, waits=False)
                except ConnectionLost:
                    pass
            await changed.wait()

    async def close(self) -> None:
        """Leave the seat: events held and not acknowledged go back (SEM D13)."""
        if self._attachment.is_open:
            self._tell()
            await self._attachment.leave()

    async def __aenter__(self) -> DurableHold:
        return await self.open()
