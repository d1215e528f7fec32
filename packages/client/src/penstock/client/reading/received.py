"""Events that a session has received, which can be replied to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pyarrow as pa

from penstock.client.connection.replier import Replier
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.durations import Milliseconds
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.rows import Publishers, Rows
from penstock_core.vocabulary.errors import IllegalState


class ReceivedRows(Rows):
    """The rows of a received batch, with its channel and the replier of its session."""

    __slots__ = ("channel", "replier")

    def __init__(
        self,
        batch: pa.RecordBatch,
        publishers: Publishers,
        replier: Replier | None,
        *,
        in_order: bool,
        channel: str = "",
    ) -> None:
        super().__init__(batch, publishers, in_order=in_order)
        self.channel = channel
        self.replier = replier


class ReceivedEvent(Event):
    """An event that a subscription or reader has received."""

    __slots__ = ()

    async def reply(
        self,
        data: bytes = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Milliseconds = 0,
        persistent: bool | None = None,
        priority: int | None = None,
    ) -> int:
        """Reply to this request (SEM R2). Return the id of the reply once it is stored::

            await event.reply(b"42")
            await event.ack()

        The reply is published on the channel or queue in the request's header ``reply_to``, with
        its ``correlation_id``, or else its ``message_id``, as ``correlation_id``. Replying does not
        acknowledge the request.

        Raises ``IllegalState`` if the event has no header ``reply_to``, ``NameDoesNotExist`` if the
        requesting client no longer waits, and the errors of publishing.
        """
        attributes = {
            "tag": tag,
            "properties": properties,
            "headers": headers,
            "ttl": ttl,
            "persistent": persistent,
            "priority": priority,
        }
        return await self._replier.reply(self, data, attributes)

    @property
    def channel(self) -> str:
        """Name of the channel that the event was received from; empty for events of a queue."""
        return channel_of(self)

    @property
    def _replier(self) -> Replier:
        return replier_of(self)


def replier_of(event: Event) -> Replier:
    """Return the replier of the session that has received ``event``. Raises ``IllegalState`` if no
    session has."""
    rows = event._rows
    if not isinstance(rows, ReceivedRows) or rows.replier is None:
        raise IllegalState(
            "this event was not received from a realm, so it cannot be replied to; reply to an "
            "event of a subscription or reader"
        )
    return rows.replier


def channel_of(event: Event) -> str:
    """Return the name of the channel that ``event`` was received from; empty if it was not received
    from a channel."""
    return event._rows.channel if isinstance(event._rows, ReceivedRows) else ""


class ReceivedBatch(EventBatch):
    """A batch of received events, with Arrow columns. Iterate over it for single events."""

    __slots__ = ("_channel_id", "_replier", "channel")
    channel: str
    """Name of the channel that the events were received from; empty for events of a queue."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        redeliveries: Mapping[int, int] | None,
        replier: Replier | None,
        publishers: Publishers = (),
        event_type: type[Event] = ReceivedEvent,
        channel: str = "",
        channel_id: int = 0,
    ) -> None:
        super().__init__(batch, redeliveries, event_type, publishers=publishers)
        self._replier = replier
        self.channel = channel
        self._channel_id = channel_id

    def _reader(self, *, in_order: bool) -> Rows:
        return ReceivedRows(
            self._batch, self._publishers, self._replier, in_order=in_order, channel=self.channel
        )

    def __iter__(self) -> Iterator[ReceivedEvent]:
        return cast("Iterator[ReceivedEvent]", super().__iter__())

    def __getitem__(self, row: int) -> ReceivedEvent:
        return cast("ReceivedEvent", super().__getitem__(row))

    def _part(self, first: int, count: int | None = None) -> ReceivedBatch:
        """Return ``count`` events from row ``first`` on; None means all."""
        return self._with(self._batch.slice(first, count))

    def _current(self) -> ReceivedBatch | None:
        """Return the events that the realm has not recalled: all, as only durables recall
        events."""
        return self

    def _with(self, rows: pa.RecordBatch) -> ReceivedBatch:
        """Return a batch of some rows of this one."""
        return ReceivedBatch(
            rows,
            self._redeliveries,
            self._replier,
            publishers=self._publishers,
            channel=self.channel,
            channel_id=self._channel_id,
        )
