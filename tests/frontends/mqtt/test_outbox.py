"""What one client of MQTT gets, and when, without a socket and on a clock that moves when told."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.core.vocabulary.errors import PenstockError
from penstock.frontends.mqtt.messages import TopicMessage
from penstock.frontends.mqtt.outbox import WAITING_MAX, Filter, Outbox
from penstock.frontends.mqtt.reasons import reason_of
from penstock.runtime.access.open_connections import MessageCounts
from penstock.testing.stores import StillClock
from penstock.wire.mqtt.framing import PacketReader
from penstock.wire.mqtt.packets import MQTT_3, MQTT_5, TopicSubscription
from penstock.wire.mqtt.properties import NO_PROPERTIES
from penstock.wire.mqtt.reading import packet_of
from penstock.wire.mqtt.reasons import Reason

VERSIONS = pytest.mark.parametrize("version", [MQTT_3, MQTT_5])


class Line:
    """What an outbox needs to know of its connection."""

    client_id = "client"
    is_open = True
    takes_more = True

    def __init__(self, version: int) -> None:
        self.version = version
        self.counts = MessageCounts()
        self.clock = StillClock()
        self.realm = self.connection = self
        self.sent = PacketReader()
        self.ended: list[Reason] = []
        self.outbox = Outbox(cast("Any", self), self.counts)
        self._filters = [Filter(cast("Any", self), TopicSubscription("a", 1), None)]

    def qos(self, qos: int) -> None:
        """Subscribe with another QoS."""
        self._filters = [Filter(cast("Any", self), TopicSubscription("a", qos), None)]

    def write(self, data: bytes) -> None:
        self.sent.receive(data)

    def settle(self, source: object) -> None:
        """Nothing of it comes from a durable."""

    def end(self, reason: PenstockError) -> None:
        self.ended.append(reason_of(reason))

    def give(self, payload: bytes, qos: int = 1, ends_us: int = 0) -> None:
        self.outbox.give(TopicMessage("a", payload, qos, "", ends_us, NO_PROPERTIES), self._filters)

    def got(self) -> list[Any]:
        return [packet_of(first, body, self.version) for first, body in self.sent.packets()]


@VERSIONS
def test_what_expires_while_it_waits_is_not_sent(version: int) -> None:
    line = Line(version)
    line.outbox.in_flight_max = 1
    now_us = line.clock.now_us()
    line.give(b"first")
    line.give(b"expires", ends_us=now_us + 2_000_000)
    line.give(b"stays", ends_us=now_us + 9_000_000)
    (first,) = line.got()
    line.clock.advance(2_000_000)
    line.outbox.acknowledged(first.packet_id)

    (second,) = line.got()
    assert second.payload == b"stays"
    assert second.properties.message_expiry_s == (7 if version == MQTT_5 else None)


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_once_does_not_expire(version: int, qos: int) -> None:
    line = Line(version)
    line.qos(qos)
    line.give(b"late", qos, line.clock.now_us() + 1_000_000)
    (first,) = line.got()
    line.outbox.left()
    line.clock.advance(5_000_000)
    line.outbox.resume()
    (again,) = line.got()

    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert (again.payload, again.qos, again.packet_id) == (b"late", qos, first.packet_id)


@VERSIONS
def test_a_client_that_does_not_acknowledge_loses_its_connection(version: int) -> None:
    line = Line(version)
    line.outbox.in_flight_max = 1
    for _ in range(WAITING_MAX + 1):
        line.give(b"x")
    assert line.ended == []
    line.give(b"one too many")

    assert line.ended == [Reason.QUOTA_EXCEEDED]


@VERSIONS
def test_while_a_client_does_not_read_qos_1_waits_and_qos_0_is_left_out(version: int) -> None:
    line = Line(version)
    line.takes_more = False
    line.give(b"0", qos=0)
    line.give(b"1")
    assert line.got() == []
    line.takes_more = True
    line.outbox.send_waiting()

    assert [each.payload for each in line.got()] == [b"1"]
    assert (line.counts.dropped, line.counts.sent) == (1, [0, 1, 0])
