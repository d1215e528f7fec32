"""Events that a session has received, which can be replied to, for blocking callers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from penstock.client.connection.threads import LoopThread
from penstock.client.reading import received
from penstock.client.reading.received import channel_of, replier_of
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.durations import Milliseconds
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.rows import Rows


class BlockingEvent(Event):
    """An event that a subscription or reader has received."""

    __slots__ = ("_loop",)

    _loop: LoopThread

    def __init__(self, inner: received.ReceivedEvent, loop: LoopThread) -> None:
        self._rows, self._row = inner._rows, inner._row
        self._data, self._properties = inner._data, inner._properties
        self.redelivery_count = inner.redelivery_count
        self._loop = loop

    def reply(
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

            event.reply(b"42")
            event.ack()

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
        return self._loop.call(replier_of(self).reply(self, data, attributes))

    @property
    def channel(self) -> str:
        """Name of the channel that the event was received from; empty for events of a queue."""
        return channel_of(self)


class BlockingBatch(EventBatch):
    """A batch of received events, with Arrow columns. Iterate over it for single events."""

    __slots__ = ("_inner", "_loop")

    _inner: received.ReceivedBatch

    def __init__(
        self,
        inner: received.ReceivedBatch,
        loop: LoopThread,
        event_type: type[BlockingEvent] = BlockingEvent,
    ) -> None:
        super().__init__(
            inner.to_arrow(), inner.redeliveries or None, event_type, publishers=inner.publishers
        )
        self._inner = inner
        self._loop = loop

    @property
    def channel(self) -> str:
        """Name of the channel that the events were received from; empty for events of a queue."""
        return self._inner.channel

    def _reader(self, *, in_order: bool) -> Rows:
        return self._inner._reader(in_order=in_order)

    def __iter__(self) -> Iterator[BlockingEvent]:
        loop = self._loop
        for event in cast("Iterator[BlockingEvent]", super().__iter__()):
            event._loop = loop
            yield event

    def __getitem__(self, row: int) -> BlockingEvent:
        event = cast("BlockingEvent", super().__getitem__(row))
        event._loop = self._loop
        return event


ReceivedEvent = BlockingEvent
ReceivedBatch = BlockingBatch
"""Public names, the same as in ``penstock.aio``."""
