"""QoS 2 in both directions: a message is there once, whatever is sent again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import PacketClient, connected, heard
from packages.mqtt.tests.handshakes import Again, publish_wholly, take
from packages.mqtt.tests.limited import limited
from packages.mqtt.tests.persistent_sessions import HOUR, back, stored
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    UnsubscribePacket,
    Will,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason

VERSIONS = pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
pytestmark = pytest.mark.spec("M7")


def publish(client: PacketClient, topic: str, payload: bytes, packet_id: int = 1) -> Any:
    """Publish with QoS 2, and give the first answer."""
    client.send(PublishPacket(topic, payload, 2, packet_id=packet_id))
    return client.receive()


@VERSIONS
def test_a_message_that_is_sent_again_is_stored_once(
    realm: penstock.Realm, url: str, version: int
) -> None:
    topic = f"once/{version}"
    with connected(url, version=version) as client:
        assert publish(client, topic, b"1") == PubrecPacket(1)
        again = PublishPacket(topic, b"1", 2, packet_id=1, is_duplicate=True)
        client.send(again, again)
        assert [client.receive(), client.receive()] == [PubrecPacket(1), PubrecPacket(1)]
        client.send(PubrelPacket(1))
        assert client.receive() == PubcompPacket(1)
        assert publish(client, topic, b"2") == PubrecPacket(1), "its id is free"

    assert stored(realm, topic) == [b"1", b"2"]


@VERSIONS
def test_what_was_sent_by_an_earlier_connection_is_stored_once(
    realm: penstock.Realm, url: str, version: int
) -> None:
    name = f"earlier-{version}"
    with back(url, name, version, present=False) as client:
        assert publish(client, name, b"1") == PubrecPacket(1)
    with back(url, name, version) as client:
        client.send(PublishPacket(name, b"1", 2, packet_id=1, is_duplicate=True))
        assert client.receive() == PubrecPacket(1)
    with back(url, name, version) as client:
        client.send(PubrelPacket(1))
        assert client.receive() == PubcompPacket(1)
        assert publish(client, name, b"2") == PubrecPacket(1)

    assert stored(realm, name) == [b"1", b"2"]


def test_an_id_that_is_not_known_is_told(url: str) -> None:
    with connected(url) as client:
        client.send(PubrelPacket(7), PubrecPacket(8), PubcompPacket(9))
        assert client.receive() == PubcompPacket(7, Reason.PACKET_ID_NOT_FOUND)
        assert client.receive() == PubrelPacket(8, Reason.PACKET_ID_NOT_FOUND)
        assert heard(client) == []


def test_a_message_that_is_refused_has_a_reason_and_its_id_is_free(
    realm: penstock.Realm, url: str
) -> None:
    with connected(url) as client:
        format_properties = PacketProperties(payload_format=1)
        client.send(PublishPacket("refused", b"\xff", 2, packet_id=1, properties=format_properties))
        answer = client.receive()
        assert isinstance(answer, PubrecPacket)
        assert answer.reason == Reason.PAYLOAD_FORMAT_INVALID
        assert publish(client, "refused", b"right") == PubrecPacket(1)

    assert stored(realm, "refused") == [b"right"]


@VERSIONS
def test_a_subscriber_has_the_lower_qos(url: str, version: int) -> None:
    topic = f"lower/{version}"
    with connected(url, version=version) as one, connected(url) as two, connected(url) as publisher:
        assert one.subscribe(topic, qos=2).reasons == (Reason.GRANTED_QOS_2,)
        two.subscribe(topic, qos=1)
        publish_wholly(publisher, topic, b"2")
        assert take(one) == b"2"
        publisher.publish(topic, b"1")
        assert one.receive().qos == 1
        assert [two.receive().qos for _ in range(2)] == [1, 1]


def test_what_is_in_flight_takes_room_until_it_is_complete(url: str) -> None:
    one = PacketProperties(receive_maximum=1)
    with connected(url, properties=one) as client, connected(url) as publisher:
        client.subscribe("room", qos=2)
        publish_wholly(publisher, "room", b"1")
        publish_wholly(publisher, "room", b"2")
        first = client.receive()
        client.send(PubrecPacket(first.packet_id))
        assert heard(client) == [PubrelPacket(first.packet_id)]
        client.send(PubcompPacket(first.packet_id))
        assert take(client) == b"2"


def test_a_client_that_refuses_a_message_does_not_get_it_again(url: str) -> None:
    with back(url, "refuses", present=False) as client, connected(url) as publisher:
        client.subscribe("refuses", qos=2)
        publish_wholly(publisher, "refuses", b"1")
        message = client.receive()
        client.send(PubrecPacket(message.packet_id, Reason.QUOTA_EXCEEDED))
        assert heard(client) == []
    with back(url, "refuses") as client:
        assert heard(client) == []


def test_too_many_messages_that_are_not_released_end_the_connection(
    realm: penstock.Realm, url: str
) -> None:
    with limited(realm, receive_maximum=2), connected(url) as client:
        for number in (1, 2):
            assert publish(client, "many", b"", packet_id=number) == PubrecPacket(number)
        assert publish(client, "many", b"", packet_id=3).reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


@pytest.fixture(params=["connection", "server"])
def realms(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Again]:
    """Return a realm that is interrupted between two connections: only the connection ends, or the
    server restarts."""
    realms_of_test = Again(tmp_path, restarts=request.param == "server")
    yield realms_of_test
    realms_of_test.close()


@VERSIONS
def test_a_message_to_a_client_is_the_same_one_until_it_is_released(
    realms: Again, version: int
) -> None:
    with (
        back(realms.url, "c", version, present=False) as client,
        connected(realms.url) as publisher,
    ):
        client.subscribe("a", qos=2)
        publish_wholly(publisher, "a", b"1")
        publish_wholly(publisher, "a", b"2")
        first, second = client.receive(), client.receive()
    with back(realms.come_back(), "c", version) as client:
        assert [client.receive(), client.receive()] == [
            PublishPacket("a", b"1", 2, packet_id=first.packet_id, is_duplicate=True),
            PublishPacket("a", b"2", 2, packet_id=second.packet_id, is_duplicate=True),
        ]
        client.send(PubrecPacket(first.packet_id))
        assert client.receive() == PubrelPacket(first.packet_id)
    with back(realms.come_back(), "c", version) as client:
        got = [client.receive(), client.receive()]
        assert sorted(got, key=lambda packet: type(packet).__name__) == [
            PublishPacket("a", b"2", 2, packet_id=second.packet_id, is_duplicate=True),
            PubrelPacket(first.packet_id),
        ]
        client.send(PubcompPacket(first.packet_id), PubrecPacket(second.packet_id))
        assert client.receive() == PubrelPacket(second.packet_id)
        client.send(PubcompPacket(second.packet_id))
        assert heard(client) == []
    with back(realms.come_back(), "c", version) as client, connected(realms.url) as publisher:
        assert heard(client) == []
        publish_wholly(publisher, "a", b"3")
        assert take(client) == b"3"


def test_a_message_from_a_client_is_the_same_one_until_it_is_released(realms: Again) -> None:
    with back(realms.url, "c", present=False) as client:
        assert publish(client, "a", b"1") == PubrecPacket(1)
    with back(realms.come_back(), "c") as client:
        client.send(PublishPacket("a", b"1", 2, packet_id=1, is_duplicate=True))
        assert client.receive() == PubrecPacket(1)
        client.send(PubrelPacket(1))
        assert client.receive() == PubcompPacket(1)
    with back(realms.come_back(), "c") as client:
        client.send(PubrelPacket(1))
        assert client.receive() == PubcompPacket(1, Reason.PACKET_ID_NOT_FOUND)
        assert publish(client, "a", b"2") == PubrecPacket(1)

    assert stored(realms.realm, "a") == [b"1", b"2"]


def test_a_new_session_knows_nothing_of_an_old_one(realms: Again) -> None:
    with back(realms.url, "c", present=False) as client:
        assert publish(client, "a", b"1") == PubrecPacket(1)
    with connected(realms.url, "c", properties=HOUR) as client:
        client.subscribe("b", qos=2)
    with back(realms.come_back(), "c") as client:
        assert publish(client, "a", b"2") == PubrecPacket(1)

    assert stored(realms.realm, "a") == [b"1", b"2"]


def test_retained_messages_come_once(realms: Again) -> None:
    with connected(realms.url) as publisher:
        for number in range(3):
            publish_wholly(publisher, f"r/{number}", b"%d" % number, retain=True)
    one = PacketProperties(session_expiry_s=3_600, receive_maximum=1)
    with back(realms.url, "c", present=False, properties=one) as client:
        client.subscribe("r/#", qos=2)
        assert take(client) == b"0"
        assert client.receive().payload == b"1"
    with back(realms.come_back(), "c", properties=one) as client:
        first = client.receive()
        if isinstance(first, PubrelPacket):  # of the first: nobody knows whether it has come
            client.send(PubcompPacket(first.packet_id))
            first = client.receive()
        assert (first.payload, first.is_duplicate) == (b"1", True)
        client.send(PubrecPacket(first.packet_id))
        assert client.receive() == PubrelPacket(first.packet_id)
        client.send(PubcompPacket(first.packet_id))
        assert take(client) == b"2"
        assert heard(client) == []
    with back(realms.come_back(), "c") as client:
        assert heard(client) == []


@pytest.mark.spec("M8")
def test_a_will_of_qos_2_comes_with_it(url: str) -> None:
    with connected(url) as watcher:
        watcher.subscribe("will/2", qos=2)
        with connected(url, "brief", will=Will("will/2", b"bye", 2)):
            pass
        assert take(watcher) == b"bye"


def test_what_is_in_flight_is_completed_when_its_subscription_is_given_up(url: str) -> None:
    with back(url, "given-up", present=False) as client, connected(url) as publisher:
        client.subscribe("given/#", qos=2)
        publish_wholly(publisher, "given/2", b"2")
        publisher.publish("given/1", b"1")
        two, one = client.receive(), client.receive()
        client.send(UnsubscribePacket(5, ("given/#",)))
        assert client.receive().reasons == (Reason.SUCCESS,)
    with back(url, "given-up") as client:
        got = [client.receive(), client.receive()]
        assert [(message.payload, message.packet_id, message.is_duplicate) for message in got] == [
            (b"2", two.packet_id, True),
            (b"1", one.packet_id, True),
        ]
        client.send(PubackPacket(one.packet_id), PubrecPacket(two.packet_id))
        assert client.receive() == PubrelPacket(two.packet_id)
        client.send(PubcompPacket(two.packet_id))
        assert heard(client) == []
    with back(url, "given-up") as client:
        assert heard(client) == []
