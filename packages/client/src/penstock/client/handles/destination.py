"""The common base of the handles for channels and queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Unpack

import pyarrow as pa

from penstock.client.connection.arguments import Duration, check_count
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
from penstock.client.reading.start_positions import TimeLike, check_range, start_of, time_of
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
from penstock_core.api.durables import DeliveryPage, DescribeDelivery
from penstock_core.api.requests import Kind
from penstock_core.api.tables import (
    LocateSealedTable,
    LocateTable,
    SealedTableFiles,
    TableFiles,
)
from penstock_core.bounds import EVENT_ID_MAX
from penstock_core.columns.events.delivery_table import table_of_runs
from penstock_core.columns.events.event import Event
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.columns.schema.moments import us_of
from penstock_core.display import html_fields, html_info, safe_html, safe_repr, short
from penstock_core.vocabulary.delivery_runs import (
    OUTSTANDING,
    DeliveryPlace,
    DeliveryRun,
    EventState,
)
from penstock_core.vocabulary.errors import ConnectionLost
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId, FromTime


class Destination:
    """A handle of a channel or queue. The realm stores the channel or queue itself and its
    events."""

    _kind: ClassVar[Kind]
    name: str
    number: ChannelId
    """Identifies the channel or queue in requests. Invalid once it is deleted."""
    epoch: str
    """Identifies the sequence of event ids. It changes when the channel or queue is deleted and
    created again, when its ids restart with the realm (SEM C1d), and differs between realms."""
    scheduled: Schedule
    """The events that the realm will publish at a later time."""

    def __init__(self, connection: RealmConnection, opened: ChannelOpened) -> None:
        self._opened = opened
        self.name = opened.name
        self.number = opened.channel
        self.epoch = opened.epoch(connection.realm_id)
        self._connection = connection
        self._publisher = Publisher(connection, opened.channel, name=opened.name)
        self.scheduled = Schedule(connection, opened.channel)

    @safe_repr
    def __repr__(self) -> str:
        kind, definition = self._kind.title(), self._opened.definition
        engine = "" if definition.engine == "default" else f", engine {definition.engine}"
        shown_type = f"({definition.type}{engine})"
        return f"<{kind} {short(self.name)} {shown_type} {self._connection.standing}>"

    @safe_html
    def _repr_html_(self) -> str:
        """Return a table for notebooks of what the handle knows without asking the realm."""
        values: list[tuple[str, object]] = [
            ("realm", self._connection.standing.removeprefix("at ")),
            ("number", self.number),
            ("epoch", self.epoch),
        ]
        return html_fields(f"{self._kind.title()} {short(self.name)}", values) + html_info(
            self._opened.definition
        )

    # --- events going in -----------------------------------------------------------------

    async def _publish(self, event: Event) -> int:
        return await self._publisher.publish_one(event)

    async def _publish_many(self, events: Many) -> range:
        # The events of a sequence are in memory anyway, so they need no stages in the realm.
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
        """Publish a request and return its reply, waiting at most ``timeout`` seconds (SEM R1)::

            reply = await orders.request(b"price?", timeout=5)

        The receiver of the request replies with ``event.reply(...)``, or over AMQP by a message to
        its ``reply-to``. Replies arrive on a temporary queue that all requests of this session
        share.

        Raises ``NoReply`` if no reply arrives in time; the request may have been carried out
        nevertheless. Also raises the errors of publishing, such as ``CapacityReached``.
        """
        if not attributes.keys() <= REQUESTED:
            raise unknown_attribute(attributes, REQUESTED, "request")
        requester = self._connection.requester
        assert isinstance(requester, Requester), "the session sets it"
        return await requester.request(
            self.name, self._publisher, data, timeout=timeout, attributes=attributes
        )

    def producer(
        self,
        *,
        batch_events: int = 1_024,
        batch_bytes: int = 1 << 20,
        linger_ms: float | str | timedelta = 1.0,
        on_error: ProducerErrorListener | None = None,
    ) -> Producer:
        """Return a pipelined producer. It sends events without waiting until each event is stored.

        The producer sends a batch when it has collected ``batch_events`` events or ``batch_bytes``
        bytes, or ``linger_ms`` after the first event of the batch: milliseconds, a text such as
        ``"5ms"``, or a ``timedelta``. ``on_error`` is called for events that the realm refuses;
        without it, the session's error listeners are called.
        """
        return Producer(
            self._connection,
            self._publisher,
            batch_events=batch_events,
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            on_error=on_error,
            source=f"{self._kind} {short(self.name)}",
        )

    def transaction(self) -> Transaction:
        """Return a transaction: its events are published in one step at the end of the block, or
        not at all if the block raises an exception (SEM X1)::

            async with orders.transaction() as tx:
                await tx.publish(b"...")
        """
        return Transaction(self._connection, self.number, self.name)

    # --- reading -------------------------------------------------------------------------

    def browse(self, *, start: int = 0, end: int | None = None, selector: str = "") -> Subscription:
        """Read the stored events with ids from ``start`` up to and including ``end``, then end the
        subscription. No event is consumed, not even those of a queue.

        Raises ``InvalidArgument`` for an empty range.
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
        """Return where the stored events with ids from ``first_id`` up to but not including
        ``end_id`` can be read: in sealed files or over the connection. With ``publishers``, the
        result also names the publishers of the events in files."""
        message = Locate(self.number, first_id, end_id, publishers=publishers)
        return await self._connection.ask(message, Location)

    async def delivery_state(
        self,
        *,
        durable: str | None = None,
        states: Sequence[EventState] = OUTSTANDING,
        limit: int | None = None,
    ) -> pa.Table:
        """Return who has which event and since when, as an Arrow table with a row for each event
        and durable, sorted by durable and event id, dead events last (SEM D23)::

            stuck = await orders.delivery_state(states=["in_flight", "delayed"])

        Columns: ``event_id``, ``durable`` (empty for a queue), ``state``, ``client``, ``since``,
        ``deliveries``, ``lease_end``, ``delayed_until``, ``cause``, ``dead_event_id``.

        - ``durable``: the name of the only durable
        - ``states``: ``"ready"``, ``"in_flight"``, ``"delayed"``; ``"acknowledged"`` for events
          that are still stored, although this durable does not need them any more; ``"dead"`` for
          the events in the dead event store that came from here, which needs the right to read it
        - ``limit``: the largest number of rows; without it, all rows

        Nothing changes. The client reads the table in pages; each page shows one instant.

        Raises ``NameDoesNotExist``, ``InvalidArgument``, ``AccessDenied``.
        """
        if limit is not None:
            check_count(limit, "limit")
        runs: list[DeliveryRun] = []
        place: DeliveryPlace | None = DeliveryPlace("", 0)
        remaining = EVENT_ID_MAX if limit is None else limit
        while place is not None and remaining:
            message = DescribeDelivery(
                self.number,
                remaining,
                durable=durable,
                states=tuple(states),
                next_durable=place.durable,
                first_id=place.first_id,
                among_dead=place.is_dead,
            )
            page = await self._connection.ask(message, DeliveryPage)
            runs += page.runs
            remaining -= sum([run.span.size for run in page.runs])
            place = page.next
        return table_of_runs(runs)

    async def locate_table(self) -> TableFiles:
        """Make a snapshot of the stored events as Parquet files (SEM B7), for programs on the
        realm's machine that read many events.

        Raises ``LimitReached``, ``StorageFailed``, ``Damaged``, and ``IllegalState`` if the realm
        has no tables.
        """
        return await self._connection.ask(LocateTable(self.number), TableFiles)

    async def locate_sealed_table(
        self, first_id: int, end_id: int, *, rows_min: int = 1
    ) -> SealedTableFiles:
        """Have the realm make Parquet files of sealed events with ids from ``first_id`` up to but
        not including ``end_id`` (SEM B8), for programs on its machine that keep copies of them.

        The answer has a limited number of files, of at least ``rows_min`` rows each. Raises
        ``LimitReached``, ``StorageFailed``, ``Damaged``, and ``IllegalState`` if the realm has no
        tables.
        """
        message = LocateSealedTable(self.number, first_id, end_id, rows_min=rows_min)
        return await self._connection.ask(message, SealedTableFiles)

    async def published_at(self, event_id: int) -> datetime | None:
        """Return the time of publication of the first stored event whose id is at least
        ``event_id``; None if no such event is stored."""
        subscription = Subscription(
            self._connection, self.number, start_of(event_id), browse=True, first_credit=1
        )
        async with subscription:
            batch = await subscription.next_batch()
        return None if batch is None else batch[0].published

    async def missing(self, first_id: int, end_id: int) -> tuple[Missing, ...]:
        """Return the ids of removed events from ``first_id`` up to but not including ``end_id``, by
        the cause of their removal (SEM T8). Raises ``InvalidArgument`` for an empty range."""
        check_range(first_id, end_id - 1)
        message = DescribeMissing(self.number, first_id, end_id)
        return await self._connection.ask(message, tuple[Missing, ...])

    async def first_id_at(self, moment: TimeLike) -> int:
        """Return the id of the first stored event published at ``moment`` or later; if none is
        stored, the id that the next published event will get. ``moment`` is a ``datetime`` with a
        time zone, or a text such as ``"2026-05-04T12:00:00Z"``."""
        start = FromTime(us_of(time_of(moment, "moment")))
        subscription = Subscription(
            self._connection, self.number, start, browse=True, first_credit=1
        )
        async with subscription:
            return subscription.first_id

    # --- administration ------------------------------------------------------------------

    async def purge(
        self, *, start: int | None = None, end: int | None = None, selector: str = ""
    ) -> int:
        """Remove the events with ids from ``start`` up to and including ``end`` that match
        ``selector``, by default all. Return the number of removed events (SEM T9)."""
        check_range(start, end)
        return await self._connection.ask(
            PurgeChannel(self.number, start, end, selector=selector), int, resend=False
        )

    async def columns(self) -> pa.Schema:
        """Return the Arrow schema of the stored events, with a column for each property ever
        published (SEM E2)."""
        encoded = await self._connection.ask(DescribeColumns(self.number), bytes)
        return schema_from(encoded)

    async def info(self) -> ChannelInfo:
        """Return the present counts, attributes and storage figures."""
        return await self._connection.ask(DescribeChannel(self.name, self._kind), ChannelInfo)

    async def edit(self, **attributes: Unpack[EditedAttributes]) -> None:
        """Change attributes. The changes take effect immediately (SEM C3)::

            await orders.edit(ttl="7d", capacity=1_000_000)

        Raises ``InvalidArgument`` for an attribute that does not exist or cannot be changed.
        """
        current = (await self.info()).definition
        edited = definition_of(attributes, self._kind, current)
        try:
            await self._connection.request(EditChannel(self.name, edited), resend=False)
        except ConnectionLost:
            # Not repeated: the request may still take effect, and a repetition could undo a later
            # edit of another client.
            if (await self.info()).definition != edited:
                raise

    async def messages(self) -> Messages:
        """Return the message types of the current descriptors, to encode and decode events that
        carry Protocol Buffers (SEM P). Raises ``Unavailable`` if the extra ``protobuf`` is not
        installed."""
        return Messages(self.name, (await self.info()).definition.descriptors)

    async def maintain(self) -> Maintained:
        """Rewrite the files of a single-file store without its removed events; ids stay the same
        (SEM S). Return the result."""
        return await self._connection.ask(MaintainChannel(self.name, self._kind), Maintained)
