"""MQTT connections of a real realm, over sockets, with packets of the codec."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import Hung, PacketClient, connected
from packages.mqtt.tests.limited import limited
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    ConnectPacket,
    DisconnectPacket,
    PingreqPacket,
    PingrespPacket,
    PubackPacket,
    PublishPacket,
    SubscribePacket,
    TopicSubscription,
    UnsubscribePacket,
    Will,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason

VERSIONS = pytest.mark.parametrize("version", [MQTT_3, MQTT_5])


def stored(realm: penstock.Realm, topic: str) -> list[penstock.Event]:
    with realm.connect() as session:
        channel = session.channels.get("mqtt")
        return list(channel.browse(selector=f"topic = '{topic}'"))


def ended(client: PacketClient) -> Reason | None:
    """The reason that a connection ends with; None: without a word."""
    try:
        last = client.receive()
    except Hung:
        return None
    assert isinstance(last, DisconnectPacket)
    with pytest.raises(Hung):
        client.receive()
    return last.reason


@VERSIONS
@pytest.mark.spec("M2")
def test_a_message_is_acknowledged_once_it_is_stored(
    realm: penstock.Realm, url: str, version: int
) -> None:
    topic = f"plant/{version}/temp"
    with connected(url, "device", version) as client:
        assert client.publish(topic, b"21.5") == PubackPacket(1)

    (event,) = stored(realm, topic)
    assert (event.data, event.properties) == (b"21.5", {"topic": topic})
    assert event.headers["application_id"] == "device"


@VERSIONS
def test_subscribers_get_what_their_filters_take_with_the_lower_qos(url: str, version: int) -> None:
    with connected(url, version=version) as one, connected(url) as two:
        assert one.subscribe(f"{version}/+/temp", qos=2).reasons == (Reason.GRANTED_QOS_2,)
        two.send(PublishPacket(f"{version}/a/b/temp", b"no"))
        two.publish(f"{version}/3/temp", b"yes")
        got = one.receive()
        two.send(PublishPacket(f"{version}/4/temp", b"too"))

        assert (got.topic, got.payload, got.qos, got.packet_id) == (
            f"{version}/3/temp",
            b"yes",
            1,
            1,
        )
        assert one.receive() == PublishPacket(f"{version}/4/temp", b"too")


@pytest.mark.spec("M3")
def test_a_native_event_with_a_topic_reaches_subscribers(realm: penstock.Realm, url: str) -> None:
    with connected(url) as client, realm.connect() as session:
        client.subscribe("native/#", qos=0)
        channel = session.channels.get("mqtt")
        channel.publish(b"no topic")
        channel.publish(b"1", properties={"topic": "native/+"})
        values = {"unit": "C", "n": 5, "tags": ["a", "b"], "ok": True, "note": None}
        channel.publish(b"x", properties={"topic": "native/a", **values})

        texts = (("unit", "C"), ("n", "5"), ("tags", "a"), ("tags", "b"), ("ok", "true"))
        user = PacketProperties(user_properties=texts)
        assert client.receive() == PublishPacket("native/a", b"x", properties=user)


def test_properties_reach_receivers_as_they_were_sent(realm: penstock.Realm, url: str) -> None:
    sent = PacketProperties(
        payload_format=1,
        message_expiry_s=3_600,
        content_type="text/plain",
        response_topic="answers/1",
        correlation_data=b"\x00\xff",
        user_properties=(("b", "1"), ("a", "2"), ("b", "3")),
    )
    with connected(url) as client:
        client.subscribe("all/of/it", qos=0)
        client.send(PublishPacket("all/of/it", "ü".encode(), properties=sent))
        got = client.receive()

    assert got.properties.message_expiry_s in (3_599, 3_600)
    again = {n: getattr(got.properties, n) for n in PacketProperties.__struct_fields__}
    assert PacketProperties(**again | {"message_expiry_s": 3_600}) == sent
    (event,) = stored(realm, "all/of/it")
    assert event.properties == {"topic": "all/of/it", "b": ["1", "3"], "a": "2"}
    assert (event.ttl, event.headers["reply_to"]) == (3_600_000, "answers/1")
    assert event.headers["correlation_id"] == "00ff"


def test_options_of_a_subscription_are_kept(url: str) -> None:
    with connected(url, "own") as client, connected(url, "other") as publisher:
        ids = PacketProperties(subscription_ids=(7,))
        wanted = TopicSubscription("options", no_local=True)
        client.send(SubscribePacket(9, (wanted,), ids))
        assert client.receive().packet_id == 9
        client.publish("options", b"mine")
        publisher.publish("options", b"theirs")

        got = client.receive()
        assert (got.payload, got.properties.subscription_ids) == (b"theirs", (7,))
        client.send(UnsubscribePacket(10, ("options", "nothing")))
        codes = (Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)
        assert client.receive().reasons == codes


def test_a_client_gets_no_more_than_it_takes(url: str) -> None:
    flow_properties = PacketProperties(receive_maximum=2)
    with connected(url, properties=flow_properties) as client, connected(url) as publisher:
        client.subscribe("flow")
        for number in range(3):
            publisher.publish("flow", b"%d" % number)
        first, second = client.receive(), client.receive()
        client.send(PingreqPacket())
        assert isinstance(client.receive(), PingrespPacket), "and not the third"
        client.send(PubackPacket(first.packet_id))

        assert second.payload == b"1"
        assert client.receive().payload == b"2"


@VERSIONS
def test_acknowledgements_and_messages_in_one_piece_both_count(
    realm: penstock.Realm, url: str, version: int
) -> None:
    topic = f"both/{version}"
    with connected(url, version=version) as client:
        client.subscribe(topic)
        client.publish(topic, b"0")
        received = client.receive()
        client.send(PubackPacket(received.packet_id), PublishPacket(topic, b"1"), PingreqPacket())
        answers = [client.receive(), client.receive()]

        assert PingrespPacket() in answers
        assert [packet.payload for packet in answers if isinstance(packet, PublishPacket)] == [b"1"]
    assert [event.data for event in stored(realm, topic)] == [b"0", b"1"]


@pytest.mark.spec("M1")
def test_an_acknowledgement_of_packet_0_ends_the_connection(url: str) -> None:
    with connected(url) as client:
        client.send_bytes(b"\x40\2\0\0")
        assert ended(client) == Reason.PROTOCOL_ERROR


def test_a_packet_that_a_client_does_not_take_counts_as_sent(url: str) -> None:
    small = PacketProperties(maximum_packet_bytes=100, receive_maximum=1)
    with connected(url, properties=small) as client, connected(url) as publisher:
        client.subscribe("size")
        publisher.publish("size", bytes(200))
        publisher.publish("size", b"small")

        assert client.receive().payload == b"small"


@VERSIONS
def test_what_comes_together_is_stored_in_its_order(
    realm: penstock.Realm, url: str, version: int
) -> None:
    topic = f"together/{version}"
    plain = [PublishPacket(topic, b"%d" % number, 1, packet_id=number) for number in (1, 3)]
    first, last = PublishPacket(topic, b"0"), PublishPacket(topic, b"4")
    retained = PublishPacket(topic, b"2", retain=True)
    with connected(url, version=version) as client:
        client.send(first, plain[0], retained, plain[1], last)
        client.send(PublishPacket(topic, b"5", 1, packet_id=5))

        assert [client.receive().packet_id for _ in range(3)] == [1, 3, 5]
    events = stored(realm, topic)
    assert [event.data for event in events] == [b"%d" % number for number in range(6)]
    assert [event.persistent for event in events] == [False, True, False, True, False, True]


@VERSIONS
def test_more_messages_than_it_may_end_a_connection_and_the_others_are_stored(
    realm: penstock.Realm, url: str, version: int
) -> None:
    topic = f"hasty/{version}"
    with limited(realm, receive_maximum=2), connected(url, version=version) as client:
        client.send(
            *(PublishPacket(topic, b"%d" % number, 1, packet_id=number) for number in (1, 2, 3))
        )
        why = Reason.RECEIVE_MAXIMUM_EXCEEDED if version == MQTT_5 else None
        assert ended(client) == why

    with connected(url) as client:
        client.publish(topic, b"4")
    assert [event.data for event in stored(realm, topic)] == [b"1", b"2", b"4"]


def test_an_alias_stands_for_its_topic(realm: penstock.Realm, url: str) -> None:
    alias = PacketProperties(topic_alias=5)
    with connected(url) as client:
        client.publish("long/topic", properties=alias)
        client.publish("", b"again", properties=alias)
        assert [event.data for event in stored(realm, "long/topic")] == [b"", b"again"]
        client.send(PublishPacket("", properties=PacketProperties(topic_alias=6)))
        assert ended(client) == Reason.TOPIC_ALIAS_INVALID


@VERSIONS
def test_a_will_is_published_unless_its_client_says_goodbye(
    realm: penstock.Realm, url: str, version: int
) -> None:
    will = Will(f"gone/{version}", b"bye", 1)
    with connected(url) as watcher:
        watcher.subscribe(f"gone/{version}", qos=0)
        with connected(url, "polite", version, will=will) as client:
            client.send(DisconnectPacket())
            assert ended(client) is None
        with connected(url, "lost", version, will=will):
            pass
        assert watcher.receive().payload == b"bye"

    assert len(stored(realm, f"gone/{version}")) == 1


def test_a_client_that_connects_again_takes_over(url: str) -> None:
    with connected(url, "twin") as older, connected(url, "twin") as newer:
        assert ended(older) == Reason.SESSION_TAKEN_OVER
        assert newer.publish("twin", b"") == PubackPacket(1)


def test_a_client_without_a_name_is_given_one(url: str) -> None:
    with PacketClient(url) as one, PacketClient(url) as two:
        names = [client.connect().properties.assigned_client_id for client in (one, two)]

    assert all(names)
    assert len(set(names)) == 2


@pytest.mark.spec("M1")
@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (PublishPacket("a", properties=PacketProperties(subscription_ids=(1,))), 0x82),
        (ConnectPacket("again"), Reason.PROTOCOL_ERROR),
        (PingrespPacket(), Reason.PROTOCOL_ERROR),
        (DisconnectPacket(properties=PacketProperties(session_expiry_s=5)), 0x82),
    ],
)
def test_what_may_not_be_sent_ends_the_connection_with_its_reason(
    url: str, packet: Any, reason: int
) -> None:
    with connected(url) as client:
        client.send(packet)

        assert ended(client) == reason


@pytest.mark.spec("M1")
def test_what_is_malformed_ends_the_connection(url: str) -> None:
    with connected(url) as client:
        client.send_bytes(b"\x36\x03\x00\x01a")
        assert ended(client) == Reason.MALFORMED_PACKET
    with connected(url, version=MQTT_3) as client:
        client.send_bytes(b"\x36\x03\x00\x01a")
        assert ended(client) is None
    with PacketClient(url) as client:
        client.send(PingreqPacket())
        assert ended(client) is None


@pytest.mark.spec("M1")
def test_a_session_that_lasts_needs_a_client_id(url: str) -> None:
    with PacketClient(url, MQTT_3) as client:
        assert client.connect("", clean_start=False).reason == 2


@pytest.mark.spec("M1")
def test_what_there_is_not_is_told_at_the_beginning(url: str) -> None:
    with PacketClient(url) as client:
        connack = client.connect("x", clean_start=False)
        properties = connack.properties
        assert properties.maximum_qos is None, "each is there"
        assert not connack.session_present
        assert (properties.retain_available, properties.shared_available) == (1, None)
    with PacketClient(url) as client:
        method = PacketProperties(authentication_method="SCRAM-SHA-256")
        assert client.connect(properties=method).reason == Reason.BAD_AUTHENTICATION_METHOD


@pytest.mark.spec("M1")
@pytest.mark.parametrize(
    ("name", "version", "answer"),
    [
        (b"MQIsdp", 3, "20020001"),
        (b"MQTT", 3, "20020001"),
        (b"MQTX", 4, "20020001"),
        (b"MQTT", 6, "2003008400"),
        (b"MQTT", 255, "2003008400"),
        (b"MQTX", 5, "2003008400"),
    ],
)
def test_another_version_is_refused_in_a_form_that_it_understands(
    url: str, name: bytes, version: int, answer: str
) -> None:
    body = len(name).to_bytes(2) + name + bytes((version,)) + bytes.fromhex("02003c000000")
    with PacketClient(url) as client:
        client.send_bytes(bytes((0x10, len(body))) + body)

        assert client.receive_bytes() == bytes.fromhex(answer)


def test_a_payload_that_says_it_is_text_has_to_be(url: str) -> None:
    with connected(url) as client:
        format_properties = PacketProperties(payload_format=1)
        assert (
            client.publish("a", b"\xff", properties=format_properties).reason
            == Reason.PAYLOAD_FORMAT_INVALID
        )


@pytest.mark.spec("M2")
def test_what_is_refused_is_refused_by_itself() -> None:
    with penstock.Realm(limits__max_event_bytes=1_024) as realm:
        with connected(realm.listen_mqtt()) as client:
            payloads = (b"a", b"b" * 2_000, b"c")
            client.send(
                *(
                    PublishPacket("a", payload, 1, packet_id=n + 1)
                    for n, payload in enumerate(payloads)
                )
            )
            answers = [client.receive() for _ in payloads]

        failed = {answer.packet_id: answer.reason.is_failure for answer in answers}
        assert failed == {1: False, 2: True, 3: False}
        assert [event.data for event in stored(realm, "a")] == [b"a", b"c"]


@pytest.mark.spec("M4")
def test_rights_are_those_of_the_channel() -> None:
    with penstock.Realm(
        access__mode="mandatory", access__password_rounds=4_096, access__password_length_min=1
    ) as realm:
        url = realm.listen_mqtt()
        with realm.connect() as session:
            session.access.create_user("device", "pw")
            session.access.grant("device@*", "access")
            session.access.grant("device@*", "publish", channel="mqtt")
        with PacketClient(url) as nobody, PacketClient(url) as wrong:
            assert nobody.connect().reason in (Reason.BAD_USER_OR_PASSWORD, Reason.NOT_AUTHORIZED)
            assert wrong.connect(user="device", password=b"no").reason == 0x86
        with connected(url, "d", user="device", password=b"pw") as client:
            assert client.publish("a").reason == Reason.SUCCESS
            refused = client.subscribe("a")
            assert refused.reasons == (Reason.NOT_AUTHORIZED,)
            assert "subscribe" in refused.properties.reason
            with realm.connect() as session:
                session.access.grant("device@*", "subscribe", channel="mqtt")
                assert client.subscribe("a").reasons == (Reason.GRANTED_QOS_1,)
                session.access.revoke("device@*", "subscribe", channel="mqtt")
            assert ended(client) == Reason.NOT_AUTHORIZED
