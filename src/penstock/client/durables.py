"""Durable subscriptions of a channel."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pyarrow as pa

from penstock.client.delivered import DeliveredBatch, DeliveredEvent, joined, may_join
from penstock.client.inbox import Inbox
from penstock.client.session import Session
from penstock.client.starts import StartLike, start_of
from penstock.client.subscription import CREDIT_MAX, Subscription, received_batch
from penstock.columns.event import Event
from penstock.core.errors import (
    ConnectionLost,
    InvalidArgument,
    PenstockError,
    SessionClosed,
)
from penstock.core.ids import IdSet
from penstock.core.messages import FromEarliest
from penstock.wire.native import messages as wire
from penstock.wire.native.answers import DurableInfo, Subscribed

MERGED_ROWS_MAX = 16_384
"""Deliveries that wait are handed out as one batch up to about this many events."""

Handler = Callable[[DeliveredEvent], Awaitable[None] | None]


class Durables:
    """The durables of one channel: ``channel.durables``."""

    def __init__(self, session: Session, channel: int, name: str) -> None:
        self._session = session
        self._channel = channel
        self._of = name

    async def create(
        self,
        name: str,
        *,
        type: str = "shared",
        start: StartLike = "earliest",
        selector: str = "",
        persistent: bool | None = None,
        **attributes: Any,
    ) -> Durable:
        """Make a durable (SEM D2, D3); there are no further ``attributes`` yet.

        Raises ``NameAlreadyBound``, ``InvalidArgument``, ``InvalidSelector``.
        """
        if attributes:
            raise InvalidArgument(
                f"no durable attribute {', '.join(sorted(attributes))}; "
                "there are type, start, selector, persistent"
            )
        await self._session.ask(
            wire.CreateDurable(0, self._channel, name, type, start_of(start), selector, persistent),
            DurableInfo,
            resend=False,
        )
        return Durable(self._session, self._channel, name)

    async def get(self, name: str) -> Durable:
        """Raises ``NameDoesNotExist``."""
        durable = Durable(self._session, self._channel, name)
        await durable.info()
        return durable

    async def list(self) -> list[DurableInfo]:
        """Every durable of the channel as it stands, by name."""
        return await self._session.ask(wire.ListDurables(0, self._channel), _INFOS)

    async def delete(self, name: str) -> None:
        """End a durable for good. Raises ``NameDoesNotExist``."""
        await self._session.request(wire.DeleteDurable(0, self._channel, name), resend=False)


_INFOS: Any = list[DurableInfo]


class Durable:
    """One durable; state lives in the realm, this is a name to ask by."""

    def __init__(self, session: Session, channel: int, name: str) -> None:
        self.name = name
        self._session = session
        self._channel = channel
        self._puller: DurableSubscription | None = None
        self._fetching = asyncio.Lock()

    async def info(self) -> DurableInfo:
        """Counts, position, clients (SEM D17)."""
        return await self._session.ask(
            wire.DescribeDurable(0, self._channel, self.name), DurableInfo
        )

    def subscribe(
        self,
        handler: Handler | None = None,
        *,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: float | None = None,
    ) -> DurableSubscription:
        """Receive events to be acknowledged, at most ``window`` unsettled at a time (SEM D9).

        With a ``handler`` each event is given to it while the subscription is open: returning
        acknowledges when ``auto_ack``, an exception rolls back and is reported.
        """
        if window is not None and auto_ack:
            raise InvalidArgument("a window means manual acknowledgement; leave out one of the two")
        return DurableSubscription(
            self._session,
            self._channel,
            self.name,
            window=window,
            auto_ack=auto_ack,
            selector=selector,
            timeout=timeout,
            handler=handler,
        )

    async def fetch(self, count: int, timeout: float = 0.0) -> list[DeliveredEvent]:
        """Up to ``count`` events, as many as come within ``timeout`` seconds (SEM D5).

        The seat taken for it stays until :meth:`close` or the end of the session.
        """
        batches = await self.fetch_batches(count, timeout)
        return [event for batch in batches for event in batch]

    async def fetch_batches(self, count: int, timeout: float = 0.0) -> list[DeliveredBatch]:
        """As :meth:`fetch`, in columns."""
        if count < 1:
            raise InvalidArgument(f"fetch {count}: ask for 1 event or more")
        async with self._fetching:  # one seat: who fetches meanwhile waits for its turn
            if self._puller is None:
                puller = DurableSubscription(self._session, self._channel, self.name, pull=True)
                await puller.open()
                self._puller = puller
            return await self._puller.pull(count, timeout)

    async def flush(self) -> None:
        """Wait until what was settled of fetched events is on disk."""
        if self._puller is not None:
            await self._puller.flush()

    def browse(self) -> Subscription:
        """What is outstanding, in order, then the end; changes nothing (SEM D16)."""
        return DurableBrowse(self._session, self._channel, self.name)

    async def close(self) -> None:
        """Leave the seat :meth:`fetch` has taken."""
        if self._puller is not None:
            await self._puller.close()
            self._puller = None


class DurableBrowse(Subscription):
    def __init__(self, session: Session, channel: int, durable: str) -> None:
        super().__init__(session, channel, FromEarliest(), browse=True)
        self._durable = durable
        self._granted = CREDIT_MAX

    async def _ask(self, start: object) -> None:
        self._credit = self._granted
        await self._session.ask(
            wire.BrowseDurable(0, self._channel, self._number, self._durable, self._granted),
            Subscribed,
            resend=False,
        )

    async def reopen(self) -> None:
        self.failed(ConnectionLost("the connection was lost while browsing; browse again"))


class DurableSubscription:
    """A seat at a durable.

    Iterate it for events or :meth:`batches` for columns; settle them with their own ``ack`` and
    ``rollback``, or with :meth:`ack` and :meth:`rollback` by id. After a reconnect the realm
    delivers again what was unsettled, as to any client that was gone (SEM D13).
    """

    def __init__(
        self,
        session: Session,
        channel: int,
        durable: str,
        *,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: float | None = None,
        handler: Handler | None = None,
        pull: bool = False,
    ) -> None:
        self._session = session
        self._channel = channel
        self._durable = durable
        self._window = window
        self._auto_ack = auto_ack
        self._selector = selector
        self._timeout = timeout
        self._handler = handler
        self._pull = pull
        self._inbox: Inbox[DeliveredBatch] = Inbox()
        self._number = 0
        self._is_open = False
        self._soon: list[tuple[int, bool, bool]] = []
        self._settling: set[asyncio.Future[Any]] = set()
        self._refusal: PenstockError | None = None
        self._unconfirmed: ConnectionLost | None = None
        self._handling: asyncio.Task[None] | None = None
        self._met = asyncio.Event()
        self._demand = 0
        """What a synchronous consumer still waits for."""
        self.attachment = 0
        """Counts the seats taken: what was delivered over an earlier one has gone back."""

    async def open(self) -> DurableSubscription:
        """Take the seat. Raises ``DurableInUse``, ``InvalidArgument``. Iterating opens it, too."""
        if not self._is_open:
            self._number = self._session.add(self)
            try:
                await self._attach()
            except BaseException:
                self._session.remove(self._number)
                raise
            self._is_open = True
            if self._handler is not None:
                loop = asyncio.get_running_loop()
                self._handling = loop.create_task(self._handle(self._handler))
        return self

    async def _attach(self) -> None:
        self.attachment += 1
        message = wire.Attach(
            0,
            self._channel,
            self._number,
            self._durable,
            self._window,
            self._pull,
            self._selector,
        )
        await self._session.request(message, resend=False)

    async def reopen(self) -> None:
        if self._is_open:
            self._inbox.clear()  # the realm has taken these back
            self._soon.clear()
            await self._attach()
            if self._demand:
                self._session.tell(wire.Demand(self._number, self._demand))
            else:
                self._met.set()

    # --- Incoming ------------------------------------------------------------------------

    def delivered(self, message: wire.Delivery, schema: pa.Schema, body: memoryview) -> None:
        counts = {
            event_id: count
            for count, spans in message.redeliveries
            for first, end in spans
            for event_id in range(first, end)
        }
        batch = received_batch(message, schema, body)
        self._inbox.put(DeliveredBatch(batch, counts or None, self, message.publishers))

    def finished(self) -> None:
        self._met.set()

    def failed(self, error: PenstockError) -> None:
        self._inbox.fail(error)
        self._met.set()

    # --- taking --------------------------------------------------------------------------

    async def next_batch(self, timeout: float | None = None) -> DeliveredBatch | None:
        """The next events; None when none come for ``timeout`` seconds."""
        await self.open()
        batch = await self._inbox.get(self._timeout if timeout is None else timeout)
        return batch if batch is None or not len(self._inbox) else self._with_waiting(batch)

    def _with_waiting(self, batch: DeliveredBatch) -> DeliveredBatch:
        """One batch of all that is here already.

        Settled together they return their credit together; taken one by one, ever smaller
        deliveries would answer ever smaller settlements.
        """
        parts, rows = [batch], len(batch)
        while (following := self._inbox.waiting()) is not None and rows < MERGED_ROWS_MAX:
            if not may_join(batch, following):
                break
            parts.append(self._inbox.take())
            rows += len(following)
        return batch if len(parts) == 1 else joined(parts)

    async def batches(self) -> AsyncIterator[DeliveredBatch]:
        """Columns as they come; iterating to the end closes what iterating opened."""
        opened_here = not self._is_open
        try:
            while (batch := await self.next_batch()) is not None:
                yield batch
                if self._auto_ack:
                    await batch.ack()
        finally:
            if opened_here:
                await self.close()

    async def __aiter__(self) -> AsyncIterator[DeliveredEvent]:
        opened_here = not self._is_open
        try:
            while (batch := await self.next_batch()) is not None:
                for event in batch:
                    if batch.is_stale:
                        break  # the realm has taken the rest back, and delivers it again
                    yield event
                    if self._auto_ack:
                        await event.ack()
        finally:
            if opened_here:
                await self.close()

    async def pull(self, count: int, timeout: float) -> list[DeliveredBatch]:
        """Demand ``count`` events and take what comes within ``timeout`` seconds."""
        self._met.clear()
        self._demand = count
        self._session.tell(wire.Demand(self._number, count))
        try:
            await asyncio.wait_for(self._met.wait(), timeout)
        except TimeoutError:
            self._demand = 0
            self._session.tell(wire.Demand(self._number, 0))
            await self._met.wait()
        finally:
            self._demand = 0
        found = []
        while len(self._inbox):
            batch = await self._inbox.get(0)
            assert batch is not None, "the inbox says it has one"
            found.append(batch)
        if not found:
            self._raise_refusal()
            await self._inbox.get(0)  # raises what the subscription ended with, if it did
        return found

    async def _handle(self, handler: Handler) -> None:
        try:
            while (batch := await self._inbox.get(None)) is not None:
                for event in batch:
                    if batch.is_stale:
                        break
                    await self._handle_one(handler, event)
        except PenstockError as error:
            if not isinstance(error, SessionClosed):
                self._session.report(error)

    async def _handle_one(self, handler: Handler, event: DeliveredEvent) -> None:
        try:
            result = handler(event)
            if result is not None:
                await result
        except Exception as error:  # noqa: BLE001  the application's: give back and report
            await event.rollback()
            failure = PenstockError(f"the handler failed on event {event.event_id}: {error!r}")
            failure.__cause__ = error
            self._session.report(failure)
        else:
            if self._auto_ack:
                await event.ack()

    # --- settling ------------------------------------------------------------------------

    async def ack(self, event_ids: Iterable[int], *, previous: bool = False) -> None:
        """Acknowledge by id; returns when that is on disk. Raises ``IllegalState`` (SEM D15)."""
        await self._settle(IdSet.of(event_ids), roll_back=False, previous=previous)

    async def rollback(self, event_ids: Iterable[int]) -> None:
        """Give back by id; returns when that is on disk. Raises ``IllegalState`` (SEM D15)."""
        await self._settle(IdSet.of(event_ids), roll_back=True)

    def settle_soon(
        self, event_id: int, attachment: int, *, roll_back: bool, previous: bool = False
    ) -> None:
        """Settle without waiting; what one turn of the loop settles travels together.

        An event of an earlier attachment is the realm's again: nothing is sent for it.
        """
        if attachment != self.attachment:
            return
        if not self._soon:
            asyncio.get_running_loop().call_soon(self._send_soon)
        self._soon.append((event_id, roll_back, previous))

    def _send_soon(self) -> None:
        soon, self._soon = self._soon, []
        for (roll_back, previous), run in itertools.groupby(soon, key=lambda entry: entry[1:]):
            ids = [event_id for event_id, *_ in run]
            answer = self._settle(IdSet.of(ids), roll_back=roll_back, previous=previous)
            self._settling.add(answer)
            answer.add_done_callback(self._settled)

    def _settle(
        self, ids: IdSet, *, roll_back: bool, previous: bool = False
    ) -> asyncio.Future[Any]:
        message = wire.Settle(0, self._number, ids.spans, roll_back, previous)
        return self._session.request(message, resend=False)

    def _settled(self, answer: asyncio.Future[Any]) -> None:
        self._settling.discard(answer)
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, ConnectionLost):
            self._unconfirmed = error
        elif isinstance(error, PenstockError):
            self._refusal = error
        if isinstance(error, PenstockError) and not isinstance(error, SessionClosed):
            self._session.report(error)

    async def flush(self) -> None:
        """Wait until everything settled so far is on disk.

        Raises the first refusal, and ``ConnectionLost`` when some of it was on its way as the
        connection was lost: those events may be delivered again.
        """
        await self._confirm()
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        if unconfirmed is not None:
            raise unconfirmed

    async def _confirm(self) -> None:
        if self._soon:
            self._send_soon()
        if self._settling:
            await asyncio.wait(list(self._settling))
        self._raise_refusal()

    def _raise_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    @property
    def is_open(self) -> bool:
        return self._is_open

    async def close(self) -> None:
        """Confirm what was settled, give back the rest, leave the seat."""
        if not self._is_open:
            return
        self._is_open = False
        if self._handling is not None:
            self._handling.cancel()
            await asyncio.wait([self._handling])
        try:
            await self._confirm()
        finally:
            self._session.remove(self._number)
            self._inbox.fail(SessionClosed("the subscription is closed"))
            await self._session.request(wire.Unsubscribe(0, self._number))

    async def __aenter__(self) -> DurableSubscription:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def event_ids(events: Iterable[Event]) -> list[int]:
    """The ids of received events."""
    return [event.event_id for event in events if event.event_id is not None]
