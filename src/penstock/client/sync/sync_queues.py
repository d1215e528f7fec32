"""Queues and their readers, for blocking callers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from penstock.client.connection.threads import LoopThread
from penstock.client.handles import queues as aio_queues
from penstock.client.handles.attributes import QueueAttributes
from penstock.client.publishing.streamed import publish_streamed_from
from penstock.client.reading import reader as aio_reader
from penstock.client.reading.peeking import PEEK_DEFAULT, Peeked
from penstock.client.reading.reader import WINDOW_DEFAULT
from penstock.client.sync.sync_destination import Destination
from penstock.columns.events.batch import EventBatch
from penstock.columns.events.event import Event, Moment

if TYPE_CHECKING:
    from penstock.client.copies.transfer import FolderLike
    from penstock.columns.files.exports import Manifest


class Queues:
    """The queues of a realm: ``session.queues``."""

    def __init__(self, inner: aio_queues.Queues, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def create(self, name: str, **attributes: Unpack[QueueAttributes]) -> Queue:
        """Make a queue (SEM C3); see :meth:`penstock.aio.Queues.create`."""
        return Queue(self._loop.call(self._inner.create(name, **attributes)), self._loop)

    def get(self, name: str) -> Queue:
        """Raises ``NameDoesNotExist``."""
        return Queue(self._loop.call(self._inner.get(name)), self._loop)

    def list(self) -> list[str]:
        """The names of all queues, sorted."""
        return self._loop.call(self._inner.list())

    def delete(self, name: str) -> None:
        """Remove a queue with its events. Raises ``NameDoesNotExist``."""
        self._loop.call(self._inner.delete(name))

    def export(self, name: str, folder: FolderLike) -> Manifest:
        """Write a queue as it stands now into a new or empty folder (SEM C7); see
        :meth:`penstock.aio.Queues.export`."""
        return self._loop.call(self._inner.export(name, folder))

    def import_from(self, folder: FolderLike, name: str = "") -> Queue:
        """Make a queue out of an exported one, every id kept (SEM C7); see
        :meth:`penstock.aio.Queues.import_from`."""
        return Queue(self._loop.call(self._inner.import_from(folder, name)), self._loop)


class Queue(Destination):
    """One queue; state lives in the realm, this is a handle."""

    def __init__(self, inner: aio_queues.Queue, loop: LoopThread) -> None:
        super().__init__(inner, loop)
        self._inner: aio_queues.Queue = inner

    def push(
        self,
        data: bytes = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: int = 0,
        persistent: bool | None = None,
        priority: int | None = None,
        deliver_at: Moment | None = None,
    ) -> int:
        """Put one event on the queue; returns its id once it is safe, or with ``deliver_at`` its
        number in ``scheduled``; see :meth:`penstock.aio.Queue.push`."""
        return self._loop.call(
            self._inner.push(
                data,
                tag=tag,
                properties=properties,
                headers=headers,
                ttl=ttl,
                persistent=persistent,
                priority=priority,
                deliver_at=deliver_at,
            )
        )

    def push_many(self, events: Iterable[Event]) -> range:
        """Put events on the queue in one step: consecutive ids, all or none."""
        if not isinstance(events, Sequence):
            return publish_streamed_from(self._loop, self._inner._publisher, events)
        return self._loop.call(self._inner.push_many(events))

    def push_table(self, table: Any) -> range:
        """Put the rows of an Arrow, pandas or polars table on the queue in one step."""
        return self._loop.call(self._inner.push_table(table))

    def reader(
        self,
        *,
        transactional: bool = False,
        window: int = WINDOW_DEFAULT,
        selector: str = "",
        timeout: float | None = None,
    ) -> Reader:
        """Read events, each of which goes to one reader; see :meth:`penstock.aio.Queue.reader`."""
        inner = self._inner.reader(
            transactional=transactional, window=window, selector=selector, timeout=timeout
        )
        return Reader(inner, self._loop)

    def pop(self, timeout: float | None = None) -> Event | None:
        """Take the next event off the queue; None when none comes for ``timeout`` seconds.

        Without ``timeout`` it waits for ever. The seat taken for it stays until :meth:`close` or
        the end of the session.
        """
        return self._loop.call(self._inner.pop(timeout))

    def peek(self, count: int = PEEK_DEFAULT, *, selector: str = "") -> Peeked:
        """The first ``count`` events, and whether there are more; changes nothing (SEM Q4).

        For those after it: ``selector="event_id > 41"``, with the last id seen.
        """
        return self._loop.call(self._inner.peek(count, selector=selector))

    def close(self) -> None:
        """Leave the seats :meth:`pop` has taken."""
        self._loop.call(self._inner.close())


class Reader:
    """Iterate it, or :meth:`fetch`; see :class:`penstock.aio.Reader`."""

    def __init__(self, inner: aio_reader.Reader, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def open(self) -> Reader:
        """Take a seat at the queue. Raises ``InvalidSelector``. Iterating opens it, too."""
        self._loop.call(self._inner.open())
        return self

    def __iter__(self) -> Iterator[Event]:
        opened_here = not self._inner.is_open
        inner, loop = self._inner, self._loop
        try:
            while (part := loop.call(inner.next_part())) is not None:
                for event_id, event in part:
                    loop.soon(_handing(inner, event_id, part.attachment))
                    yield event
        finally:
            if opened_here:
                self.close()

    def batches(self) -> Iterator[EventBatch]:
        """Columns as they come; iterating to the end closes what iterating opened."""
        opened_here = not self._inner.is_open
        try:
            while (batch := self.next_batch()) is not None:
                yield batch
        finally:
            if opened_here:
                self.close()

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """What is here, in columns; None when nothing comes for ``timeout`` seconds."""
        return self._loop.call(self._inner.next_batch(timeout))

    def fetch(self, count: int, timeout: float = 0.0) -> list[Event]:
        """Up to ``count`` events, as many as come within ``timeout`` seconds; a transactional
        reader gets no more than its window has room for."""
        return self._loop.call(self._inner.fetch(count, timeout))

    def fetch_batches(self, count: int, timeout: float | None = 0.0) -> list[EventBatch]:
        """As :meth:`fetch`, in columns."""
        return self._loop.call(self._inner.fetch_batches(count, timeout))

    def commit(self, event: Event | int | None = None, *, individual: bool = False) -> None:
        """Take events off the queue for good; see :meth:`penstock.aio.Reader.commit`."""
        self._loop.call(self._inner.commit(event, individual=individual))

    def rollback(self, event: Event | int | None = None, *, individual: bool = False) -> None:
        """Give events back: they keep their ids and places, and come again, counted (SEM Q3)."""
        self._loop.call(self._inner.rollback(event, individual=individual))

    def flush(self) -> None:
        """Plain readers: wait until what was handed out is off the queue on disk."""
        self._loop.call(self._inner.flush())

    def close(self) -> None:
        """Give back what is not committed, and what was not handed out; leave the seat."""
        self._loop.call(self._inner.close())

    def __enter__(self) -> Reader:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _handing(inner: aio_reader.Reader, event_id: int, attachment: int) -> Callable[[], None]:
    return lambda: inner.handed(event_id, attachment)
