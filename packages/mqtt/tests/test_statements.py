"""Statements of the standard that no other test holds: what is said, in which order, and what
is left unsaid."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import Hung, PacketClient, connected, heard
from penstock_mqtt.wire.packets import (
    MQTT_3,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    PingreqPacket,
    PingrespPacket,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    SubackPacket,
    SubscribePacket,
    TopicSubscription,
    UnsubscribePacket,
    Will,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason

pytestmark = pytest.mark.spec("M1")
HOUR = PacketProperties(session_expiry_s=3_600)


def stored(realm: penstock.Realm, topic: str) -> list[bytes]:
    with realm.connect() as session:
        channel = session.channels.get("mqtt")
        return [event.data for event in channel.browse(selector=f"topic = '{topic}'")]


@pytest.mark.parametrize("most", [None, 0, 5])
def test_no_topic_is_sent_as_an_alias(url: str, most: int | None) -> None:
    properties = PacketProperties(topic_alias_maximum=most)
    with connected(url, properties=properties) as client:
        client.subscribe("alias/+", qos=0)
        for _ in range(3):
            client.send(PublishPacket("alias/never"))
        got = [packet for packet in heard(client) if isinstance(packet, PublishPacket)]
        got += [client.receive() for _ in range(3 - len(got))]

    assert [(message.topic, message.properties.topic_alias) for message in got] == [
        ("alias/never", None)
    ] * 3


def test_an_alias_ends_with_its_connection(url: str) -> None:
    alias = PacketProperties(topic_alias=7)
    with connected(url, "aliased", properties=HOUR) as client:
        client.publish("long/topic", properties=alias)
    with connected(url, "aliased", clean_start=False, properties=HOUR) as client:
        client.send(PublishPacket("", properties=alias))
        assert client.receive().reason == Reason.TOPIC_ALIAS_INVALID


def test_an_alias_above_the_largest_is_refused(url: str) -> None:
    with PacketClient(url) as client:
        most = client.connect().properties.topic_alias_maximum
        assert most
        assert client.publish("a", properties=PacketProperties(topic_alias=most)).reason == 0
        client.send(PublishPacket("a", properties=PacketProperties(topic_alias=most + 1)))
        assert client.receive().reason == Reason.TOPIC_ALIAS_INVALID


@pytest.mark.parametrize(
    ("client_id", "wanted", "prefix"),
    [
        ("asks", 1, "reply/asks/"),
        ("asks", 0, None),
        ("asks", None, None),
        ("no+topic", 1, None),
    ],
)
def test_where_answers_may_go_is_told_to_whoever_asks(
    url: str, client_id: str, wanted: int | None, prefix: str | None
) -> None:
    properties = PacketProperties(request_response_information=wanted)
    with PacketClient(url) as client:
        answer = client.connect(client_id, properties=properties)
        assert answer.properties.response_information == prefix


@pytest.mark.parametrize("wanted", [None, 1, 0])
def test_explanations_are_for_those_who_want_them(url: str, wanted: int | None) -> None:
    properties = PacketProperties(request_problem_information=wanted)
    with connected(url, properties=properties) as client:
        refused = client.publish("a", b"\xff", properties=PacketProperties(payload_format=1))
        client.send(PublishPacket("", properties=PacketProperties(topic_alias=99)))
        last = client.receive()

    assert refused.reason == Reason.PAYLOAD_FORMAT_INVALID
    assert (refused.properties.reason is None) == (wanted == 0)
    assert last.properties.reason, "a DISCONNECT has it all the same"


@pytest.mark.parametrize("client_id", ["A", "0123456789abcdefghijklm", "ABCDEFGHIJKLMNOPQRSTUVW"])
@pytest.mark.parametrize("version", [4, 5])
def test_ids_of_letters_and_digits_are_taken(url: str, client_id: str, version: int) -> None:
    with PacketClient(url, version) as client:
        assert client.connect(client_id).reason == 0


def test_a_client_whose_id_is_refused_is_closed(url: str) -> None:
    with PacketClient(url, MQTT_3) as client:
        assert client.connect("", clean_start=False).reason == 2
        with pytest.raises(Hung):
            client.receive()


def test_user_properties_of_a_will_keep_their_order(url: str) -> None:
    user_properties = (("b", "1"), ("a", "2"), ("b", "0"))
    will = Will("last/words", properties=PacketProperties(user_properties=user_properties))
    with connected(url) as watcher:
        watcher.subscribe("last/words", qos=0)
        with connected(url, will=will):
            pass
        assert watcher.receive().properties.user_properties == user_properties


def test_the_first_packet_of_all_is_the_connack_and_there_is_one(url: str) -> None:
    with connected(url, "first", properties=HOUR) as client:
        client.subscribe("first/#")
    with connected(url) as publisher:
        publisher.publish("first/waits")
    with PacketClient(url) as client:
        wanted = SubscribePacket(1, (TopicSubscription("more"),))
        connect = ConnectPacket("first", clean_start=False, properties=HOUR)
        client.send(connect, wanted, PublishPacket("more"))
        got = [client.receive() for _ in range(4)]

    assert isinstance(got[0], ConnackPacket)
    assert {type(packet) for packet in got[1:]} == {PublishPacket, SubackPacket}


def test_the_keep_alive_is_the_clients(url: str) -> None:
    with PacketClient(url) as client:
        assert client.connect(keep_alive_s=7).properties.server_keep_alive_s is None


def test_several_filters_are_as_one_after_the_other(url: str) -> None:
    with connected(url) as client:
        wanted = (
            TopicSubscription("many/a", 2),
            TopicSubscription("many/b", 0),
            TopicSubscription("many/a", 1),
            TopicSubscription("$share/g/many/c", 2),
        )
        client.send(SubscribePacket(3, wanted))
        granted = client.receive()
        client.send(PublishPacket("many/a", b"", 2, packet_id=1))
        got = [client.receive() for _ in range(2)]

    assert (granted.packet_id, granted.reasons) == (3, (2, 0, 1, 1))
    (message,) = (packet for packet in got if isinstance(packet, PublishPacket))
    assert message.qos == 1, "the later one has replaced the first"


def test_a_filter_is_given_up_by_its_very_characters(url: str) -> None:
    with connected(url) as client:
        client.subscribe("exact/b", qos=0)
        others = ("exact/+", "exact/B", "exact/b/", "exact/#")
        client.send(UnsubscribePacket(8, others))
        assert client.receive().reasons == (Reason.NO_SUBSCRIPTION_EXISTED,) * len(others)
        client.send(PublishPacket("exact/b"))
        assert isinstance(client.receive(), PublishPacket)
        client.send(UnsubscribePacket(9, ("exact/b",)))
        assert client.receive().reasons == (Reason.SUCCESS,)


def test_a_disconnect_of_the_server_says_nothing_of_expiry_and_is_the_last(url: str) -> None:
    with connected(url, "twice", properties=HOUR) as older, connected(url) as publisher:
        older.subscribe("twice/#")
        with connected(url, "twice", properties=HOUR) as newer:
            last = older.receive()
            newer.subscribe("twice/#")
            publisher.publish("twice/a")
            assert newer.receive().topic == "twice/a"
        with pytest.raises(Hung):
            older.receive()

    assert isinstance(last, DisconnectPacket)
    assert last.properties.session_expiry_s is None


def test_before_a_connack_there_is_no_disconnect(url: str) -> None:
    for wrong in (PingreqPacket(), PublishPacket("a"), DisconnectPacket()):
        with PacketClient(url) as client:
            client.send(wrong)
            with pytest.raises(Hung):
                client.receive()


def test_an_id_that_was_acknowledged_is_that_of_a_new_message(
    realm: penstock.Realm, url: str
) -> None:
    with connected(url) as client:
        for payload in (b"one", b"two"):
            client.send(PublishPacket("same/id", payload, 1, packet_id=5, is_duplicate=True))
            assert client.receive() == PubackPacket(5)

    assert stored(realm, "same/id") == [b"one", b"two"]


def test_messages_are_acknowledged_in_their_order(url: str) -> None:
    with connected(url) as client:
        client.send(
            *(PublishPacket("in/order", b"", 1 + n % 2, packet_id=n + 1) for n in range(20))
        )
        got = [client.receive() for _ in range(20)]
        for kind in (PubackPacket, PubrecPacket):
            ids = [packet.packet_id for packet in got if isinstance(packet, kind)]
            assert len(ids) == 10
            assert ids == sorted(ids)


def test_messages_of_a_topic_come_in_their_order(url: str) -> None:
    with connected(url) as client, connected(url) as publisher:
        client.subscribe("row", qos=2)
        publisher.send(
            *(
                PublishPacket("row", b"%d" % n, n % 3, packet_id=n + 1 if n % 3 else 0)
                for n in range(30)
            )
        )
        got: list[Any] = []
        while len(got) < 30:
            packet = client.receive()
            if isinstance(packet, PublishPacket):
                got.append(packet)

    for qos in range(3):
        numbers = [int(message.payload) for message in got if message.qos == qos]
        assert numbers == [n for n in range(30) if n % 3 == qos]


def test_qos_2_is_completed_when_its_event_is_gone(realm: penstock.Realm, url: str) -> None:
    expiring = PacketProperties(message_expiry_s=1)
    message = PublishPacket("gone/soon", b"", 2, packet_id=6, properties=expiring)
    with connected(url) as client:
        client.send(message)
        assert client.receive() == PubrecPacket(6)
        with realm.connect() as session:
            session.channels.get("mqtt").purge(selector="topic = 'gone/soon'")
        client.send(message)
        assert client.receive() == PubrecPacket(6)
        client.send(PubrelPacket(6))
        assert client.receive() == PubcompPacket(6)

    assert stored(realm, "gone/soon") == []


def test_what_is_larger_than_the_server_takes_ends_the_connection() -> None:
    small = penstock.Realm(limits__max_event_bytes=1_024)
    with small as realm, PacketClient(realm.listen_mqtt()) as client:
        assert client.connect().properties.maximum_packet_bytes
        client.send_bytes(b"\x30\xff\xff\xff\x7f")
        assert client.receive().reason == Reason.PACKET_TOO_LARGE


def test_a_ping_is_answered_with_nothing_but_its_answer(url: str) -> None:
    with connected(url) as client:
        client.send(PingreqPacket(), PingreqPacket())
        assert [client.receive() for _ in range(2)] == [PingrespPacket()] * 2
