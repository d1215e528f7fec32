"""What one client gets: its filters, the messages in flight to it, and those that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.frontends.mqtt.messages import TopicMessage
from penstock.wire.mqtt.framing import PACKET_BYTES_MAX
from penstock.wire.mqtt.packets import MQTT_5, PublishPacket, TopicSubscription
from penstock.wire.mqtt.properties import PacketProperties
from penstock.wire.mqtt.reasons import MqttViolation, Reason
from penstock.wire.mqtt.writing import packet_bytes

if TYPE_CHECKING:
    from penstock.frontends.mqtt.connection import MqttConnection

WAITING_MAX: Final = 10_000
"""Most messages of QoS 1 that wait for a client to acknowledge earlier ones."""
_KEPT: Final = (
    *("payload_format", "content_type", "response_topic", "correlation_data", "user_properties"),
)
"""Properties that reach receivers as they were sent."""


class Filter:
    """What a client has subscribed to."""

    __slots__ = ("connection", "no_local", "number", "qos", "retain_as_published", "text")

    def __init__(
        self, connection: MqttConnection, wanted: TopicSubscription, number: int | None
    ) -> None:
        self.connection = connection
        self.text = wanted.filter
        self.qos = min(wanted.qos, 1)
        self.no_local = wanted.no_local
        self.retain_as_published = wanted.retain_as_published
        self.number = number

    def takes(self, message: TopicMessage) -> bool:
        """Whether it takes a message of a topic that it matches."""
        return not (self.no_local and self.connection.client_id == message.client_id)


class Outbox:
    """The messages on their way to one client."""

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self.packet_bytes_max = PACKET_BYTES_MAX
        """Largest packet that the client takes, in bytes."""
        self.in_flight_max = 65_535
        """Most messages of QoS 1 that the client takes before it acknowledges the first."""
        self._in_flight: set[int] = set()
        self._waiting: deque[tuple[TopicMessage, Sequence[Filter], bool]] = deque()
        self._last_id = 0
        self._room = asyncio.Event()
        self._room.set()

    def give(
        self, message: TopicMessage, filters: Sequence[Filter], *, from_store: bool = False
    ) -> None:
        """Send a message that these filters take; ``from_store``: it was retained before they
        were there. One of QoS 0 is left out while the client does not read."""
        as_published = any(each.retain_as_published for each in filters)
        retain = from_store or (message.is_retained and as_published)
        if min(message.qos, max(each.qos for each in filters)) == 0:
            if self._connection.takes_more:
                self._put(message, filters, 0, retain=retain)
            return
        self._waiting.append((message, filters, retain))
        if len(self._waiting) > WAITING_MAX:
            text = f"{WAITING_MAX} messages wait to be acknowledged"
            self._connection.end(MqttViolation(Reason.QUOTA_EXCEEDED, text))
            return
        self.send_waiting()

    def acknowledged(self, packet_id: int) -> None:
        """The client has a message."""
        self._in_flight.discard(packet_id)
        self.send_waiting()

    def clear(self) -> None:
        """Forget what waits: the client is gone."""
        self._waiting.clear()
        self._room.set()

    async def room(self) -> None:
        """Wait until nothing waits, and the client reads, or is gone."""
        while self._connection.is_open and (self._waiting or not self._connection.takes_more):
            self._room.clear()
            await self._room.wait()

    def send_waiting(self) -> None:
        """Send what waits, as far as the client takes it."""
        while self._waiting and len(self._in_flight) < self.in_flight_max:
            if not self._connection.takes_more:
                return
            message, filters, retain = self._waiting.popleft()
            packet_id = self._free_id()
            if self._put(message, filters, packet_id, retain=retain):
                self._in_flight.add(packet_id)
        if not self._waiting:
            self._room.set()

    def _free_id(self) -> int:
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._in_flight:
                return self._last_id

    def _put(
        self, message: TopicMessage, filters: Sequence[Filter], packet_id: int, *, retain: bool
    ) -> bool:
        """Send a message; False: it has expired, or is larger than its receiver takes."""
        connection = self._connection
        own: PacketProperties | None = message.properties
        now_us = connection.realm.clock.now_us()
        if connection.version == MQTT_5:
            own = _properties(message, filters, now_us)
        elif message.ends_us and message.ends_us <= now_us:
            own = None
        if own is None:
            return False
        packet = PublishPacket(
            message.topic, message.payload, 1 if packet_id else 0, packet_id, retain, properties=own
        )
        written = packet_bytes(packet, connection.version)
        if len(written) > self.packet_bytes_max:
            return False
        connection.write(written)
        return True


def _properties(
    message: TopicMessage, filters: Sequence[Filter], now_us: int
) -> PacketProperties | None:
    """The properties that a receiver is sent; None: the message has expired."""
    numbers = tuple(each.number for each in filters if each.number is not None)
    if not numbers and not message.ends_us:
        return message.properties
    left_us = message.ends_us - now_us
    if message.ends_us and left_us <= 0:
        return None
    expiry_s = -(-left_us // 1_000_000) if message.ends_us else None
    found = {name: getattr(message.properties, name) for name in _KEPT}
    return PacketProperties(**found, message_expiry_s=expiry_s, subscription_ids=numbers)
