"""A lasting session lowers a subscription to QoS 0: its durable delivers the messages that wait
there and is removed, and later messages come as they are published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import PacketClient, connected, heard
from packages.mqtt.tests.persistent_sessions import back, durables, take
from penstock_mqtt.durable_feed import durable_of
from penstock_mqtt.wire.packets import PubackPacket, UnsubscribePacket
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason
from tests.patience import until

pytestmark = pytest.mark.spec("M6")
ONE_AT_A_TIME = PacketProperties(session_expiry_s=3_600, receive_maximum=1)


def lower(client: PacketClient, topic: str) -> None:
    assert client.subscribe(topic, qos=0).reasons == (Reason.SUCCESS,)


def has_durable(realm: penstock.Realm, name: str) -> Callable[[], bool]:
    return lambda: durable_of(name, name) in durables(realm)


def wait_until_deleted(realm: penstock.Realm, name: str) -> None:
    until(lambda: not has_durable(realm, name)())


def payloads(client: PacketClient, count: int) -> list[tuple[bytes, int]]:
    """Receive messages, and acknowledge those of QoS 1."""
    received = []
    for _ in range(count):
        message: Any = client.receive()
        if message.qos:
            client.send(PubackPacket(message.packet_id))
        received.append((message.payload, int(message.qos)))
    return received


def test_a_durable_without_messages_goes_at_once(realm: penstock.Realm, url: str) -> None:
    with back(url, "lower", present=False) as client, connected(url) as publisher:
        client.subscribe("lower")
        publisher.publish("lower", b"1")
        assert take(client, 1) == [b"1"]
        assert heard(client) == []
        lower(client, "lower")
        wait_until_deleted(realm, "lower")
        publisher.publish("lower", b"2")
        assert payloads(client, 1) == [(b"2", 0)]
    with connected(url) as publisher:
        publisher.publish("lower", b"nobody is there")
    with back(url, "lower") as client, connected(url) as publisher:
        publisher.publish("lower", b"3")
        assert payloads(client, 1) == [(b"3", 0)]
        assert not has_durable(realm, "lower")()


def test_messages_that_wait_come_in_order_before_the_durable_goes(
    realm: penstock.Realm, url: str
) -> None:
    count = 300  # more than are given out at once
    with (
        back(url, "waits", present=False, properties=ONE_AT_A_TIME) as client,
        connected(url) as publisher,
    ):
        client.subscribe("waits")
        for number in range(count):
            publisher.publish("waits", b"%d" % number)
        first = client.receive()
        lower(client, "waits")
        publisher.publish("waits", b"later")
        assert has_durable(realm, "waits")()
        client.send(PubackPacket(first.packet_id))
        come = [payload for payload, _ in payloads(client, count)]
        assert come == [*(b"%d" % number for number in range(1, count)), b"later"]
        wait_until_deleted(realm, "waits")
        publisher.publish("waits", b"live")
        assert payloads(client, 1) == [(b"live", 0)]
        assert heard(client) == []


def test_messages_that_wait_outlive_the_connection_and_the_server(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm:
        url = realm.listen_mqtt()
        with (
            back(url, "stays", present=False, properties=ONE_AT_A_TIME) as client,
            connected(url) as publisher,
        ):
            client.subscribe("stays")
            for number in range(3):
                publisher.publish("stays", b"%d" % number)
            assert client.receive().payload == b"0"
            lower(client, "stays")
    with penstock.Realm(tmp_path) as realm, back(realm.listen_mqtt(), "stays") as client:
        assert [payload for payload, _ in payloads(client, 3)] == [b"0", b"1", b"2"]
        wait_until_deleted(realm, "stays")
        assert heard(client) == []


def test_a_client_that_raises_the_qos_again_keeps_its_durable(
    realm: penstock.Realm, url: str
) -> None:
    with (
        back(url, "raised", present=False, properties=ONE_AT_A_TIME) as client,
        connected(url) as publisher,
    ):
        client.subscribe("raised")
        publisher.publish("raised", b"1")
        first = client.receive()
        lower(client, "raised")
        assert client.subscribe("raised").reasons == (Reason.GRANTED_QOS_1,)
        client.send(PubackPacket(first.packet_id))
        publisher.publish("raised", b"2")
        assert payloads(client, 1) == [(b"2", 1)]
        assert has_durable(realm, "raised")()
    with connected(url) as publisher:
        publisher.publish("raised", b"3")
    with back(url, "raised") as client:
        assert payloads(client, 1) == [(b"3", 1)]


def test_a_client_that_unsubscribes_meanwhile_leaves_nothing(
    realm: penstock.Realm, url: str
) -> None:
    with (
        back(url, "ends", present=False, properties=ONE_AT_A_TIME) as client,
        connected(url) as publisher,
    ):
        client.subscribe("ends")
        publisher.publish("ends", b"1")
        client.receive()
        lower(client, "ends")
        client.send(UnsubscribePacket(5, ("ends",)))
        assert client.receive().reasons == (Reason.SUCCESS,)
        assert not has_durable(realm, "ends")()


def test_messages_of_channels_with_topics_come_before_their_durables_go(
    realm: penstock.Realm, url: str
) -> None:
    with realm.connect() as session:
        channel = session.channels.create("lowered", topics="site/+/temp")
        with (
            back(url, "sites", present=False, properties=ONE_AT_A_TIME) as client,
            connected(url) as publisher,
        ):
            client.subscribe("site/#")
            for topic in ("site/1/temp", "site/1/state", "site/2/temp"):
                publisher.publish(topic, topic.encode())
            first = client.receive()
            lower(client, "site/#")
            client.send(PubackPacket(first.packet_id))
            rest = [payload for payload, _ in payloads(client, 2)]
            assert sorted([first.payload, *rest]) == [
                b"site/1/state",
                b"site/1/temp",
                b"site/2/temp",
            ]
            until(lambda: not channel.durables.list())
            publisher.publish("site/3/temp", b"live")
            publisher.publish("site/3/state", b"live")
            assert payloads(client, 2) == [(b"live", 0)] * 2
            assert heard(client) == []
        assert durable_of("sites", "site/#") not in durables(realm)
