"""Handles of a client for the queues of a realm (SEM Q)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from penstock.client.connection.arguments import Duration, timeout_s
from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.attributes import QueueAttributes
from penstock.client.handles.definitions import create_store, delete_store
from penstock.client.handles.destination import Destination
from penstock.client.handles.named import StoreLike, name_of_store
from penstock.client.handles.near_names import near_names
from penstock.client.publishing.event_attributes import (
    QUEUED,
    QueuedAttributes,
    spelled_out,
    unknown_attribute,
)
from penstock.client.publishing.streamed import Many
from penstock.client.reading.peeking import PEEK_DEFAULT, Peeked, peek
from penstock.client.reading.reader import WINDOW_DEFAULT, Reader
from penstock.client.reading.received import ReceivedEvent
from penstock_core.api.channels import (
    ChannelOpened,
    ListChannels,
    OpenChannel,
)
from penstock_core.api.requests import Kind
from penstock_core.columns.events.event import Event
from penstock_core.display import safe_repr

if TYPE_CHECKING:
    from penstock.client.copies.sinks import FolderLike
    from penstock_core.columns.files.exports import Manifest


class Queues:
    """The queues of a realm: ``session.queues``."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    @safe_repr
    def __repr__(self) -> str:
        return f"<Queues {self._connection.standing}>"

    async def create(
        self, name: str, *, if_missing: bool = False, **attributes: Unpack[QueueAttributes]
    ) -> Queue:
        """Create a queue and return it (SEM C3)::

            work = await session.queues.create("work", max_deliveries=5, dead_event_store="dead")

        It has the attributes of a channel (:meth:`Channels.create`) except ``archive``, ``topics``
        and ``payload``, and two more:

        - ``max_deliveries``: an event that is rolled back this many times goes to the dead event
          store (SEM T10); 0, the default, means no limit
        - ``backoff``: delay before a rolled-back event is delivered again, such as
          ``{"first": "1s", "factor": 2, "most": "5m"}`` (SEM D18)

        With ``if_missing`` an existing queue is returned if it has the attributes given here.

        Raises ``InvalidName``, ``InvalidArgument``, and ``NameAlreadyBound`` if the name is in use.
        """
        opened = await create_store(
            self._connection, name, "queue", attributes=attributes, if_missing=if_missing
        )
        return Queue(self._connection, opened)

    async def get(self, name: StoreLike) -> Queue:
        """Return the queue of this name. Raises ``NameDoesNotExist``."""
        name = name_of_store(name)
        async with near_names(name, self.list):
            opened = await self._connection.ask(OpenChannel(name, "queue"), ChannelOpened)
        return Queue(self._connection, opened)

    async def list(self) -> list[str]:
        """Return the names of all queues, sorted."""
        names: list[str] = await self._connection.request(ListChannels("queue"))
        return names

    async def delete(self, name: StoreLike) -> None:
        """Delete a queue with its events. Raises ``NameDoesNotExist``."""
        name = name_of_store(name)
        async with near_names(name, self.list):
            await delete_store(self._connection, name, "queue")

    async def export(self, name: StoreLike, folder: FolderLike) -> Manifest:
        """Write the present state of a queue to a new or empty folder: events, redelivery counts,
        producers and counters (SEM C7). :meth:`import_from` reads it.

        The queue may be in use during the export. Raises ``NameDoesNotExist``,
        ``InvalidArgument``, ``Damaged``, ``ConnectionLost``; the files written so far are then
        removed.
        """
        from penstock.client.copies.transfer import export

        return await export(self._connection, name_of_store(name), "queue", folder=folder)

    async def import_from(self, folder: FolderLike, name: str = "") -> Queue:
        """Create a queue from an export and return it. Its events have the exported ids (SEM C7).
        The import is complete, or it changes nothing.

        ``name`` is the name of the new queue; empty means the name of the exported one. Raises
        ``DamagedExport``, ``NameAlreadyBound``, ``InvalidArgument``, ``MemoryLimit``, and
        ``NameDoesNotExist`` if this realm lacks the queue's dead event store.
        """
        from penstock.client.copies.transfer import import_from

        opened = await import_from(self._connection, folder, "queue", name=name)
        return Queue(self._connection, opened)


class Queue(Destination):
    """A handle of a queue. The realm stores the queue itself and its events."""

    _kind: ClassVar[Kind] = "queue"

    def __init__(self, connection: RealmConnection, opened: ChannelOpened) -> None:
        super().__init__(connection, opened)
        self._relays = opened.definition.type == "transient"
        """Whether events are delivered to connected readers only, and never stored (SEM C1e)."""
        self._idle: list[Reader] = []
        """Readers that :meth:`pop` has opened and that no call uses at present."""

    # --- events going in -----------------------------------------------------------------

    @spelled_out
    async def push(
        self,
        data: bytes = b"",
        **attributes: Unpack[QueuedAttributes],
    ) -> int:
        """Put one event on the queue. Return its id once the realm has stored it safely::

            await work.push(b"...", properties={"customer": 7})

        With ``deliver_at`` (a time, seconds since 1970, or a duration from now such as ``"10m"``),
        the realm puts the event on the queue at that time, and the call returns its number in
        ``scheduled``.

        Raises ``InvalidEvent``, ``EventTooLarge``, ``CapacityReached``, ``MemoryLimit``,
        ``PublishingPaused``.
        """
        if not attributes.keys() <= QUEUED:
            raise unknown_attribute(attributes, QUEUED, "push")
        event = Event(data, **attributes)
        return await self._publisher.publish_one(event)

    async def push_many(self, events: Many) -> range:
        """Put several events on the queue in one step: all of them or none. Return their ids, which
        are consecutive. ``events`` may be any iterable, as for :meth:`Channel.publish_many`."""
        return await self._publish_many(events)

    async def push_table(self, table: Any) -> range:
        """Put the rows of an Arrow, pandas or polars table on the queue as events, in one step.
        Return their ids. Columns are those of :meth:`Channel.publish_table`."""
        return await self._publish_table(table)

    # --- events coming out ---------------------------------------------------------------

    def reader(
        self,
        *,
        transactional: bool = False,
        window: int = WINDOW_DEFAULT,
        selector: str = "",
        timeout: Duration | None = None,
        ack_timeout: Duration | None = None,
    ) -> Reader:
        """Return a reader of the queue. Each event goes to one reader::

            async with work.reader(transactional=True, window=100) as reader:
                async for event in reader:
                    handle(event)
                    await reader.commit(event)

        With a plain reader, an event leaves the queue when the reader receives it; with a
        transactional reader, when the reader commits it (SEM Q1, Q2).

        - ``window``: the largest number of uncommitted events of a transactional reader
        - ``selector``: only matching events are delivered
        - ``timeout``: ends an iteration if no event arrives for this time: seconds, a text such as
          ``"500ms"``, or a ``timedelta``
        - ``ack_timeout``: the time in which a transactional reader has to commit an event, in
          seconds or as a text such as ``"30s"``; after this time the event returns to the queue
          with one more redelivery, and a later commit is refused (SEM D19)
        """
        return Reader(
            self._connection,
            self.number,
            transactional=transactional,
            window=window,
            selector=selector,
            timeout=timeout,
            relayed=self._relays,
            ack_timeout=ack_timeout,
            name=self.name,
        )

    async def pop(self, timeout: Duration | None = None) -> ReceivedEvent | None:
        """Remove the next event from the queue and return it; return None if no event arrives
        within ``timeout`` seconds. Without ``timeout`` the call waits indefinitely.

        The call attaches a reader to the queue. Later calls use the same reader, until
        :meth:`close` or the end of the session.
        """
        timeout = timeout_s(timeout)
        reader = (
            self._idle.pop()
            if self._idle
            else Reader(self._connection, self.number, name=self.name)
        )
        try:
            batches = await reader.fetch_batches(1, timeout)
        except BaseException:
            await reader._close_quietly()
            raise
        self._idle.append(reader)
        return batches[0][0] if batches else None

    async def peek(self, count: int = PEEK_DEFAULT, *, selector: str = "") -> Peeked:
        """Return the first ``count`` events, and whether the queue has more, without changing
        anything (SEM Q4).

        To see the following events, call again with ``selector="event_id > 41"``, where 41 is the
        last returned id.
        """
        return await peek(self._connection, self.number, count, selector=selector)

    async def close(self) -> None:
        """Close the readers that :meth:`pop` has opened. Raises ``ConnectionLost`` if the
        connection was lost before the realm confirmed the removal of an event: that event may be
        delivered again."""
        readers, self._idle = self._idle, []
        # All readers are closed before the first error is raised.
        for reader in readers:
            await reader._close_quietly()
        for reader in readers:
            reader._settlements.raise_first()
