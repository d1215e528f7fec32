"""Events that a session has received: they can be replied to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pyarrow as pa

from penstock.client.connection.replier import Replier
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.rows import Publishers, Rows
from penstock_core.vocabulary.errors import IllegalState


class ReceivedRows(Rows):
    """Rows of a batch, and who replies to their events."""

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
        ttl: int = 0,
        persistent: bool | None = None,
        priority: int | None = None,
    ) -> int:
        """Reply to whoever has sent this request (SEM R2); returns the reply's id, once it is where
        the request wants it.

        It goes to the channel or queue in the header ``reply_to``, with the ``correlation_id`` of
        the request, or else its ``message_id``. Replying does not acknowledge the request. Raises
        ``IllegalState`` for an event that asks for no reply, and ``NameDoesNotExist`` when nobody
        waits for it any more.
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
        """The channel it was received from; empty where a queue's reader has received it."""
        return channel_of(self)

    @property
    def _replier(self) -> Replier:
        return replier_of(self)


def replier_of(event: Event) -> Replier:
    """Who replies to ``event``. Raises ``IllegalState`` for one that no session has received."""
    rows = event._rows
    if not isinstance(rows, ReceivedRows) or rows.replier is None:
        raise IllegalState("this event was not received from a realm, so nobody waits for a reply")
    return rows.replier


def channel_of(event: Event) -> str:
    """The channel that ``event`` was received from; empty for one that was not."""
    return event._rows.channel if isinstance(event._rows, ReceivedRows) else ""


class ReceivedBatch(EventBatch):
    """Received events in columns."""

    __slots__ = ("_channel_id", "_replier", "channel")
    channel: str
    """The channel they were received from; empty where a queue's reader has received them."""

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
        """``count`` of its events (None: all) from row ``first`` on."""
        return self._with(self._batch.slice(first, count))

    def _current(self) -> ReceivedBatch | None:
        """The events that the realm has not taken back: all of them, unless a durable has sent
        them."""
        return self

    def _with(self, rows: pa.RecordBatch) -> ReceivedBatch:
        """``rows`` of this batch as one of their own."""
        return ReceivedBatch(
            rows,
            self._redeliveries,
            self._replier,
            publishers=self._publishers,
            channel=self.channel,
            channel_id=self._channel_id,
        )
