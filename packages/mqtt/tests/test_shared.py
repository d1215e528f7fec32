"""Shared subscriptions of MQTT: of a group, each message goes to one."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from packages.mqtt.tests.clients import PacketClient, connected, heard
from packages.mqtt.tests.persistent_sessions import back, durables, settled, take
from penstock_mqtt.durable_feed import shared_durable_of
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    PubackPacket,
    PublishPacket,
    UnsubscribePacket,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason

pytestmark = pytest.mark.spec("M9")


def receive_all(clients: list[PacketClient]) -> list[list[bytes]]:
    """Return the payloads that each client receives and acknowledges until no more arrive."""
    payloads: list[list[bytes]] = [[] for _ in clients]
    more = True
    while more:
        more = False
        for client, mine in zip(clients, payloads, strict=True):
            for message in heard(client):
                client.send(PubackPacket(message.packet_id))
                mine.append(message.payload)
                more = True
    return payloads


@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
def test_each_message_goes_to_one_of_a_group(url: str, version: int) -> None:
    topic = f"each/{version}"
    with (
        connected(url, version=version) as one,
        connected(url, version=version) as two,
        connected(url) as publisher,
    ):
        for client in (one, two):
            assert client.subscribe(f"$share/g/{topic}").reasons == (Reason.GRANTED_QOS_1,)
        for number in range(60):
            publisher.publish(topic, b"%d" % number)
        first, second = receive_all([one, two])

    assert sorted(first + second) == sorted(b"%d" % number for number in range(60))
    assert first
    assert second


def test_a_member_that_takes_one_message_at_a_time_leaves_the_others_to_others(url: str) -> None:
    one_by_one = PacketProperties(receive_maximum=1)
    with (
        connected(url, properties=one_by_one) as slow,
        connected(url) as quick,
        connected(url) as publisher,
    ):
        for client in (slow, quick):
            client.subscribe("$share/g/slow")
        for number in range(4):
            publisher.publish("slow", b"%d" % number)
        assert [len(heard(client)) for client in (slow, quick)] == [1, 3]


def test_groups_and_other_subscriptions_have_all_of_it_each(url: str) -> None:
    with connected(url) as one, connected(url) as two, connected(url) as publisher:
        one.subscribe("$share/a/all/+", "all/#")
        two.subscribe("$share/b/all/+")
        publisher.publish("all/1", b"1")
        assert receive_all([one, two]) == [[b"1", b"1"], [b"1"]]


def test_what_a_member_has_not_acknowledged_goes_to_another(url: str) -> None:
    with connected(url) as one, connected(url) as publisher:
        one.subscribe("$share/g/again")
        publisher.publish("again", b"1")
        assert one.receive().payload == b"1"
        with connected(url) as two:
            two.subscribe("$share/g/again")
            one.close()
            assert take(two, 1) == [b"1"]


def test_the_granted_qos_is_kept_and_2_is_not_granted(url: str) -> None:
    with connected(url) as zero, connected(url) as two, connected(url) as publisher:
        assert zero.subscribe("$share/zero/qos", qos=0).reasons == (Reason.SUCCESS,)
        assert two.subscribe("$share/two/qos", qos=2).reasons == (Reason.GRANTED_QOS_1,)
        publisher.publish("qos", b"1")
        assert zero.receive() == PublishPacket("qos", b"1")
        assert two.receive().qos == 1


def test_what_one_refuses_goes_to_nobody(url: str) -> None:
    with connected(url) as one, connected(url) as two, connected(url) as publisher:
        one.subscribe("$share/g/refused")
        publisher.publish("refused", b"1")
        message = one.receive()
        one.send(PubackPacket(message.packet_id, Reason.UNSPECIFIED))
        assert heard(one) == []
        two.subscribe("$share/g/refused")
        one.close()
        assert heard(two) == []


def test_retained_messages_are_not_for_groups(url: str) -> None:
    with connected(url) as client:
        client.publish("kept", b"1", retain=True)
        client.subscribe("$share/g/kept")
        assert heard(client) == []


def test_a_group_is_gone_with_its_last_member(realm: penstock.Realm, url: str) -> None:
    name = shared_durable_of("$share/g/last")
    with connected(url) as one, connected(url) as two:
        for client in (one, two):
            client.subscribe("$share/g/last")
        one.send(UnsubscribePacket(5, ("$share/g/last",)))
        assert one.receive().reasons == (Reason.SUCCESS,)
        assert name in durables(realm)
        two.send(UnsubscribePacket(5, ("$share/g/last",)))
        assert two.receive().reasons == (Reason.SUCCESS,)
        assert name not in durables(realm)
        two.subscribe("$share/g/last")
        assert name in durables(realm)
    settled(realm)
    with connected(url) as client:
        heard(client)
        assert name not in durables(realm)


def test_a_group_waits_for_members_whose_sessions_last(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm:
        url = realm.listen_mqtt()
        with back(url, "member", present=False) as client, connected(url) as brief:
            client.subscribe("$share/g/waits")
            brief.subscribe("$share/g/waits")
        with connected(url) as publisher:
            publisher.publish("waits", b"1")
    with penstock.Realm(tmp_path) as realm:
        url = realm.listen_mqtt()
        with back(url, "member") as client:
            assert take(client, 1) == [b"1"]
        with connected(url, "member") as client:
            assert heard(client) == []
            assert durables(realm) == []


def test_a_member_that_comes_back_shares_again(url: str) -> None:
    properties = PacketProperties(session_expiry_s=3_600, receive_maximum=1)
    with back(url, "returns", present=False, properties=properties) as client:
        client.subscribe("$share/g/returns")
    with connected(url) as publisher:
        for number in range(3):
            publisher.publish("returns", b"%d" % number)
    with back(url, "returns", properties=properties) as client:
        assert client.receive().payload == b"0"
    with back(url, "returns", properties=properties) as client:
        assert take(client, 3) == [b"0", b"1", b"2"]
        assert heard(client) == []
