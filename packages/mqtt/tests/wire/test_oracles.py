"""Other codecs read what is written here, and write what is read here: mqtt5 and paho-mqtt."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from paho.mqtt.client import topic_matches_sub
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from packages.mqtt.tests.wire.drawn import NAMES, drawn, filters, properties_of
from packages.mqtt.tests.wire.packet_pieces import read
from penstock_core.vocabulary.topics import topic_matches as matches
from penstock_mqtt.wire.packets import MQTT_5, ConnectPacket
from penstock_mqtt.wire.primitives import Cursor
from penstock_mqtt.wire.properties import (
    NO_PROPERTIES,
    PUBLISH,
    PacketProperties,
    properties_bytes,
)
from penstock_mqtt.wire.properties import properties_of as read_properties
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.writing import packet_bytes
from tests.thorough import examples

USUAL = {
    "payload_format": 0,
    "session_expiry_s": 0,
    "request_problem_information": 1,
    "request_response_information": 0,
    "will_delay_s": 0,
    "receive_maximum": 65_535,
    "topic_alias_maximum": 0,
    "retain_available": 1,
    "wildcards_available": 1,
    "subscription_ids_available": 1,
    "shared_available": 1,
}
"""Values that stand for a property that is left out; the other codec leaves these out, or writes
them."""


def usual(properties: PacketProperties) -> PacketProperties:
    absent = {n: None for n, value in USUAL.items() if getattr(properties, n) == value}
    return replace(properties, **absent) if properties != NO_PROPERTIES else properties


def meant(packet: Any) -> Any:
    """A packet without what it would mean anyway."""
    if isinstance(packet, ConnectPacket) and packet.will is not None:
        will = replace(packet.will, properties=usual(packet.will.properties))
        packet = replace(packet, will=will)
    return replace(packet, properties=usual(packet.properties)) if _has_any(packet) else packet


def _has_any(packet: Any) -> bool:
    return hasattr(packet, "properties")


@given(drawn(MQTT_5))
@settings(max_examples=examples(300))
@pytest.mark.slow
def test_another_codec_reads_and_writes_the_same(packet: Any) -> None:
    oracle_packet, size = mqtt5.read(memoryview(packet_bytes(packet, MQTT_5)))
    assert size == len(packet_bytes(packet, MQTT_5))
    (back,) = read(oracle_packet.write(), MQTT_5)

    assert meant(back) == meant(packet)


@given(properties_of(PUBLISH))
@settings(max_examples=examples(100))
def test_paho_reads_and_writes_the_same_properties(properties: PacketProperties) -> None:
    written = properties_bytes(properties)
    theirs: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # it ships none
    theirs.unpack(written)

    back = read_properties(Cursor(theirs.pack()), PUBLISH)
    assert back == properties


@given(filters(may_be_shared=False), NAMES)
def test_paho_has_filters_take_the_same_names(text: str, name: str) -> None:
    assert matches(text, name) == topic_matches_sub(text, name)


@given(filters(may_be_shared=False), st.data())
def test_a_filter_takes_the_names_it_is_made_of(text: str, data: st.DataObject) -> None:
    level = data.draw(st.sampled_from(["a", "", "xyz"]))
    name = text.replace("+", level or "b").replace("#", level) or "b"

    assert matches(text, name) == topic_matches_sub(text, name)
    assert matches(text, name) or name.startswith("$")


def test_an_oracle_that_is_asked_for_nothing_says_nothing() -> None:
    assert packet_of(0xC0, b"", MQTT_5) != packet_of(0xD0, b"", MQTT_5)
