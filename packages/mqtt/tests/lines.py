"""Connections in memory, to which an outbox writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.filters import Filter
from penstock_mqtt.in_flight import MessageSource
from penstock_mqtt.messages import TopicMessage
from penstock_mqtt.mqtt_realm import MqttLimits
from penstock_mqtt.outbox import Outbox
from penstock_mqtt.reasons import reason_of
from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    PACKET_BYTES_MAX,
    TopicSubscription,
)
from penstock_mqtt.wire.properties import NO_PROPERTIES
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.reasons import Reason
from penstock_server.runtime.access.open_connections import MessageCounts
from penstock_testing.stores import StillClock

DEFAULTS = MqttLimits()
VERSIONS = pytest.mark.parametrize("version", [MQTT_3, MQTT_5])


class Line:
    """The interface of a connection that an outbox needs."""

    client_id = "client"
    is_open = True
    is_writable = True

    def __init__(self, version: int, limits: MqttLimits = DEFAULTS) -> None:
        self.version = version
        self.counts = MessageCounts()
        self.clock = StillClock()
        self.connection = self
        self.packet_bytes_max = PACKET_BYTES_MAX
        self.sent = PacketReader()
        self.ended: list[Reason] = []
        self.settled: list[tuple[str, str, int]] = []
        self.settle_calls = 0
        self.counted_bytes = 0
        self.outbox = Outbox(cast("Any", self), self.counts, self.clock, limits=limits)
        self.filters = [Filter(cast("Any", self), self.outbox, TopicSubscription("a", 1), None)]

    def qos(self, qos: int) -> None:
        """Subscribe with another QoS."""
        self.filters = [Filter(cast("Any", self), self.outbox, TopicSubscription("a", qos), None)]

    def write(self, data: bytes) -> None:
        self.sent.receive(data)

    def count_bytes(self, change: int) -> None:
        self.counted_bytes += change

    def settle(
        self, text: str, channel: str, event_ids: list[int], then: Any = None, **_: bool
    ) -> None:
        self.settled += [(text, channel, event_id) for event_id in event_ids]
        self.settle_calls += 1

    def end(self, reason: PenstockError) -> None:
        self.ended.append(reason_of(reason))

    def give(self, payload: bytes, qos: int = 1, ends_us: int = 0) -> None:
        self.outbox.send_messages(
            [
                TopicMessage(
                    "a", payload, qos, client_id="", ends_us=ends_us, properties=NO_PROPERTIES
                )
            ],
            self.filters,
        )

    def give_of_durable(self, *messages: TopicMessage, first_id: int = 7) -> None:
        """Deliver messages as a durable does, with ids from ``first_id`` on."""
        sources = [
            MessageSource("a", event_id, channel="c")
            for event_id, _ in enumerate(messages, start=first_id)
        ]
        self.outbox.send_messages(messages, self.filters, sources=sources)

    def got(self) -> list[Any]:
        return [packet_of(first, body, self.version) for first, body in self.sent.packets()]


class LastingLine(Line):
    """A connection of a persistent session, whose entries count as stored only when the test says
    so."""

    def __init__(self) -> None:
        super().__init__(MQTT_5)
        self.qos(2)
        self.place = "client"
        self.entries: list[tuple[str, bytes]] = []
        self._waiting: list[Callable[[], None]] = []
        self.answers: list[Any] = []

    def store(self, entries: Any, then: Callable[[], None] = lambda: None, *_: Any) -> None:
        self.entries += entries
        self._waiting.append(then)

    def settle(
        self, text: str, channel: str, event_ids: list[int], then: Any = None, **_: bool
    ) -> None:
        super().settle(text, channel, event_ids)
        if then is not None:
            self._waiting.append(then)

    def stored(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()

    def answer(self, packet: Any) -> None:
        self.answers.append(packet)

    def will_resend(self, _: object) -> bool:
        return True


def plain(payload: bytes, **fields: Any) -> TopicMessage:
    made = TopicMessage("a", payload, 1, client_id="", ends_us=0, properties=NO_PROPERTIES)
    return replace(made, **fields)


KIB = b"x" * 1_024
