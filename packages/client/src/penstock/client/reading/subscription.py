"""Subscriptions and browses of a channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pyarrow as pa

from penstock.client.connection import tracing
from penstock.client.connection.arguments import Duration, check_count, timeout_s
from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.delivery_route import DeliveryRoute
from penstock.client.connection.tracing import OperationSource
from penstock.client.reading.attachment import Attachment
from penstock.client.reading.inbox import Buffered, Inbox
from penstock.client.reading.looping import ReceivingLoops
from penstock.client.reading.merging import Merger
from penstock.client.reading.received import ReceivedBatch
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Subscribe, Subscribed
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.schema.ipc import batch_from, edges_of
from penstock_core.columns.schema.layout import STAMPED_FIELDS
from penstock_core.columns.schema.schema_cache import SchemaMemo
from penstock_core.display import safe_repr, short
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.errors import PenstockError, SessionClosed
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import AnyStart, FromId
from penstock_core.wire.native import messages as wire

CREDIT_FIRST = 4_096
"""Events that a new subscription requests before it knows their size."""
CREDIT_MAX = 65_536
"""Largest number of events that a subscription requests at a time."""
BUFFER_BYTES_MAX = 16 << 20
"""Default limit of a subscription's unread bytes, held by the client or in transit; a larger single
event is delivered alone."""


def received_batch(message: wire.Delivery, schema: pa.Schema, body: memoryview) -> pa.RecordBatch:
    """Return a delivery as a stored batch, with the columns of ids and times."""
    batch = batch_from(body, schema)
    if message.first_id < 0:
        return batch
    first = message.first_id
    return stamp(batch, Span(first, first + message.count), message.at_us)


def received_spans(message: wire.Delivery, schema: pa.Schema, body: memoryview) -> Spans:
    """Return the ids of a delivery as one span if they are consecutive. Otherwise return no spans:
    the ids have to be read from the batch."""
    first, count = message.first_id, message.count
    if first < 0:
        edges = edges_of(body, count) if _begins_with_ids.of(schema) else None
        if edges is None or edges[1] - edges[0] != count - 1:
            return ()
        first = edges[0]
    return (Span(first, first + count),)


def _has_ids_first(schema: pa.Schema) -> bool:
    """Return whether the first column of a schema is that of the event ids."""
    return bool(schema.field(0).equals(STAMPED_FIELDS[0]))


_begins_with_ids = SchemaMemo(_has_ids_first)


def redelivery_counts(message: wire.Delivery) -> dict[int, int]:
    """Return the redelivery counts of a delivery by event id, without the events whose count is
    0."""
    return {
        event_id: count
        for count, spans in message.redeliveries
        for first, end in spans
        for event_id in range(first, end)
    }


class Subscription(ReceivingLoops):
    """A subscription to the events of a channel, or a browse of them.

    Events are delivered in the order of their ids, each once; after a reconnect delivery continues
    with the next event. Iterate over the subscription for single events, or over :meth:`batches`
    for batches with Arrow columns::

        async with orders.subscribe(start="earliest") as events:
            async for event in events:
                print(event.data)
    """

    def __init__(
        self,
        connection: RealmConnection,
        channel: ChannelId,
        start: AnyStart,
        *,
        selector: str = "",
        timeout: Duration | None = None,
        browse: bool = False,
        last_id: int | None = None,
        merger: Merger | None = None,
        first_credit: int = CREDIT_FIRST,
        buffer_bytes: int = BUFFER_BYTES_MAX,
        channel_name: str = "",
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        """``channel_name`` is the value of ``channel`` in the received events; ``on_arrival`` is
        called when a batch arrives, and at the end."""
        self._attachment = Attachment(connection)
        self._attachment.source = OperationSource(connection, channel_name)
        super().__init__(self._attachment)
        timeout = timeout_s(timeout)
        check_count(buffer_bytes, "buffer_bytes", "bytes")
        self._buffer_bytes = buffer_bytes
        self._connection = connection
        self._channel = channel
        self._start = start
        self._selector = selector
        self._timeout = timeout
        self._browse = browse
        self._last_id = last_id
        self._merger = merger
        self._inbox: Inbox[ReceivedBatch] = Inbox(
            Buffered(self._attachment, buffer_bytes), on_arrival
        )
        self._channel_name = channel_name
        self._opening = asyncio.Lock()
        """Held while opening: one of several tasks opens the subscription, the others wait."""
        self._first_id = 0
        self._next_id = 0
        """Id at which to continue after a reconnect."""
        self._granted = first_credit
        self._credit = first_credit
        """Events that the server may still send."""
        self._renews_credit = True
        self._confirms = False
        """Whether the realm requires confirmations of received events (SEM J5)."""
        self._confirmation_is_due = False

    @safe_repr
    def __repr__(self) -> str:
        kind = "browse of " if self._browse else "of "
        state = f"{self._attachment.state}, {self._inbox.count_unread()} events unread"
        source = f"{kind}{self._source_text()} {self._connection.standing}"
        return f"<Subscription {source}, {state}, next id {self._next_id}>"

    def _source_text(self) -> str:
        """Return the channel or queue that is read, for ``repr``."""
        if self._channel_name:
            return f"channel {short(self._channel_name)}"
        return f"store {self._channel}"

    async def open(self) -> Subscription:
        """Open the subscription and return it; ``async with`` and iterating also do so. Raises
        ``InvalidSelector``, ``InvalidArgument``, ``AccessDenied``, ``NameDoesNotExist``."""
        async with self._opening:
            await self._open()
        return self

    async def _open(self) -> None:
        if not self._attachment.is_open:
            self._forget()  # an earlier use may have left events and an error
            await self._attachment.open(self._route(), lambda: self._attach(self._start))

    async def _attach(self, start: AnyStart) -> int:
        """Request events from ``start`` on. Return the first id that can be delivered."""
        self._credit = self._granted
        answer = await self._attachment.request(
            lambda: self._request(start), Subscribed, self._forget
        )
        if not self._attachment.is_open:
            self._first_id = answer.first_id
        self._next_id = max(self._next_id, answer.first_id)
        self._confirms = answer.confirm
        if answer.stop_id is not None:
            self._last_id = answer.stop_id - 1
        return answer.first_id

    def _request(self, start: AnyStart) -> Request[Subscribed]:
        """Return the request that opens the subscription or browse at ``start``."""
        return Subscribe(
            self._channel,
            self._attachment.number,
            start,
            credit=self._granted,
            selector=self._selector,
            browse=self._browse,
            last_id=self._last_id,
            confirms=True,
            deltas=True,
            bytes_max=self._buffer_bytes,
            bytes_held=self._inbox.buffered.carry_over(),
        )

    def _forget(self) -> None:
        """Drop received events, to start again from the beginning."""
        self._inbox = self._inbox.renewed()
        self._credit, self._next_id = self._granted, 0

    async def _reopen(self) -> None:
        if self._attachment.is_open:
            await self._attach(FromId(self._next_id))

    # --- calls of the connection ---------------------------------------------------------

    def _route(self) -> DeliveryRoute:
        return DeliveryRoute(
            reopen=self._reopen,
            failed=self._failed,
            delivered=self._delivered,
            finished=self._finished,
        )

    def _delivered(self, message: wire.Delivery, schema: pa.Schema, body: memoryview) -> None:
        """Add a delivery to the inbox, and adjust the credit to the size of its events."""
        rows = received_batch(message, schema, body)
        if self._merger is not None:
            rows = self._merger.merged(rows)
        counts = redelivery_counts(message)  # only browses of durables and queues have them
        batch = ReceivedBatch(
            rows,
            counts or None,
            self._connection.replier,
            publishers=message.publishers,
            channel=self._channel_name,
            channel_id=self._channel,
        )
        self._next_id = int(batch.event_ids[-1]) + 1
        self._credit -= message.count
        # Request as many events as fit into the buffer, judged by the size of the last ones.
        per_event = max(1, len(body) // message.count)
        self._granted = max(16, min(CREDIT_MAX, self._buffer_bytes // per_event))
        self._inbox.put(batch, len(body))
        if self._confirms and not self._confirmation_is_due:
            self._confirmation_is_due = True  # one confirmation for all deliveries of this turn
            asyncio.get_running_loop().call_soon(self._confirm)

    def _confirm(self) -> None:
        """Tell the realm that the events before ``_next_id`` have been received."""
        self._confirmation_is_due = False
        if self._attachment.is_open:
            self._connection.tell(wire.Credit(self._attachment.number, 0, self._next_id))

    def _finished(self) -> None:
        self._inbox.end()

    def _failed(self, error: PenstockError) -> None:
        self._inbox.fail(error)

    # --- receiving -----------------------------------------------------------------------

    async def next_batch(self, timeout: Duration | None = None) -> ReceivedBatch | None:
        """Return the next events; None at the end of a browse, or if none arrive within ``timeout``
        seconds (default: the subscription's timeout)."""
        timeout = timeout_s(timeout)
        waiting = self._next(self._timeout if timeout is None else timeout)
        if self._browse:  # shows events, and passes none to a consumer
            return await waiting
        return await tracing.received(self._attachment.source, waiting)

    async def _next(self, timeout: float | None) -> ReceivedBatch | None:
        await self.open()
        self._put_back_rests()
        batch = await self._inbox.get(timeout)
        if batch is not None:
            self._took(batch)
        return batch

    def _put_back_rests(self) -> int:
        """Put the events that abandoned loops did not deliver back to the front. Return the number
        of batches."""
        rests = self._loops.rests()
        for batch, count in reversed(rests):
            self._inbox.put_back(batch._part(count))
        return len(rests)

    def _took(self, batch: ReceivedBatch) -> None:
        """Count a batch as received by the application, and grant the realm more events once half
        of the credit is used."""
        renews = self._renews_credit and not len(self._inbox)
        more = self._granted - self._credit if renews and self._credit * 2 <= self._granted else 0
        self._credit += more
        self._inbox.buffered.took(batch, more)

    @property
    def first_id(self) -> int:
        """The id of the first event that can be delivered, as ``start`` determines it when the
        subscription opens."""
        return self._first_id

    async def close(self) -> None:
        """End the subscription. If it is opened again, it continues with the first event that was
        not delivered; a browse starts again."""
        if self._attachment.is_open:
            self._keep_place()
            self._loops.closed()
            self._inbox.fail(SessionClosed("the subscription is closed"))
            await self._attachment.leave()

    def _keep_place(self) -> None:
        """Make the first undelivered event the start of the next opening."""
        if self._browse:  # a browse starts again
            return
        undelivered = [int(batch.event_ids[count]) for batch, count in self._loops.all_rests()]
        if (waiting := self._inbox.waiting()) is not None:
            undelivered.append(int(waiting.event_ids[0]))
        self._start = FromId(min(undelivered, default=self._next_id))

    async def __aenter__(self) -> Subscription:
        return await self.open()
