"""Messages of FastStream, from events of a realm.

The data of an event is the body of its message, and the properties of the event are the headers of
the message. The event's own headers hold the correlation id and the reply address.
"""

from __future__ import annotations

from re import Pattern
from typing import Any, Final

from faststream.message import StreamMessage, decode_message

from penstock.aio import ReceivedEvent
from penstock.client.connection.arguments import Duration
from penstock_faststream.arrivals import REASON, Arrival

CONTENT_TYPE: Final = "content-type"
"""Property with the media type of the data."""


class PenstockMessage(StreamMessage[Any]):
    """A received event or batch; ``raw_message`` is the object of the client."""

    def __init__(self, arrival: Arrival, body: Any, **parts: Any) -> None:
        super().__init__(arrival.received, body, **parts)
        self._arrival = arrival

    @property
    def channel(self) -> str:
        """Name of the channel or queue that the event was received from."""
        return self._arrival.channel

    async def ack(self) -> None:
        """Acknowledge the event or batch. Raises ``IllegalState`` or ``ConnectionLost`` if it has
        returned to its durable or queue; it is then delivered again."""
        if self.committed is None:
            await self._arrival.acknowledge()
        await super().ack()

    async def nack(self, delay: Duration | None = None) -> None:
        """Roll the event or batch back, so that it is delivered again: with a ``delay`` (seconds,
        or a text such as ``"5s"``) no sooner than that. Otherwise the backoff of its durable or
        queue decides; without one the delay is 100 ms, doubled with each redelivery, at most a
        minute."""
        if self.committed is None:
            await self._arrival.roll_back(delay)
        await super().nack()

    async def reject(self, reason: str = REASON) -> None:
        """Send the event or batch to the dead event store; without one, acknowledge it."""
        if self.committed is None:
            await self._arrival.reject(reason)
        await super().reject()


class EventParser:
    """Turns single events into messages, and decodes them."""

    def __init__(self, path: Pattern[str] | None = None) -> None:
        """``path`` finds parameters in the name of the channel."""
        self._path = path

    async def parse_message(self, arrival: Arrival) -> PenstockMessage:
        """Return an event as a message."""
        (event,) = arrival.events
        return self._message_of(arrival, event, body=event.data)

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        """Return the decoded body of a message."""
        return decode_message(message)

    def _message_of(
        self, arrival: Arrival, event: ReceivedEvent, body: Any, **parts: Any
    ) -> PenstockMessage:
        headers = event.headers
        match = self._path.match(arrival.channel) if self._path is not None else None
        return PenstockMessage(
            arrival,
            body,
            headers=event.properties,
            path=match.groupdict() if match is not None else {},
            content_type=event.properties.get(CONTENT_TYPE),
            correlation_id=headers.get("correlation_id") or headers.get("message_id"),
            message_id=str(event.event_id),
            **({"reply_to": headers.get("reply_to") or ""} | parts),
        )


class BatchParser(EventParser):
    """Turns batches of events into messages, and decodes them."""

    async def parse_batch(self, arrival: Arrival) -> PenstockMessage:
        """Return a batch as one message, with the headers of its first event."""
        events = arrival.events
        return self._message_of(
            arrival,
            events[0],
            body=[event.data for event in events],
            batch_headers=[event.properties for event in events],
            reply_to="",  # a batch has no single client to reply to
        )

    # FastStream recognizes a decoder of batches by this name.
    async def decode_batch(self, message: PenstockMessage) -> list[Any]:
        """Return the decoded bodies of a batch."""
        channel = message.channel
        return [
            decode_message(await self.parse_message(Arrival(event, channel)))
            for event in message._arrival.events
        ]
