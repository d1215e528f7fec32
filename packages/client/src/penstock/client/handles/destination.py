"""What channels and queues have in common: a name, events going in, attributes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Unpack

import pyarrow as pa

from penstock.client.connection.arguments import Duration
from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.attributes import EditedAttributes
from penstock.client.handles.definitions import definition_of
from penstock.client.handles.requesting import Requester
from penstock.client.handles.schedule import Schedule
from penstock.client.publishing.event_attributes import (
    REQUESTED,
    RequestAttributes,
    spelled_out,
    unknown_attribute,
)
from penstock.client.publishing.producer import Producer, ProducerErrorListener
from penstock.client.publishing.publishing import Publisher, bodies_of_events
from penstock.client.publishing.streamed import Many, publish_streamed
from penstock.client.publishing.transaction import Transaction
from penstock.client.reading.merging import as_deltas
from penstock.client.reading.received import ReceivedEvent
from penstock.client.reading.start_positions import check_range, start_of
from penstock.client.reading.subscription import Subscription
from penstock_core.api.channels import (
    ChannelInfo,
    ChannelOpened,
    DescribeChannel,
    DescribeColumns,
    DescribeMissing,
    EditChannel,
    Locate,
    Location,
    MaintainChannel,
    Maintained,
    Missing,
    PurgeChannel,
)
from penstock_core.api.requests import Kind
from penstock_core.columns.events.event import Event
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.vocabulary.errors import ConnectionLost
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId


class Destination:
    """A channel or queue; state lives in the realm, this is a handle."""

    _kind: ClassVar[Kind]
    name: str
    number: ChannelId
    """Names it in requests of this realm's clients; it is gone with the channel or queue."""
    epoch: str
    """Whose ids they are: another text after delete and create, in another realm, and when
    they begin again with the realm (SEM C1d)."""
    scheduled: Schedule
    """Events that wait for their time to be published."""

    def __init__(self, connection: RealmConnection, opened: ChannelOpened) -> None:
        self.name = opened.name
        self.number = opened.channel
        self.epoch = opened.epoch(connection.realm_id)
        self._connection = connection
        self._publisher = Publisher(connection, opened.channel)
        self.scheduled = Schedule(connection, opened.channel)

    def __repr__(self) -> str:
        return f"<{self._kind.title()} {self.name!r} at {self._connection.place}>"

    # --- events going in -----------------------------------------------------------------

    async def _publish(self, event: Event) -> int:
        return await self._publisher.publish_one(event)

    async def _publish_many(self, events: Many) -> range:
        if not isinstance(events, Sequence):
            return await publish_streamed(self._publisher, events)
        return await self._publisher.publish(bodies_of_events(events))

    async def _publish_table(self, table: Any, *, delta: bool = False) -> range:
        bodies = bodies_of_table(table)
        if delta:
            bodies = [as_deltas(body) for body in bodies]
        return await self._publisher.publish(bodies) if bodies else range(0)

    @spelled_out
    async def request(
        self,
        data: bytes,
        timeout: Duration,
        **attributes: Unpack[RequestAttributes],
    ) -> ReceivedEvent:
        """Publish a request and wait for its reply, at most ``timeout`` seconds (SEM R1).

        The reply comes to a temporary queue that all requests of this session share; whoever
        receives the request sends it with ``event.reply(...)``, or over AMQP to the ``reply-to`` of
        the message. Raises ``NoReply`` when none comes in time, although the request may be done
        all the same; ``CapacityReached`` and the other errors of publishing.
        """
        if not attributes.keys() <= REQUESTED:
            raise unknown_attribute(attributes, REQUESTED, "request")
        requester = self._connection.requester
        assert isinstance(requester, Requester), "its session has brought it"
        return await requester.request(
            self.name, self._publisher, data, timeout=timeout, attributes=attributes
        )

    def producer(
        self,
        *,
        batch_events: int = 1_024,
        batch_bytes: int = 1 << 20,
        linger_ms: float = 1.0,
        on_error: ProducerErrorListener | None = None,
    ) -> Producer:
        """A pipelined producer, which sends without waiting for each event.

        Refused events are reported to ``on_error``, or otherwise to the session's error listeners.
        """
        return Producer(
            self._connection,
            self._publisher,
            batch_events=batch_events,
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            on_error=on_error,
        )

    def transaction(self) -> Transaction:
        """Publish several times in one step: all of it at the end of the block, or nothing if an
        exception leaves it (SEM X1)::

            async with orders.transaction() as tx:
                await tx.publish(b"...")
        """
        return Transaction(self._connection, self.number, self.name)

    # --- reading -------------------------------------------------------------------------

    def browse(self, *, start: int = 0, end: int | None = None, selector: str = "") -> Subscription:
        """Stored events from ``start`` up to and including ``end``, then the end. It takes
        nothing, off a queue neither.

        Raises ``InvalidArgument`` for a range of no events.
        """
        check_range(start, end)
        return Subscription(
            self._connection,
            self.number,
            FromId(start),
            selector=selector,
            browse=True,
            last_id=end,
        )

    async def locate(self, first_id: int, end_id: int, *, publishers: bool = False) -> Location:
        """Where the stored events of an id range can be read: sealed files, or over the wire;
        with ``publishers`` also who published those in files."""
        message = Locate(self.number, first_id, end_id, publishers=publishers)
        return await self._connection.ask(message, Location)

    async def published_at(self, event_id: int) -> datetime | None:
        """When the first stored event with this id or a later one was published; None: there is
        none."""
        looking = Subscription(
            self._connection, self.number, start_of(event_id), browse=True, first_credit=1
        )
        async with looking:
            batch = await looking.next_batch()
        return None if batch is None else batch[0].published

    async def missing(self, first_id: int, end_id: int) -> tuple[Missing, ...]:
        """Ids in a range that have no event any more, by the cause of their removal (SEM T8).
        Raises ``InvalidArgument`` for an empty range."""
        check_range(first_id, end_id - 1)
        message = DescribeMissing(self.number, first_id, end_id)
        return await self._connection.ask(message, tuple[Missing, ...])

    async def first_id_at(self, moment: datetime) -> int:
        """The id of the first stored event published at ``moment`` or later; the next id to be
        given when there is none."""
        looking = Subscription(
            self._connection, self.number, start_of(moment), browse=True, first_credit=1
        )
        async with looking:
            return looking.first_id

    # --- administration ------------------------------------------------------------------

    async def purge(
        self, *, start: int | None = None, end: int | None = None, selector: str = ""
    ) -> int:
        """Remove events from ``start`` up to and including ``end``; gives how many (SEM T9)."""
        check_range(start, end)
        return await self._connection.ask(
            PurgeChannel(self.number, start, end, selector=selector), int, resend=False
        )

    async def columns(self) -> pa.Schema:
        """The columns that all events fit, as they are stored (SEM E2)."""
        encoded = await self._connection.ask(DescribeColumns(self.number), bytes)
        return schema_from(encoded)

    async def info(self) -> ChannelInfo:
        """Counts, attributes, storage, as they are now."""
        return await self._connection.ask(DescribeChannel(self.name, self._kind), ChannelInfo)

    async def edit(self, **attributes: Unpack[EditedAttributes]) -> None:
        """Change attributes in place; they apply at once (SEM C3). Raises ``InvalidArgument``."""
        current = (await self.info()).definition
        wanted = definition_of(attributes, self._kind, current)
        try:
            await self._connection.request(EditChannel(self.name, wanted), resend=False)
        except ConnectionLost:
            if (await self.info()).definition != wanted:
                raise  # nobody knows whether it is still to be done

    async def messages(self) -> Messages:
        """The message types of the descriptors as they are now, to write and read events that
        carry Protocol Buffers (SEM P). Raises ``Unavailable`` without the extra ``protobuf``."""
        return Messages(self.name, (await self.info()).definition.descriptors)

    async def maintain(self) -> Maintained:
        """Rewrite a single-file store without what is dead in it; ids are kept (SEM S)."""
        return await self._connection.ask(MaintainChannel(self.name, self._kind), Maintained)
