"""Events that a session has received, for blocking callers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from penstock.client.connection.threads import LoopThread
from penstock.client.reading import received
from penstock.client.reading.received import channel_of, replier_of
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.rows import Rows


class BlockingEvent(Event):
    """An event that a subscription or reader has received, for blocking callers."""

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
        return self._loop.call(replier_of(self).reply(self, data, attributes))

    @property
    def channel(self) -> str:
        """The channel it was received from; empty where a queue's reader has received it."""
        return channel_of(self)


class BlockingBatch(EventBatch):
    """Received events in columns, for blocking callers."""

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
        """The channel they were received from; empty where a queue's reader has received them."""
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
"""The names that both clients have for them."""
