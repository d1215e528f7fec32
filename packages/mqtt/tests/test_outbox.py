"""Deliveries to one MQTT client and their order, without a socket and with a clock that the test
moves."""

from __future__ import annotations

from typing import Any

import pytest

from packages.mqtt.tests.lines import VERSIONS, LastingLine, Line, plain
from penstock_mqtt.in_flight import MessageSource
from penstock_mqtt.messages import TopicMessage
from penstock_mqtt.mqtt_realm import WAITING_MAX
from penstock_mqtt.wire.packets import (
    MQTT_5,
    PubrelPacket,
)
from penstock_mqtt.wire.properties import NO_PROPERTIES, PacketProperties
from penstock_mqtt.wire.reasons import Reason


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
    line.outbox.acknowledged([first.packet_id])

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
    line.outbox.connection_lost()
    line.clock.advance(5_000_000)
    line.outbox.resume()
    (again,) = line.got()

    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert (again.payload, again.qos, again.packet_id) == (b"late", qos, first.packet_id)


@pytest.mark.spec("M7")
@pytest.mark.parametrize("was_sent", [False, True])
def test_a_client_lets_go_of_what_it_may_have_heard_of_only(was_sent: bool) -> None:
    line = LastingLine()
    message = TopicMessage("a", b"", 2, client_id="", ends_us=0, properties=NO_PROPERTIES)
    line.outbox.send_messages([message], line.filters, sources=[MessageSource("a", 7)])
    if was_sent:
        line.stored()
    assert len(line.got()) == was_sent
    line.outbox.connection_lost()
    line.outbox.end_redelivery("a", [7])
    line.stored()

    assert line.answers == ([PubrelPacket(1)] if was_sent else [])
    assert (line.entries[-1] == ("sent/1/client", b"")) != was_sent
    assert list(line.outbox.in_flight) == [1] * was_sent


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
    line.is_writable = False
    line.give(b"0", qos=0)
    line.give(b"1")
    assert line.got() == []
    line.is_writable = True
    line.outbox.send_waiting()

    assert [message.payload for message in line.got()] == [b"1"]
    assert (line.counts.dropped, line.counts.sent) == (1, [0, 1, 0])


@VERSIONS
def test_what_is_given_together_is_sent_and_settled_as_what_is_given_alone(version: int) -> None:
    together, alone = Line(version), Line(version)
    messages = [plain(b"%d" % number) for number in range(3)]
    together.give_of_durable(*messages)
    for event_id, message in enumerate(messages, start=7):
        alone.give_of_durable(message, first_id=event_id)

    sent = together.got()
    assert sent == alone.got()
    assert [message.payload for message in sent] == [b"0", b"1", b"2"]
    packet_ids = [message.packet_id for message in sent]
    together.outbox.acknowledged([*packet_ids, *packet_ids, 99])
    for packet_id in packet_ids:
        alone.outbox.acknowledged([packet_id])
    assert together.settled == alone.settled == [("a", "c", 7), ("a", "c", 8), ("a", "c", 9)]
    assert (together.settle_calls, alone.settle_calls) == (1, 3)
    assert not together.outbox.in_flight
    assert together.counts.sent == alone.counts.sent == [0, 3, 0]
    together.give_of_durable(*messages)
    assert len(together.got()) == 3


def test_messages_of_a_durable_wait_for_a_client_that_has_lowered_its_filter_to_qos_0() -> None:
    """They are sent in order behind those of QoS 1, and are not left out while it does not read."""
    line = Line(MQTT_5)
    line.outbox.in_flight_max = 1
    line.give_of_durable(plain(b"1"), plain(b"2"))
    line.qos(0)
    line.is_writable = False
    line.give_of_durable(plain(b"3"), first_id=9)
    line.give_of_durable(plain(b"4", qos=0), first_id=10)
    first, *others = line.got()
    assert (first.payload, others) == (b"1", [])
    line.outbox.acknowledged([first.packet_id])
    line.is_writable = True
    line.outbox.send_waiting()
    (second,) = line.got()
    line.outbox.acknowledged([second.packet_id])
    (third,) = line.got()

    assert [(message.payload, message.qos) for message in (second, third)] == [(b"2", 1), (b"3", 0)]
    assert sorted(event_id for _, _, event_id in line.settled) == [7, 8, 9, 10]
    assert line.counts.dropped == 1, "a message that was published with QoS 0"
    assert line.counted_bytes == 0


def test_events_that_a_durable_recalls_leave_retained_messages_with_their_ids_in_the_queue() -> (
    None
):
    line = Line(MQTT_5)
    line.outbox.in_flight_max = 1
    line.give(b"first")
    for from_retained in (True, False):
        source = MessageSource("a", 7, from_retained=from_retained)
        line.outbox.send_messages([plain(b"%d" % from_retained)], line.filters, sources=[source])
    line.outbox.recall("a", frozenset([7]))
    (first,) = line.got()
    line.outbox.acknowledged([first.packet_id])

    assert [message.payload for message in line.got()] == [b"1"]


def test_acknowledgements_together_make_room_for_what_waits() -> None:
    line = Line(MQTT_5)
    line.outbox.in_flight_max = 2
    for number in range(5):
        line.give(b"%d" % number)
    line.outbox.acknowledged([message.packet_id for message in line.got()])

    assert [message.payload for message in line.got()] == [b"2", b"3"]
    assert line.settled == []


@pytest.mark.parametrize(
    ("message", "is_sent"),
    [
        (plain(b"", qos=0), True),
        (plain(b"", is_retained=True), True),
        (plain(b"", ends_us=1), False),
        (plain(b"", properties=PacketProperties(content_type="t")), True),
        (plain(b"x" * 100), False),
    ],
)
def test_messages_given_together_are_sent_in_their_order_whatever_they_are(
    message: Any, is_sent: bool
) -> None:
    line = Line(MQTT_5)
    line.packet_bytes_max = 50
    line.give_of_durable(plain(b"first"), message, plain(b"last"))

    assert [message.payload for message in line.got()] == [b"first", *[b""] * is_sent, b"last"]
    assert line.settled == ([] if is_sent and message.qos else [("a", "c", 8)])
    assert len(line.outbox.in_flight) == 2 + (is_sent and message.qos)


def test_messages_given_together_take_what_room_there_is_behind_what_waits() -> None:
    line = Line(MQTT_5)
    line.outbox.in_flight_max = 2
    line.give_of_durable(*[plain(b"%d" % number) for number in range(3)])
    first, second = line.got()
    line.give_of_durable(plain(b"0"))  # it is on its way already
    line.give(b"waits")
    assert line.got() == []
    line.outbox.in_flight_max = 9
    line.outbox.acknowledged([second.packet_id])

    assert (first.payload, second.payload) == (b"0", b"1")
    assert [message.payload for message in line.got()] == [b"2", b"waits"]
    line.is_writable = False
    line.give_of_durable(plain(b"later"), first_id=99)
    assert line.got() == []
