"""Handles of a client for the channels of a realm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import pyarrow as pa

from penstock.client.connection.arguments import Duration
from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.attributes import ChannelAttributes
from penstock.client.handles.definitions import create_store, delete_store
from penstock.client.handles.destination import Destination
from penstock.client.handles.durables import Durables
from penstock.client.handles.named import StoreLike, name_of_store
from penstock.client.handles.near_names import near_names
from penstock.client.publishing.event_attributes import (
    PUBLISHED,
    EventAttributes,
    spelled_out,
    unknown_attribute,
)
from penstock.client.publishing.publishing import Publisher, ids_of_answer, parts_of, stage
from penstock.client.publishing.streamed import Many
from penstock.client.reading.archive_subscription import SeamlessSubscription
from penstock.client.reading.merging import Merger, Registered, delta_of, key_name_of, registered_of
from penstock.client.reading.start_positions import (
    StartLike,
    TimeLike,
    check_range,
    start_of,
    time_of,
)
from penstock.client.reading.subscription import BUFFER_BYTES_MAX, Subscription
from penstock_core.access.name_owners import with_content
from penstock_core.api.channels import (
    ChannelOpened,
    ListChannels,
    OpenChannel,
)
from penstock_core.api.publishing import CommitStages, DropStages
from penstock_core.api.requests import Kind
from penstock_core.columns.events.event import Event
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.schema.ipc import batch_bytes
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.display import safe_repr

if TYPE_CHECKING:
    from penstock.client.copies.sinks import FolderLike
    from penstock.client.reading.key_state import KeyState
    from penstock_core.columns.files.exports import Manifest


class Channels:
    """The channels of a realm: ``session.channels``."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    @safe_repr
    def __repr__(self) -> str:
        return f"<Channels {self._connection.standing}>"

    async def create(
        self, name: str, *, if_missing: bool = False, **attributes: Unpack[ChannelAttributes]
    ) -> Channel:
        """Create a channel and return it (SEM C3)::

            orders = await session.channels.create("orders", ttl="7d", capacity=1_000_000)

        The attributes, all optional:

        - ``type``: where events are stored: ``"mixed"`` (the default), ``"persistent"``,
          ``"reliable"``, ``"simple"``, ``"transient"``, ``"off_heap"`` or ``"paged"`` (SEM C1)
        - ``engine``: ``"default"``, ``"jms"`` or ``"merge"`` (SEM J, K)
        - ``ttl``: time to live of events: milliseconds, a text such as ``"1h"``, or a
          ``timedelta``
        - ``capacity``: the largest number of events that the channel stores
        - ``dead_event_store``: name or handle of the channel or queue for events that leave
          unconsumed
        - ``keys``: the publish keys, a dictionary of property names and depths
        - ``retain_consumed``, ``event_ttl``, ``cluster_wide``: booleans
        - ``start_event_id``: id of the first event
        - ``topics``, ``payload``: the MQTT topics that the channel stores, and their content
        - ``archive``: URI of the table that still has events after they have left the channel
        - ``descriptors``: Protocol Buffers descriptors
        - ``storage``: a dictionary of storage properties (SEM S)

        With ``if_missing`` an existing channel is returned if it has the attributes given here.

        Raises ``InvalidName``, ``InvalidArgument``, and ``NameAlreadyBound`` if the name is in use.
        """
        opened = await create_store(
            self._connection, name, "channel", attributes=attributes, if_missing=if_missing
        )
        return Channel(self._connection, opened)

    async def get(self, name: StoreLike) -> Channel:
        """Return the channel of this name. Raises ``NameDoesNotExist``."""
        name = name_of_store(name)
        async with near_names(name, self.list):
            opened = await self._connection.ask(OpenChannel(name), ChannelOpened)
        return Channel(self._connection, opened)

    async def list(self) -> list[str]:
        """Return the names of all channels, sorted."""
        names: list[str] = await self._connection.request(ListChannels())
        return names

    async def delete(self, name: StoreLike) -> None:
        """Delete a channel with its events and durables. Raises ``NameDoesNotExist``."""
        name = name_of_store(name)
        async with near_names(name, self.list):
            await delete_store(self._connection, name, "channel")

    async def export(self, name: StoreLike, folder: FolderLike) -> Manifest:
        """Write the present state of a channel to a new or empty folder: events, durables,
        producers and counters (SEM C7). :meth:`import_from` reads it.

        The channel may be in use during the export. Raises ``NameDoesNotExist``,
        ``InvalidArgument``, ``Damaged``, ``ConnectionLost``; the files written so far are then
        removed.
        """
        from penstock.client.copies.transfer import export

        return await export(self._connection, name_of_store(name), "channel", folder=folder)

    async def import_from(self, folder: FolderLike, name: str = "") -> Channel:
        """Create a channel from an export and return it. Its events have the exported ids (SEM C7).
        The import is complete, or it changes nothing.

        ``name`` is the name of the new channel; empty means the name of the exported one. Raises
        ``DamagedExport``, ``NameAlreadyBound``, ``InvalidArgument``, ``MemoryLimit``, and
        ``NameDoesNotExist`` if this realm lacks the channel's dead event store.
        """
        from penstock.client.copies.transfer import import_from

        opened = await import_from(self._connection, folder, "channel", name=name)
        return Channel(self._connection, opened)


class Channel(Destination):
    """A handle of a channel. The realm stores the channel itself, its events and its durables."""

    _kind: ClassVar[Kind] = "channel"
    durables: Durables
    """The durables of this channel."""

    def __init__(self, connection: RealmConnection, opened: ChannelOpened) -> None:
        super().__init__(connection, opened)
        self.durables = Durables(connection, opened.channel, opened.name)
        self._opened = opened

    # --- publishing ----------------------------------------------------------------------

    @spelled_out
    async def publish(
        self,
        data: bytes = b"",
        **attributes: Unpack[EventAttributes],
    ) -> int:
        """Publish one event. Return its id once the realm has stored it safely::

            await orders.publish(b"...", tag="new", properties={"price": 9.5})

        With ``deliver_at`` (a time, seconds since 1970, or a duration from now such as ``"10m"``),
        the realm publishes the event at that time, and the call returns its number in
        ``scheduled``.

        Raises ``InvalidEvent``, ``EventTooLarge``, ``CapacityReached``, ``MemoryLimit``,
        ``PublishingPaused``.
        """
        if not attributes.keys() <= PUBLISHED:
            raise unknown_attribute(attributes, PUBLISHED, "publish")
        event = Event(data, **attributes)
        return await self._publisher.publish_one(event)

    async def publish_many(self, events: Many) -> range:
        """Publish several events in one step: all of them or none. Return their ids, which are
        consecutive.

        ``events`` is a sequence, or any other iterable such as a generator, asynchronous or not.
        From an iterable, the client reads a few thousand events at a time, and the realm stages
        them until the last one has arrived (setting ``limits.stage_bytes``). If the iterable
        raises an error, nothing is published. Raises the errors of :meth:`publish`.
        """
        return await self._publish_many(events)

    async def publish_table(self, table: Any, *, delta: bool = False) -> range:
        """Publish the rows of a table as events, in one step. Return their ids.

        ``table`` is an Arrow, pandas or polars table, a dictionary of columns, or a list with a
        dictionary for each row, in which a missing key means null.

        The columns ``data``, ``tag``, ``ttl``, ``priority`` and ``persistent`` set the attributes
        of the same name; every other column is a property. With ``delta`` each row changes the
        state of a key of a merge channel: the table has the column of the publish key and the
        columns to change. Raises ``InvalidEvent`` with the name of the wrong column, and the
        errors of :meth:`publish`.
        """
        return await self._publish_table(table, delta=delta)

    # --- merge channels ------------------------------------------------------------------

    async def register(
        self, key: Any, properties: Mapping[str, Any] | None = None, /, **named: Any
    ) -> Registered:
        """Publish the complete state of a key on a merge channel. Return an object that publishes
        changes of this state (SEM K2)::

            eur = await rates.register("EUR", bid=1.0, ask=2.0)
            await eur.update(ask=2.5)

        Pass properties whose names are not Python identifiers as a dictionary. Raises
        ``IllegalState`` unless the channel's engine is ``merge``, and the errors of
        :meth:`publish`.
        """
        name = key_name_of(self.name, self._opened.definition)
        event = registered_of(name, key, {**(properties or {}), **named})
        return Registered(name, key, await self._publish(event), publish=self._publish)

    async def update(
        self, key: Any, properties: Mapping[str, Any] | None = None, /, **changes: Any
    ) -> int:
        """Change some properties of a key's state on a merge channel. Return the id of the delta
        once the realm has stored it safely.

        Any session may update a key. If the key has no state yet, the changes become its first
        state (SEM K4). Raises ``IllegalState`` unless the channel's engine is ``merge``.
        """
        name = key_name_of(self.name, self._opened.definition)
        return await self._publish(delta_of(name, key, {**(properties or {}), **changes}))

    async def state(
        self, key: Any, *, as_of: int | None = None, archive: str | None = None
    ) -> KeyState:
        """Return the state of a key of a merge channel: the present state or, with ``as_of``, the
        state after the event with this id.

        A state that is no longer on the channel is read from the channel's archive, or from
        ``archive``: the URI of a table that an archive pipeline writes, or the name of a channel or
        queue that a join from this channel fills (SEM K5). Raises ``InvalidArgument`` if events
        that the state needs no longer exist, and ``NameDoesNotExist`` if the archive does not
        exist.
        """
        from penstock.client.reading.key_state import StateQuestion, state_of

        name = key_name_of(self.name, self._opened.definition)
        question = StateQuestion(self._opened, name, key, as_of=as_of, archive=archive)
        return await state_of(self._connection, question)

    # --- publishing in two steps ---------------------------------------------------------

    async def stage(self, table: Any) -> list[str]:
        """Store the rows of a table in the realm without publishing them. Return the names of the
        stages that contain them, in order; :meth:`commit_stages` publishes stages.

        The realm drops a stage after one hour without a commit, and when it restarts. Columns are
        those of :meth:`publish_table`.
        """
        parts = [
            part
            for body in bodies_of_table(table)
            for part in parts_of(body, self._connection.event_bytes_max)
        ]
        buffers = [memoryview(batch_bytes(part)) for part in parts]
        return await stage(self._connection, self.number, parts, buffers=buffers)

    async def commit_stages(
        self, stages: Sequence[str], *, producer: str, sequence: int, content: str = ""
    ) -> range:
        """Publish stages of any session, in the order of ``stages`` and in one step (SEM X1).
        Return the ids of the events.

        A repeated call with the same ``producer`` and ``sequence`` returns the ids of the first
        call, although its stages no longer exist (SEM X3). ``content`` may identify the published
        events, for example by the positions from which they were read: a repeated call with other
        ``content`` raises ``DifferentContent``. Also raises ``NoSuchStage``, ``SequenceTooOld``.
        """
        name = with_content(producer, content)
        message = CommitStages(self.number, name, sequence, stages=tuple(stages))
        return ids_of_answer(await self._connection.request(message))

    async def drop_stages(self, stages: Sequence[str]) -> None:
        """Drop stages without publishing them."""
        await self._connection.request(DropStages(tuple(stages)))

    async def publish_bodies(
        self, bodies: Sequence[pa.RecordBatch], *, producer: str, sequence: int
    ) -> range:
        """Publish record batches in the layout of :mod:`penstock_core.columns.schema.layout`, in
        one step. Return the ids of the events.

        A repeated call with the same ``producer`` and ``sequence``, from any session, returns the
        ids of the first call (SEM X3). Raises ``SequenceTooOld`` and the errors of :meth:`publish`.
        """
        publisher = Publisher(
            self._connection, self.number, producer, published=sequence - 1, name=self.name
        )
        return await publisher.publish(bodies)

    # --- reading -------------------------------------------------------------------------

    def subscribe(
        self,
        *,
        start: StartLike = "latest",
        selector: str = "",
        timeout: Duration | None = None,
        merged: bool = False,
        archive: str | None = None,
        buffer_bytes: int = BUFFER_BYTES_MAX,
    ) -> Subscription:
        """Read stored events from ``start`` on, then events as they are published (SEM E6)::

            async with orders.subscribe(start="earliest", selector="price > 5") as events:
                async for event in events:
                    print(event.event_id, event.data)

        - ``start``: ``"earliest"``, ``"latest"``, an event id, or a time with its time zone: a
          ``datetime``, or a text such as ``"2026-05-04T12:00:00Z"``
        - ``selector``: only matching events are delivered
        - ``timeout``: ends an iteration if no event arrives for this time: seconds, a text such as
          ``"500ms"``, or a ``timedelta``
        - ``merged``: on a merge channel, deltas are merged into full events by the client. Without
          it, the first event of a key is its state and later ones may be deltas
          (``event.is_delta``) (SEM K3)
        - ``archive``: URI of the table to read older events from; None means the channel's
          archive, an empty text means no archive
        - ``buffer_bytes``: largest number of bytes of events that are in transit or received and
          not read yet; a larger single event is delivered alone

        If the archive contains events from ``start`` on, they are delivered first, under their
        ids, followed by those of the channel without a gap. Errors of an archive are raised when
        the subscription opens: ``NameDoesNotExist``, ``Unavailable``, ``InvalidArgument``, and
        ``IllegalState`` if it is the archive of another channel.
        """
        merger = Merger(key_name_of(self.name, self._opened.definition)) if merged else None
        return SeamlessSubscription(
            self._connection,
            self._opened,
            start_of(start),
            archive=archive,
            selector=selector,
            timeout=timeout,
            merger=merger,
            buffer_bytes=buffer_bytes,
        )

    def browse(
        self,
        *,
        start: StartLike = 0,
        end: int | None = None,
        selector: str = "",
        archive: str | None = "",
    ) -> Subscription:
        """Read the stored events from ``start`` up to and including the id ``end``, then end the
        subscription; without ``end``, up to the last stored event.

        ``archive`` is the URI of a table to read older events from; None means the channel's
        archive, and an empty text, the default, means no archive. Raises ``InvalidArgument`` for
        an empty range.
        """
        check_range(start if isinstance(start, int) else None, end)
        return SeamlessSubscription(
            self._connection,
            self._opened,
            start_of(start),
            archive=archive,
            selector=selector,
            browse=True,
            last_id=end,
        )

    async def read(
        self,
        *,
        start: StartLike = 0,
        end: int | TimeLike | None = None,
        columns: Sequence[str] | None = None,
        selector: str = "",
        archive: str | None = None,
    ) -> pa.Table:
        """Return the events from ``start`` up to and including ``end``, an id or a time (a
        ``datetime`` or text with its time zone), as one Arrow table::

            table = await orders.read(columns=["event_id", "price"], selector="price > 5")

        The table has the columns ``event_id``, ``published``, ``tag`` and ``data``, and one for
        each property ever published on the channel; ``columns`` selects some of them. Integers and
        floats of a property share one column (SEM E10); ``price::int`` and ``price::float`` name
        the exact columns. Events that have left the channel are read from its archive or from
        ``archive``, as in :meth:`subscribe`.
        """
        # Imported here, because most programs never read a table.
        from penstock_core.columns.events.lifted_columns import flat_table, until_time

        schema = ChannelSchema.empty().grown(await self.columns())
        last_id: int | None
        if isinstance(end, datetime | str):
            end_time = time_of(end, "end")
            last_id = await self._last_id_at(end_time)
        else:
            end_time, last_id = None, end
        batches = []
        # browse() would refuse the empty range of a time before the first event.
        if (
            end_time is None
            or last_id is None
            or last_id >= (start if isinstance(start, int) else 0)
        ):
            subscription = self.browse(start=start, end=last_id, selector=selector, archive=archive)
            batches = [batch.to_arrow() async for batch in subscription.batches()]
        # The end id follows from the stored events only; the archive may contain later events.
        if end_time is not None:
            batches = [until_time(batch, end_time) for batch in batches]
        # The archive, and events published since the schema was read, may have further properties.
        for batch in batches:
            schema = schema.grown(batch.schema)
        return flat_table(batches, schema, columns)

    async def _last_id_at(self, moment: datetime) -> int:
        """Return the id before the first stored event that was published after ``moment``."""
        return await self.first_id_at(moment + timedelta(microseconds=1)) - 1
