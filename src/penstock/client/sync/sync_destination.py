"""What channels and queues have in common, for blocking callers."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

import pyarrow as pa

from penstock.api.channels import ChannelInfo, Location, Maintained, Missing
from penstock.client.connection.threads import LoopThread
from penstock.client.handles import destination as aio_destination
from penstock.client.handles.attributes import EditedAttributes
from penstock.client.handles.schedule import Schedule as AioSchedule
from penstock.client.handles.schedule import Scheduled
from penstock.client.publishing.producer import ProducerErrorListener
from penstock.client.sync.sync_producer import Producer
from penstock.client.sync.sync_subscription import Subscription
from penstock.client.sync.sync_transaction import Transaction
from penstock.columns.protobuf import Messages


class Destination:
    """A channel or queue; state lives in the realm, this is a handle."""

    def __init__(self, inner: aio_destination.Destination, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self.name = inner.name
        self.number = inner.number
        self.epoch = inner.epoch
        """Whose ids they are: another text after delete and create, in another realm, and when
        they begin again with the realm (SEM C1d)."""
        self.scheduled = Schedule(inner.scheduled, loop)

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
            self._inner.producer(
                batch_events=batch_events,
                batch_bytes=batch_bytes,
                linger_ms=linger_ms,
                on_error=on_error,
            ),
            self._loop,
            batch_events=batch_events,
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
        )

    def transaction(self) -> Transaction:
        """Publish several times in one step: all of it at the end of the block, or nothing if an
        exception leaves it (SEM X1)::

            with orders.transaction() as tx:
                tx.publish(b"...")
        """
        return Transaction(self._inner.transaction(), self._loop)

    def browse(self, *, start: int = 0, end: int | None = None, selector: str = "") -> Subscription:
        """Stored events from ``start`` up to and including ``end``, then the end. It takes
        nothing, off a queue neither."""
        return Subscription(self._inner.browse(start=start, end=end, selector=selector), self._loop)

    def locate(self, first_id: int, end_id: int, *, publishers: bool = False) -> Location:
        """Where the stored events of an id range can be read: sealed files, or over the wire;
        with ``publishers`` also who published those in files."""
        return self._loop.call(self._inner.locate(first_id, end_id, publishers=publishers))

    def published_at(self, event_id: int) -> datetime | None:
        """When the first stored event with this id or a later one was published; None: there is
        none."""
        return self._loop.call(self._inner.published_at(event_id))

    def missing(self, first_id: int, end_id: int) -> tuple[Missing, ...]:
        """Which ids of a range were given and have no event any more, by the cause they left by
        (SEM T8). Raises ``InvalidArgument`` for a range of no ids."""
        return self._loop.call(self._inner.missing(first_id, end_id))

    def first_id_at(self, moment: datetime) -> int:
        """The id of the first stored event published at ``moment`` or later; the next id to be
        given when there is none."""
        return self._loop.call(self._inner.first_id_at(moment))

    def purge(self, *, start: int | None = None, end: int | None = None, selector: str = "") -> int:
        """Remove events from ``start`` up to and including ``end``; gives how many (SEM T9)."""
        return self._loop.call(self._inner.purge(start=start, end=end, selector=selector))

    def columns(self) -> pa.Schema:
        """The columns that all events fit, as they are stored (SEM E2)."""
        return self._loop.call(self._inner.columns())

    def info(self) -> ChannelInfo:
        """Counts, attributes, storage, as they are now."""
        return self._loop.call(self._inner.info())

    def edit(self, **attributes: Unpack[EditedAttributes]) -> None:
        """Change attributes in place; they apply at once (SEM C3)."""
        self._loop.call(self._inner.edit(**attributes))

    def messages(self) -> Messages:
        """The message types of the descriptors as they are now, to write and read events that
        carry Protocol Buffers (SEM P). Raises ``Unavailable`` without the extra ``protobuf``."""
        return self._loop.call(self._inner.messages())

    def maintain(self) -> Maintained:
        """Rewrite a single-file store without what is dead in it; ids are kept (SEM S)."""
        return self._loop.call(self._inner.maintain())


class Schedule:
    """``channel.scheduled`` or ``queue.scheduled``."""

    def __init__(self, inner: AioSchedule, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def list(self) -> list[Scheduled]:
        """What waits, in the order it was published."""
        return self._loop.call(self._inner.list())

    def cancel(self, number: int) -> bool:
        """Take an event off the schedule; False: it is not there (any more)."""
        return self._loop.call(self._inner.cancel(number))
