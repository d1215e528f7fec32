"""Channels, as a client sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.client.durables import Durables
from penstock.client.producer import Producer, ProducerErrorListener
from penstock.client.publishing import Publisher, ids_of_answer, parts_of, stage
from penstock.client.session import Session
from penstock.client.starts import StartLike, start_of
from penstock.client.subscription import Subscription
from penstock.columns.batch import flatten
from penstock.columns.body import body_of
from penstock.columns.event import Event
from penstock.columns.ipc import batch_bytes, schema_from
from penstock.columns.schema import ChannelSchema
from penstock.columns.tables import bodies_of_table
from penstock.core.errors import InvalidArgument
from penstock.core.messages import Definition, FromId
from penstock.wire.native import messages as wire
from penstock.wire.native.answers import ChannelInfo, ChannelOpened, Location

BODY_EVENTS_MAX = 65_536


class Channels:
    """The channels of a realm: ``session.channels``."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(self, name: str, **attributes: Any) -> Channel:
        """Make a channel (SEM C3). Attributes: ``type``, ``ttl`` (ms), ``capacity``, ``engine``,
        ``retain_consumed``, ``event_ttl``, ``start_event_id``, ``storage`` (a dict).

        Raises ``InvalidName``, ``NameAlreadyBound``, ``InvalidArgument``.
        """
        opened = await self._session.ask(
            wire.CreateChannel(0, name, definition_of(attributes)), ChannelOpened, resend=False
        )
        return Channel(self._session, opened)

    async def get(self, name: str) -> Channel:
        """Raises ``NameDoesNotExist``."""
        opened = await self._session.ask(wire.OpenChannel(0, name), ChannelOpened)
        return Channel(self._session, opened)

    async def list(self) -> list[str]:
        """The names of all channels, sorted."""
        names: list[str] = await self._session.request(wire.ListChannels(0))
        return names

    async def delete(self, name: str) -> None:
        """Remove a channel with its events and durables. Raises ``NameDoesNotExist``."""
        await self._session.request(wire.DeleteChannel(0, name), resend=False)


class Channel:
    """One channel; state lives in the realm, this is a handle."""

    def __init__(self, session: Session, opened: ChannelOpened) -> None:
        self.name = opened.name
        self.number = opened.channel
        self._definition = opened.definition
        self._session = session
        self._publisher = Publisher(session, opened.channel)
        self.durables = Durables(session, opened.channel, opened.name)

    # --- publishing ----------------------------------------------------------------------

    async def publish(
        self,
        data: bytes = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: int = 0,
        persistent: bool | None = None,
        priority: int | None = None,
        transient: bool = False,
    ) -> int:
        """Publish one event; returns its id once it is safe.

        Raises ``InvalidEvent``, ``EventTooLarge``, ``CapacityReached``, ``MemoryLimit``.
        """
        event = Event(
            data,
            tag=tag,
            properties=properties,
            headers=headers,
            ttl=ttl,
            persistent=persistent,
            priority=priority,
            transient=transient,
        )
        return (await self._publisher.publish([body_of([event])]))[0]

    async def publish_many(self, events: Sequence[Event]) -> range:
        """Publish events in one step: consecutive ids, all or none."""
        bodies = [
            body_of(events[first : first + BODY_EVENTS_MAX])
            for first in range(0, max(len(events), 1), BODY_EVENTS_MAX)
        ]
        return await self._publisher.publish(bodies)

    async def publish_table(self, table: Any) -> range:
        """Publish the rows of an Arrow, pandas or polars table in one step.

        Columns ``data``, ``tag``, ``ttl``, ``priority``, ``persistent`` mean what they say; every
        other column becomes a property. Raises ``InvalidEvent`` naming a column it cannot take.
        """
        bodies = bodies_of_table(table)
        if not bodies:
            return range(0)
        return await self._publisher.publish(bodies)

    def producer(
        self,
        *,
        batch_events: int = 1_024,
        batch_bytes: int = 1 << 20,
        linger_ms: float = 1.0,
        on_error: ProducerErrorListener | None = None,
    ) -> Producer:
        """A pipelined producer: sends without waiting for each event."""
        return Producer(
            self._session,
            self._publisher,
            batch_events=batch_events,
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            on_error=on_error,
        )

    # --- publishing in two steps ---------------------------------------------------------

    async def stage(self, table: Any) -> list[str]:
        """Put the rows of a table aside on the realm, seen by nobody; gives the names of the
        stages, in order. What is not committed within an hour, or by a restart, is dropped."""
        parts = [
            part
            for body in bodies_of_table(table)
            for part in parts_of(body, self._session.event_bytes_max)
        ]
        buffers = [memoryview(batch_bytes(part)) for part in parts]
        return await stage(self._session, self.number, parts, buffers)

    async def commit_stages(self, stages: Sequence[str], *, producer: str, sequence: int) -> range:
        """Publish what was staged, by any session, in the order given and in one step (SEM X1).

        The same ``producer`` and ``sequence`` again is answered with the ids of the first time
        (SEM X3), though the stages are gone. Raises ``NoSuchStage``, ``SequenceTooOld``.
        """
        message = wire.CommitStages(0, self.number, producer, sequence, tuple(stages))
        return ids_of_answer(await self._session.request(message))

    async def drop_stages(self, stages: Sequence[str]) -> None:
        """Forget what was staged; what was committed stays."""
        await self._session.request(wire.DropStages(0, tuple(stages)))

    # --- reading -------------------------------------------------------------------------

    def subscribe(
        self,
        *,
        start: StartLike = "latest",
        selector: str = "",
        timeout: float | None = None,
    ) -> Subscription:
        """Read stored events from ``start`` on, then live ones (SEM E6)."""
        return Subscription(
            self._session, self.number, start_of(start), selector=selector, timeout=timeout
        )

    def browse(self, *, start: int = 0, end: int | None = None, selector: str = "") -> Subscription:
        """Stored events from ``start`` up to and including ``end``, then the end."""
        return Subscription(
            self._session,
            self.number,
            FromId(start),
            selector=selector,
            browse=True,
            last_id=end,
        )

    async def read(
        self,
        *,
        start: int = 0,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        selector: str = "",
    ) -> pa.Table:
        """Stored events as one table: ``event_id``, ``published``, ``tag``, ``data`` and a column
        for each property ever published here; ``columns`` chooses among them."""
        schema = ChannelSchema.empty().grown(await self.columns())
        batches = [
            batch.to_arrow()
            async for batch in self.browse(start=start, end=end, selector=selector).batches()
        ]
        for batch in batches:
            schema = schema.grown(batch.schema)
        flat = [flatten(schema.conform(batch)) for batch in batches]
        table = pa.Table.from_batches(flat, flat[0].schema if flat else _empty(schema))
        if columns is None:
            return table
        unknown = [name for name in columns if name not in table.column_names]
        if unknown:
            raise InvalidArgument(
                f"no column {', '.join(unknown)}; there are {', '.join(table.column_names)}"
            )
        return table.select(list(columns))

    async def purge(
        self, *, start: int | None = None, end: int | None = None, selector: str = ""
    ) -> int:
        """Remove events from ``start`` up to and including ``end``; gives how many (SEM T9)."""
        return await self._session.ask(
            wire.PurgeChannel(0, self.number, start, end, selector), int, resend=False
        )

    async def columns(self) -> pa.Schema:
        """The columns that all events of the channel fit, as they are stored (SEM E2)."""
        return schema_from(await self._session.ask(wire.DescribeColumns(0, self.number), bytes))

    async def locate(self, first_id: int, end_id: int) -> Location:
        """Where the stored events of an id range can be read: sealed files, or over the wire."""
        return await self._session.ask(wire.Locate(0, self.number, first_id, end_id), Location)

    # --- administration ------------------------------------------------------------------

    async def info(self) -> ChannelInfo:
        return await self._session.ask(wire.DescribeChannel(0, self.name), ChannelInfo)

    async def edit(self, **attributes: Any) -> None:
        """Change attributes in place; they apply at once (SEM C3). Raises ``InvalidArgument``."""
        current = (await self.info()).definition
        wanted = definition_of(attributes, current)
        opened = await self._session.ask(
            wire.EditChannel(0, self.name, wanted), ChannelOpened, resend=False
        )
        self._definition = opened.definition

    @property
    def session(self) -> Session:
        return self._session

    @property
    def publisher(self) -> Publisher:
        """The producer identity of this handle."""
        return self._publisher


def definition_of(attributes: Mapping[str, Any], current: Definition | None = None) -> Definition:
    """Attributes as users give them. Raises ``InvalidArgument`` naming what is wrong."""
    tree = msgspec.to_builtins(current) if current is not None else {}
    storage = {**tree.get("storage", {}), **(attributes.get("storage") or {})}
    tree = {**tree, **attributes, "storage": storage}
    unknown = sorted(set(tree) - {field.name for field in msgspec.structs.fields(Definition)})
    if unknown:
        known = ", ".join(field.name for field in msgspec.structs.fields(Definition))
        raise InvalidArgument(f"no channel attribute {', '.join(unknown)}; there are {known}")
    try:
        return msgspec.convert(tree, Definition)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"channel attributes: {error}") from error


def _empty(schema: ChannelSchema) -> pa.Schema:
    return flatten(pa.RecordBatch.from_pylist([], schema=schema.arrow)).schema
