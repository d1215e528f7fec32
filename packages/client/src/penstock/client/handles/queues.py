"""Queues as a client sees them: each event goes to one reader (SEM Q)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from penstock.client.connection.arguments import Duration, timeout_s
from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.attributes import QueueAttributes
from penstock.client.handles.definitions import create_store, delete_store
from penstock.client.handles.destination import Destination
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

if TYPE_CHECKING:
    from penstock.client.copies.sinks import FolderLike
    from penstock_core.columns.files.exports import Manifest


class Queues:
    """The queues of a realm: ``session.queues``."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    async def create(
        self, name: str, *, if_missing: bool = False, **attributes: Unpack[QueueAttributes]
    ) -> Queue:
        """Create a queue (SEM C3). It has the attributes of a channel, and ``max_deliveries``: an
        event that is rolled back so many times goes to the dead event store (SEM T10); and
        ``backoff``: how long such an event waits before it comes again (SEM D18).

        With ``if_missing`` a queue that exists is given out if it has the attributes given here.

        Raises ``InvalidName``, ``NameAlreadyBound``, ``InvalidArgument``.
        """
        opened = await create_store(
            self._connection, name, "queue", attributes=attributes, if_missing=if_missing
        )
        return Queue(self._connection, opened)

    async def get(self, name: str) -> Queue:
        """Raises ``NameDoesNotExist``."""
        async with near_names(name, self.list):
            opened = await self._connection.ask(OpenChannel(name, "queue"), ChannelOpened)
        return Queue(self._connection, opened)

    async def list(self) -> list[str]:
        """The names of all queues, sorted."""
        names: list[str] = await self._connection.request(ListChannels("queue"))
        return names

    async def delete(self, name: str) -> None:
        """Remove a queue with its events. Raises ``NameDoesNotExist``."""
        async with near_names(name, self.list):
            await delete_store(self._connection, name, "queue")

    async def export(self, name: str, folder: FolderLike) -> Manifest:
        """Write a queue, as it is now, to a new or empty folder: events, redelivery counts,
        producers and counters (SEM C7).

        The queue may be in use meanwhile. Raises ``NameDoesNotExist``, ``InvalidArgument``,
        ``Damaged``, ``ConnectionLost``; what was written is then removed.
        """
        from penstock.client.copies.transfer import export

        return await export(self._connection, name, "queue", folder=folder)

    async def import_from(self, folder: FolderLike, name: str = "") -> Queue:
        """Make a queue out of an exported one, under its own name or another, every id kept
        (SEM C7). All of it or nothing.

        Raises ``DamagedExport``, ``NameAlreadyBound``, ``InvalidArgument``, ``MemoryLimit``,
        ``NameDoesNotExist`` for a dead event store this realm does not have.
        """
        from penstock.client.copies.transfer import import_from

        opened = await import_from(self._connection, folder, "queue", name=name)
        return Queue(self._connection, opened)


class Queue(Destination):
    """A queue. This is a handle; the state is in the realm."""

    _kind: ClassVar[Kind] = "queue"

    def __init__(self, connection: RealmConnection, opened: ChannelOpened) -> None:
        super().__init__(connection, opened)
        self._relays = opened.definition.type == "transient"
        """Whether its events go to connected readers or nowhere (SEM C1e)."""
        self._idle: list[Reader] = []
        """Readers of :meth:`pop` that are not in use."""

    # --- events going in -----------------------------------------------------------------

    @spelled_out
    async def push(
        self,
        data: bytes = b"",
        **attributes: Unpack[QueuedAttributes],
    ) -> int:
        """Put one event on the queue; returns its id once it is safe.

        With ``deliver_at``, a datetime with a time zone or seconds since 1970, it is put there
        then, and what is returned is its number in ``scheduled``. Raises ``InvalidEvent``,
        ``EventTooLarge``, ``CapacityReached``, ``MemoryLimit``, ``PublishingPaused``.
        """
        if not attributes.keys() <= QUEUED:
            raise unknown_attribute(attributes, QUEUED, "push")
        event = Event(data, **attributes)
        return await self._publisher.publish_one(event)

    async def push_many(self, events: Many) -> range:
        """Put events on the queue in one step: consecutive ids, all or none."""
        return await self._publish_many(events)

    async def push_table(self, table: Any) -> range:
        """Put the rows of an Arrow, pandas or polars table on the queue in one step; columns as
        for :meth:`Channel.publish_table`."""
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
        """Read events, each of which goes to one reader; ``timeout`` ends an iteration when nothing
        comes for so many seconds.

        A plain reader's events are gone once handed out, a transactional one's when it commits;
        that one has at most ``window`` uncommitted events (SEM Q1, Q2). With ``ack_timeout``
        (``"30s"``, or seconds) it has each of them for so long: then the event goes back, counted,
        and a later commit of it is refused (SEM D19).
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
        """Take the next event off the queue; None if none comes for ``timeout`` seconds. Without
        ``timeout`` it waits for ever.

        The seat that it takes stays until :meth:`close` or the end of the session.
        """
        timeout = timeout_s(timeout)
        reader = self._idle.pop() if self._idle else Reader(self._connection, self.number)
        try:
            found = await reader.fetch_batches(1, timeout)
        except BaseException:
            await reader._close_quietly()
            raise
        self._idle.append(reader)
        return found[0][0] if found else None

    async def peek(self, count: int = PEEK_DEFAULT, *, selector: str = "") -> Peeked:
        """The first ``count`` events, and whether there are more; changes nothing (SEM Q4).

        For those after it: ``selector="event_id > 41"``, with the last id seen.
        """
        return await peek(self._connection, self.number, count, selector=selector)

    async def close(self) -> None:
        """Leave the seats :meth:`pop` has taken. Raises ``ConnectionLost`` when the removal of an
        event was on its way as the connection was lost: it may be delivered again."""
        idle, self._idle = self._idle, []
        for reader in idle:
            await reader._close_quietly()
        for reader in idle:
            reader._settlements.raise_first()
