"""Each field, property and size of each MQTT packet at its extremes: the packet is accepted or the
connection closed, and the realm serves other clients as before."""

from __future__ import annotations

import pytest

from penstock_mqtt.wire.packets import MQTT_3, MQTT_5
from penstock_mqtt.wire.properties import PROPERTIES
from tests.fuzz.bounding import in_time
from tests.fuzz.mqtt_connections import pieces, reframed
from tests.fuzz.mqtt_extremes import KINDS, cases, check, delivers, served, working


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
def test_no_value_of_an_mqtt_packet_harms_the_realm(name: str) -> None:
    for case in cases(name):
        with in_time():
            served().handle(case.data)
        check(case, served().answer, has_closed=served().has_closed)

    for version in (MQTT_5, MQTT_3):
        served().handle(working(version))
        assert delivers(served().answer)


def test_every_property_is_at_its_extremes_in_a_publish() -> None:
    tried = " ".join(case.what for case in cases("publish"))

    assert all(member.name in tried for member in PROPERTIES)
    assert "8000 times user_properties" in tried


def test_a_conversation_is_divided_into_its_packets() -> None:
    assert list(pieces(working()))[-1] == b"\xe0\0"
    assert b"".join(pieces(working())) == working()
    assert reframed(b"\xc0\0\x30\x7fab") == b"\xc0\0\x30\x02ab"
