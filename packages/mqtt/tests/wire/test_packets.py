"""Packets: what is written is read again, alone and in any pieces, and what is wrong is told."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.mqtt.tests.wire.drawn import drawn
from packages.mqtt.tests.wire.packet_pieces import read
from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    AuthPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    PubackPacket,
    PublishPacket,
    SubackPacket,
)
from penstock_mqtt.wire.plain_messages import plain_messages, plain_pubacks
from penstock_mqtt.wire.properties import PROPERTIES, PacketProperties
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_mqtt.wire.writing import (
    packet_bytes,
    packet_bytes_within,
    publish_parts,
)
from tests.thorough import examples

VERSIONS = pytest.mark.parametrize("version", [MQTT_3, MQTT_5])


@VERSIONS
@given(data=st.data())
@settings(max_examples=examples(200))
@pytest.mark.slow
def test_what_is_written_is_read_again(version: int, data: st.DataObject) -> None:
    given_packets = data.draw(st.lists(drawn(version), min_size=1, max_size=4))
    written = b"".join(packet_bytes(given_packet, version) for given_packet in given_packets)

    assert read(written, version, data.draw(st.lists(st.integers(0, 400)))) == given_packets


def test_there_are_27_properties_and_each_has_a_field() -> None:
    assert len(PROPERTIES) == len({property_.number for property_ in PROPERTIES}) == 27
    assert {property_.name for property_ in PROPERTIES} == set(PacketProperties.__struct_fields__)


_CONNECT_5 = "10 0d 0004 4d515454 05 02 003c 00 0000"
_WRONG: list[tuple[str, int, str, Reason]] = [
    # MQTT-1.5.3-1, 1.5.4-1, 1.5.4-2: text
    ("text with a surrogate", 5, "30 07 0003 eda080 00 41", Reason.MALFORMED_PACKET),
    ("text that is not UTF-8", 5, "30 04 0001 ff 00", Reason.MALFORMED_PACKET),
    ("text with a null", 5, "30 05 0002 6100 00", Reason.MALFORMED_PACKET),
    ("text beyond the packet", 4, "30 04 0009 6161", Reason.MALFORMED_PACKET),
    # 1.5.5-1: variable byte integers
    ("an endless length", 5, "30 ffffffff 01", Reason.MALFORMED_PACKET),
    ("a length too long", 5, "c0 8000", Reason.MALFORMED_PACKET),
    ("properties longer than their packet", 5, "30 06 0001 61 05 01 00", Reason.MALFORMED_PACKET),
    ("a property length too long", 5, "30 05 0001 61 8000", Reason.MALFORMED_PACKET),
    # 2.1.3-1: flags; 2.1.2: types
    ("packet type 0", 5, "00 00", Reason.MALFORMED_PACKET),
    ("an AUTH in 3.1.1", 4, "f0 00", Reason.MALFORMED_PACKET),
    ("flags of a PINGREQ", 5, "c1 00", Reason.MALFORMED_PACKET),
    ("no flags of a SUBSCRIBE", 5, "80 07 0001 00 0001 61 00", Reason.MALFORMED_PACKET),
    ("no flags of a PUBREL", 4, "60 02 0001", Reason.MALFORMED_PACKET),
    # 2.2.1-3, 2.2.1-4: packet ids
    ("packet id 0 of a PUBLISH", 5, "32 06 0001 61 0000 00", Reason.PROTOCOL_ERROR),
    ("packet id 0 of a SUBSCRIBE", 4, "82 06 0000 0001 61 00", Reason.PROTOCOL_ERROR),
    # 2.2.2: properties
    ("an unknown property", 5, "30 06 0001 61 02 7f 00", Reason.MALFORMED_PACKET),
    ("a property of another packet", 5, "30 07 0001 61 03 21 0001", Reason.MALFORMED_PACKET),
    ("a property twice", 5, "30 08 0001 61 04 01 00 01 00", Reason.PROTOCOL_ERROR),
    ("payload format 2", 5, "30 06 0001 61 02 01 02", Reason.PROTOCOL_ERROR),
    ("topic alias 0", 5, "30 07 0001 61 03 23 0000", Reason.TOPIC_ALIAS_INVALID),
    ("subscription id 0", 5, "82 09 0001 02 0b 00 0001 61 00", Reason.PROTOCOL_ERROR),
    ("two subscription ids", 5, "82 0b 0001 04 0b01 0b02 0001 61 00", Reason.PROTOCOL_ERROR),
    ("a response topic with a wildcard", 5, "30 08 0001 61 04 08 0001 2b", Reason.PROTOCOL_ERROR),
    # 3.1: CONNECT
    ("another protocol", 5, "10 0d 0004 4d515458 05 02 003c 00 0000", Reason.UNSUPPORTED_VERSION),
    ("MQTT 3.1", 4, "10 0e 0006 4d5149736470 03 02 003c 0000", Reason.UNSUPPORTED_VERSION),
    ("version 6", 5, "10 0d 0004 4d515454 06 02 003c 00 0000", Reason.UNSUPPORTED_VERSION),
    ("the reserved flag", 5, "10 0d 0004 4d515454 05 03 003c 00 0000", Reason.MALFORMED_PACKET),
    ("a will of QoS 3", 5, "10 0d 0004 4d515454 05 1e 003c 00 0000", Reason.MALFORMED_PACKET),
    ("QoS of no will", 5, "10 0d 0004 4d515454 05 0a 003c 00 0000", Reason.MALFORMED_PACKET),
    ("retain of no will", 5, "10 0d 0004 4d515454 05 22 003c 00 0000", Reason.MALFORMED_PACKET),
    ("a password alone", 4, "10 0e 0004 4d515454 04 42 003c 0000 0000", Reason.MALFORMED_PACKET),
    ("bytes too many", 5, "10 0e 0004 4d515454 05 02 003c 00 0000 00", Reason.MALFORMED_PACKET),
    (
        "receive maximum 0",
        5,
        "10 10 0004 4d515454 05 02 003c 03 21 0000 0000",
        Reason.PROTOCOL_ERROR,
    ),
    (
        "packet size 0",
        5,
        "10 12 0004 4d515454 05 02 003c 05 27 00000000 0000",
        Reason.PROTOCOL_ERROR,
    ),
    (
        "authentication data alone",
        5,
        "10 11 0004 4d515454 05 02 003c 04 16 0001 61 0000",
        Reason.PROTOCOL_ERROR,
    ),
    # 3.2: CONNACK
    ("reserved flags of a CONNACK", 5, "20 03 02 00 00", Reason.MALFORMED_PACKET),
    ("a session of nobody", 5, "20 03 01 87 00", Reason.PROTOCOL_ERROR),
    ("return code 6", 4, "20 02 00 06", Reason.PROTOCOL_ERROR),
    # 3.3: PUBLISH
    ("QoS 3", 5, "36 06 0001 61 0001 00", Reason.MALFORMED_PACKET),
    ("a duplicate of QoS 0", 5, "38 04 0001 61 00", Reason.PROTOCOL_ERROR),
    ("no topic", 5, "30 03 0000 00", Reason.PROTOCOL_ERROR),
    ("no topic in 3.1.1", 4, "30 02 0000", Reason.PROTOCOL_ERROR),
    ("a wildcard +", 5, "30 05 0002 612b 00", Reason.PROTOCOL_ERROR),
    ("a wildcard #", 4, "30 03 0001 23", Reason.PROTOCOL_ERROR),
    # 3.4 to 3.7, 3.14: reason codes
    ("a reason of another packet", 5, "40 03 0001 92", Reason.PROTOCOL_ERROR),
    ("a reason in 3.1.1", 4, "40 03 0001 00", Reason.MALFORMED_PACKET),
    ("no packet id", 5, "40 00", Reason.MALFORMED_PACKET),
    ("a reason of no DISCONNECT", 5, "e0 01 10", Reason.PROTOCOL_ERROR),
    ("a body of a DISCONNECT of 3.1.1", 4, "e0 01 00", Reason.MALFORMED_PACKET),
    ("an AUTH without a method", 5, "f0 01 18", Reason.PROTOCOL_ERROR),
    ("a body of a PINGREQ", 5, "c0 01 00", Reason.MALFORMED_PACKET),
    # 3.8 to 3.11: subscriptions
    ("no filters", 5, "82 03 0001 00", Reason.PROTOCOL_ERROR),
    ("no filters to end", 4, "a2 02 0001", Reason.PROTOCOL_ERROR),
    ("no options", 5, "82 06 0001 00 0001 61", Reason.MALFORMED_PACKET),
    ("reserved options", 5, "82 07 0001 00 0001 61 40", Reason.MALFORMED_PACKET),
    ("reserved options of 3.1.1", 4, "82 06 0001 0001 61 04", Reason.MALFORMED_PACKET),
    ("a filter with QoS 3", 5, "82 07 0001 00 0001 61 03", Reason.PROTOCOL_ERROR),
    ("a filter with QoS 3 in 3.1.1", 4, "82 06 0001 0001 61 03", Reason.MALFORMED_PACKET),
    ("retain handling 3", 5, "82 07 0001 00 0001 61 30", Reason.PROTOCOL_ERROR),
    ("an empty filter", 5, "82 06 0001 00 0000 00", Reason.PROTOCOL_ERROR),
    ("# in the middle", 5, "82 09 0001 00 0003 232f61 00", Reason.PROTOCOL_ERROR),
    ("+ in a level", 4, "82 07 0001 0002 612b 00", Reason.PROTOCOL_ERROR),
    (
        "a shared filter without local",
        5,
        "82 10 0001 00 000a 2473686172652f672f61 04",
        Reason.PROTOCOL_ERROR,
    ),
    (
        "a shared filter without a group",
        5,
        "82 0f 0001 00 0009 2473686172652f2f61 00",
        Reason.PROTOCOL_ERROR,
    ),
    ("no answers", 5, "90 03 0001 00", Reason.PROTOCOL_ERROR),
    ("a wrong answer", 4, "90 03 0001 03", Reason.PROTOCOL_ERROR),
    ("no answers to an end", 5, "b0 03 0001 00", Reason.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(
    ("version", "data", "reason"), [case[1:] for case in _WRONG], ids=[case[0] for case in _WRONG]
)
def test_what_is_wrong_has_its_reason_code(version: int, data: str, reason: Reason) -> None:
    with pytest.raises(MqttViolation) as caught:
        read(bytes.fromhex(data), version)

    assert caught.value.reason == reason
    assert str(caught.value)


def test_a_number_out_of_range_is_refused_with_the_range_of_its_encoding() -> None:
    with pytest.raises(MqttViolation, match="topic_alias is 0; allowed are 1 to 65535"):
        read(bytes.fromhex("30 07 0001 61 03 23 0000"), 5)


def test_a_connect_is_read_as_it_is_written_in_the_standard() -> None:
    assert read(bytes.fromhex(_CONNECT_5), 0) == [ConnectPacket(keep_alive_s=60)]


def test_what_is_too_large_is_refused_before_it_has_come() -> None:
    reader = PacketReader(100)
    reader.receive(packet_bytes(PublishPacket("a", bytes(94)), MQTT_5))
    assert len(list(reader.packets())) == 1
    reader.receive(packet_bytes(PublishPacket("a", bytes(95)), MQTT_5)[:2])

    with pytest.raises(MqttViolation) as caught:
        list(reader.packets())
    assert caught.value.reason == Reason.PACKET_TOO_LARGE


def test_a_packet_that_comes_in_many_pieces_is_put_together_once() -> None:
    reader, packets = PacketReader(), []
    written = packet_bytes(PublishPacket("a", bytes(1 << 17)), MQTT_5)
    for offset in range(0, len(written), 16):
        reader.receive(written[offset : offset + 16])
        packets += list(reader.packets())

    assert [len(body) for _, body in packets] == [(1 << 17) + 4]


def test_who_stops_after_a_packet_gets_the_next_whatever_its_length() -> None:
    """As a connection does that has to sign its client in first."""
    reader = PacketReader()
    first = packet_bytes(ConnectPacket("a client with a long name"), MQTT_5)
    second = packet_bytes(PublishPacket("a", b"", 1, packet_id=1), MQTT_5)
    reader.receive(first[:5])
    assert list(reader.packets()) == []
    reader.receive(first[5:] + second[:3])
    assert next(iter(reader.packets()))[1] == first[2:]
    assert list(reader.packets()) == []
    reader.receive(second[3:])

    assert [body for _, body in reader.packets()] == [second[2:]]


def acknowledgements(*packet_ids: int) -> bytes:
    return b"".join(packet_bytes(PubackPacket(packet_id), MQTT_5) for packet_id in packet_ids)


@pytest.mark.parametrize(
    ("data", "together", "rest"),
    [
        (acknowledgements(1, 256, 0xFFFF), [1, 256, 0xFFFF], []),
        (acknowledgements(1, 2) + b"\xc0\0", [1, 2], [0xC0]),
        (acknowledgements(1, 2) + acknowledgements(3)[:3], [1, 2], []),
        (acknowledgements(7), [], [0x40]),
        (acknowledgements(1) + b"\x40\2\0\0", [1], [0x40]),
        (b"\xc0\0" + acknowledgements(1, 2), [], [0xC0, 0x40, 0x40]),
        (b"\x40\3\0\1\x80" + acknowledgements(1, 2), [], [0x40, 0x40, 0x40]),
    ],
)
def test_acknowledgements_that_say_nothing_more_are_read_together(
    data: bytes, together: list[int], rest: list[int]
) -> None:
    reader = PacketReader()
    reader.receive(data)
    assert list(reader.pubacks()) == together
    assert [first for first, _ in reader.packets()] == rest


@pytest.mark.parametrize(
    ("data", "packet_ids", "end"),
    [
        (acknowledgements(7), [7], 4),
        (acknowledgements(1, 0xFFFF) + b"\xc0\0", [1, 0xFFFF], 8),
        (acknowledgements(1) + acknowledgements(2)[:3], [1], 4),
        (acknowledgements(0), [], 0),
        (acknowledgements(1)[:3], [], 0),
        (b"\x40\3\0\1\x80", [], 0),
        (b"\x41\2\0\1", [], 0),
        (b"", [], 0),
    ],
)
def test_acknowledgements_at_the_start_are_read_without_a_packet(
    data: bytes, packet_ids: list[int], end: int
) -> None:
    acknowledged, end_offset = plain_pubacks(data)
    assert (list(acknowledged), end_offset) == (packet_ids, end)


def test_what_is_left_behind_acknowledgements_goes_on_with_what_comes() -> None:
    reader = PacketReader()
    reader.receive(acknowledgements(1, 2, 3)[:10])
    assert list(reader.pubacks()) == [1, 2]
    reader.receive(acknowledgements(1, 2, 3)[10:] + acknowledgements(4))
    assert list(reader.pubacks()) == [3, 4]
    assert reader.held_bytes == 0


@st.composite
def plain_or_nearly(draw: st.DrawFn) -> bytes:
    """Plain messages, some of which have a byte that is another, or none behind it."""
    topics = st.sampled_from(["a", "a/b", "\u00e4" * 128, "t" * 257, "+", ""])
    body = draw(topics).encode()
    body = len(body).to_bytes(2) + body
    first = draw(st.sampled_from([0x30, 0x32, 0x31, 0x3A]))
    body += draw(st.sampled_from([b"\0\1", b"\xff\xff", b"\0\0"])) if first & 2 else b""
    body += draw(st.sampled_from([b"", b"\0"])) + b"x" * draw(
        st.sampled_from([0, 1, 120, 130, 300])
    )
    size = len(body)
    length = bytes((size,)) if size < 0x80 else bytes((size & 0x7F | 0x80, size >> 7))
    damaged = bytearray(bytes((first,)) + length + body)
    if draw(st.integers(0, 3)) == 0:
        damaged[draw(st.integers(0, min(8, len(damaged) - 1)))] = draw(st.integers(0, 255))
    return bytes(
        damaged[: draw(st.integers(len(damaged) - 2, len(damaged)))] if first == 0x3A else damaged
    )


@VERSIONS
@given(data=st.lists(plain_or_nearly(), max_size=5).map(b"".join), most=st.integers(1, 6))
@settings(max_examples=examples(300))
def test_plain_messages_are_read_together_as_they_are_one_by_one(
    version: int, data: bytes, most: int
) -> None:
    messages, end = plain_messages(data, version, most, packet_bytes_max=1 << 20)

    assert len(messages) <= most
    if messages:
        expected = read(data[:end], version)
        assert expected == [PublishPacket(t, p, int(i > 0), packet_id=i) for t, p, i in messages]
    else:
        assert end == 0


@VERSIONS
def test_plain_messages_are_read_as_far_as_they_go(version: int) -> None:
    plain = [
        PublishPacket("a", b"x" * 200, number % 2, packet_id=number % 2) for number in range(5)
    ]
    retained = PublishPacket("a", b"", retain=True)
    data = b"".join(packet_bytes(packet, version) for packet in (*plain, retained))
    reader = PacketReader()
    reader.receive(data)

    assert len(reader.publishes(version, 3)) == 3
    assert [packet_id for _, _, packet_id in reader.publishes(version, 3)] == [1, 0]
    assert reader.publishes(version, 3) == []
    assert [packet_of(*packet, version) for packet in reader.packets()] == [retained]
    assert reader.held_bytes == 0
    reader.receive(data[:20])
    assert reader.publishes(version, 3) == []
    reader.receive(data[20:])
    assert len(reader.publishes(version, 9)) == 5
    assert plain_messages(data, version, 9, packet_bytes_max=20) == ([], 0), "more than is taken"


@VERSIONS
@pytest.mark.parametrize("size", [0, 100, 200, 20_000])
def test_the_parts_of_a_message_are_the_packet_around_its_id(version: int, size: int) -> None:
    for topic, qos, retain in product(["a", "a/\u00e4/b", "long/" * 100], (0, 1), (False, True)):
        packet = PublishPacket(topic, b"x" * size, qos, packet_id=0xFFFF * qos, retain=retain)
        before, behind = publish_parts(packet, version, qos, retain=retain)
        assert before + b"\xff\xff" * qos + behind == packet_bytes(packet, version)


def test_an_explanation_is_left_out_where_it_does_not_fit() -> None:
    properties = PacketProperties(reason="x" * 100, user_properties=(("a", "b"),))
    answer = PubackPacket(7, Reason.NOT_AUTHORIZED, properties)

    assert packet_bytes_within(answer, MQTT_5, 1_000) == packet_bytes(answer, MQTT_5)
    assert packet_bytes_within(answer, MQTT_5, 10) == bytes.fromhex("40 03 0007 87")
    assert packet_bytes_within(answer, MQTT_5, 4) is None


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (PublishPacket("a\0b"), MQTT_5),
        (PublishPacket("\ud800"), MQTT_5),
        (PublishPacket("a" * 65_536), MQTT_3),
        (AuthPacket(), MQTT_3),
        (ConnectPacket(version=MQTT_3, password=b"x"), MQTT_3),
        (ConnackPacket(properties=PacketProperties(subscription_ids=(1 << 28,))), MQTT_5),
    ],
)
def test_what_mqtt_cannot_say_is_not_written(packet: Any, version: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        packet_bytes(packet, version)


def test_a_version_without_reasons_says_what_it_can() -> None:
    suback = SubackPacket(1, (Reason.GRANTED_QOS_1, Reason.NOT_AUTHORIZED))

    assert packet_bytes(suback, MQTT_3) == bytes.fromhex("90 04 0001 01 80")
    assert packet_bytes(PubackPacket(1, Reason.NOT_AUTHORIZED), MQTT_3).hex() == "40020001"
    assert packet_bytes(DisconnectPacket(Reason.SERVER_BUSY), MQTT_3).hex() == "e000"
