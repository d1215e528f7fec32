"""Channels, as a client sees them."""

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
from penstock.client.reading.start_positions import StartLike, check_range, check_zone, start_of
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

if TYPE_CHECKING:
    from penstock.client.copies.sinks import FolderLike
    from penstock.client.reading.key_state import KeyState
    from penstock_core.columns.files.exports import Manifest


class Channels:
    """The channels of a realm: ``session.channels``."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    async def create(
        self, name: str, *, if_missing: bool = False, **attributes: Unpack[ChannelAttributes]
    ) -> Channel:
        """Make a channel (SEM C3). Attributes: ``type``, ``engine``, ``ttl`` (ms), ``capacity``,
        ``dead_event_store`` (a name), ``keys`` (property to depth), ``retain_consumed``,
        ``event_ttl``, ``cluster_wide``, ``start_event_id``, ``topics`` (of MQTT) and their
        ``payload``, ``storage`` (a dict, SEM S).

        With ``if_missing`` a channel that exists is given out if it has the attributes given here.

        Raises ``InvalidName``, ``NameAlreadyBound``, ``InvalidArgument``.
        """
        opened = await create_store(
            self._connection, name, "channel", attributes=attributes, if_missing=if_missing
        )
        return Channel(self._connection, opened)

    async def get(self, name: str) -> Channel:
        """Raises ``NameDoesNotExist``."""
        async with near_names(name, self.list):
            opened = await self._connection.ask(OpenChannel(name), ChannelOpened)
        return Channel(self._connection, opened)

    async def list(self) -> list[str]:
        """The names of all channels, sorted."""
        names: list[str] = await self._connection.request(ListChannels())
        return names

    async def delete(self, name: str) -> None:
        """Remove a channel with its events and durables. Raises ``NameDoesNotExist``."""
        async with near_names(name, self.list):
            await delete_store(self._connection, name, "channel")

    async def export(self, name: str, folder: FolderLike) -> Manifest:
        """Write a channel, as it is now, to a new or empty folder: events, durables, producers and
        counters (SEM C7).

        The channel may be in use meanwhile. Raises ``NameDoesNotExist``, ``InvalidArgument``,
        ``Damaged``, ``ConnectionLost``; what was written is then removed.
        """
        from penstock.client.copies.transfer import export

        return await export(self._connection, name, "channel", folder=folder)

    async def import_from(self, folder: FolderLike, name: str = "") -> Channel:
        """Make a channel out of an exported one, under its own name or another, every id kept
        (SEM C7). All of it or nothing.

        Raises ``DamagedExport``, ``NameAlreadyBound``, ``InvalidArgument``, ``MemoryLimit``,
        ``NameDoesNotExist`` for a dead event store this realm does not have.
        """
        from penstock.client.copies.transfer import import_from

        opened = await import_from(self._connection, folder, "channel", name=name)
        return Channel(self._connection, opened)


class Channel(Destination):
    """A channel. This is a handle; the state is in the realm."""

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
        """Publish one event; returns its id once it is safe.

        With ``deliver_at``, a datetime with a time zone or seconds since 1970, it is published
        then, and what is returned is its number in ``scheduled``. Raises ``InvalidEvent``,
        ``EventTooLarge``, ``CapacityReached``, ``MemoryLimit``, ``PublishingPaused``.
        """
        if not attributes.keys() <= PUBLISHED:
            raise unknown_attribute(attributes, PUBLISHED, "publish")
        event = Event(data, **attributes)
        return await self._publisher.publish_one(event)

    async def publish_many(self, events: Many) -> range:
        """Publish events in one step: consecutive ids, all or none.

        They may come from any iterable, such as a generator, asynchronous or not. Then some
        thousands of them are held here at a time, and the realm stages them until the last one has
        come (setting ``limits.stage_bytes``). If the iterable raises an error, nothing is
        published.
        """
        return await self._publish_many(events)

    async def publish_table(self, table: Any, *, delta: bool = False) -> range:
        """Publish the rows of an Arrow, pandas or polars table in one step.

        Columns ``data``, ``tag``, ``ttl``, ``priority`` and ``persistent`` are those parts of the
        event; every other column is a property. With ``delta`` the rows change events of a merge
        channel: they have the key's column, and those that change. Raises ``InvalidEvent``, which
        names the column.
        """
        return await self._publish_table(table, delta=delta)

    # --- merge channels ------------------------------------------------------------------

    async def register(
        self, key: Any, properties: Mapping[str, Any] | None = None, /, **named: Any
    ) -> Registered:
        """Publish the full event of a value of the publish key, and get an object that publishes
        updates of it (SEM K2)::

            eur = await rates.register("EUR", bid=1.0, ask=2.0)
            await eur.update(ask=2.5)

        Properties whose names are not Python identifiers go into a dictionary. Raises
        ``IllegalState`` unless the channel's engine is merge.
        """
        name = key_name_of(self.name, self._opened.definition)
        event = registered_of(name, key, {**(properties or {}), **named})
        return Registered(name, key, await self._publish(event), publish=self._publish)

    async def update(
        self, key: Any, properties: Mapping[str, Any] | None = None, /, **changes: Any
    ) -> int:
        """Change some properties of the event of a key, from any session; returns the id of
        the delta once it is safe. Where there is none, they are the event (SEM K4)."""
        name = key_name_of(self.name, self._opened.definition)
        return await self._publish(delta_of(name, key, {**(properties or {}), **changes}))

    async def state(
        self, key: Any, *, as_of: int | None = None, archive: str | None = None
    ) -> KeyState:
        """The state of a key of a merge channel: now, or after event ``as_of`` of this channel.

        A state that is no longer on the channel is looked up in the channel's archive, or in
        ``archive``: a table that an archive pipeline writes, or a channel or queue that a join from
        here feeds (SEM K5). Raises ``InvalidArgument``, which names what is gone, and
        ``NameDoesNotExist`` for the archive.
        """
        from penstock.client.reading.key_state import StateQuestion, state_of

        name = key_name_of(self.name, self._opened.definition)
        asked = StateQuestion(self._opened, name, key, as_of=as_of, archive=archive)
        return await state_of(self._connection, asked)

    # --- publishing in two steps ---------------------------------------------------------

    async def stage(self, table: Any) -> list[str]:
        """Stage the rows of a table on the realm, visible to nobody; gives the names of the stages,
        in order.

        A stage is dropped after an hour without a commit, and by a restart.
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
        """Publish stages of any session, in the given order and in one step (SEM X1).

        Repeating it with the same ``producer`` and ``sequence`` gives the ids of the first time
        (SEM X3), although the stages are gone. ``content`` may identify what is published, such as
        the positions it was read from: with another one a repetition is refused. Raises
        ``NoSuchStage``, ``SequenceTooOld``, ``DifferentContent``.
        """
        name = with_content(producer, content)
        message = CommitStages(self.number, name, sequence, stages=tuple(stages))
        return ids_of_answer(await self._connection.request(message))

    async def drop_stages(self, stages: Sequence[str]) -> None:
        """Drop stages that are not to be committed."""
        await self._connection.request(DropStages(tuple(stages)))

    async def publish_bodies(
        self, bodies: Sequence[pa.RecordBatch], *, producer: str, sequence: int
    ) -> range:
        """Publish batches as :mod:`penstock_core.columns.schema.layout` describes them, in one
        step.

        The same ``producer`` and ``sequence`` again, from any session, is answered with the ids of
        the first time (SEM X3). Raises ``SequenceTooOld``, and as :meth:`publish` does.
        """
        publisher = Publisher(self._connection, self.number, producer, published=sequence - 1)
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
        """Read stored events from ``start`` on, then live ones (SEM E6).

        If ``start`` lies in the channel's archive, events come first from there, under their ids,
        and then without a gap from the channel. ``archive`` names another table; with an empty one
        only the channel is read. Errors of an archive are raised when the subscription opens:
        ``NameDoesNotExist``, ``Unavailable``, ``InvalidArgument``, and ``IllegalState`` for the
        archive of another channel.

        On a merge channel the first event of a key is its state, and later ones may be deltas
        (``event.is_delta``); with ``merged`` they are merged here, and you get full events only
        (SEM K3).

        While the application does not read, at most ``buffer_bytes`` wait here or are on their way;
        a single event that is larger comes alone.
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
        """Read the stored events from ``start`` up to and including ``end``, then end.

        Only events on the channel are read, unless ``archive`` names a table, or is None: the
        channel's own archive. Raises ``InvalidArgument`` for an empty range.
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
        end: int | datetime | None = None,
        columns: Sequence[str] | None = None,
        selector: str = "",
        archive: str | None = None,
    ) -> pa.Table:
        """Read events from ``start`` up to and including ``end``, an id or a time, as one table.

        It has ``event_id``, ``published``, ``tag``, ``data`` and a column for each property that
        was ever published here; ``columns`` chooses among them. Integers and floats of a property
        are one column (SEM E10); ``price::int`` and ``price::float`` name the exact ones. Events
        that have left the channel come from its archive, or from the one that is named, as in
        :meth:`subscribe`.
        """
        from penstock_core.columns.events.lifted_columns import flat_table, until_time  # few do

        schema = ChannelSchema.empty().grown(await self.columns())
        until = end if isinstance(end, datetime) else None
        last = end if not isinstance(end, datetime) else await self._last_id_at(end)
        batches = []
        if until is None or last is None or last >= (start if isinstance(start, int) else 0):
            reading = self.browse(start=start, end=last, selector=selector, archive=archive)
            batches = [batch.to_arrow() async for batch in reading.batches()]
        if until is not None:  # the archive has more, which the realm does not know
            batches = [until_time(batch, until) for batch in batches]
        for batch in batches:
            schema = schema.grown(batch.schema)
        return flat_table(batches, schema, columns)

    async def _last_id_at(self, moment: datetime) -> int:
        """The id before the first stored event that was published after ``moment``."""
        check_zone(moment, "end")
        return await self.first_id_at(moment + timedelta(microseconds=1)) - 1
