"""Messages in flight whose events leave before the client has them: their ids come free again,
and mean nothing else to the client before that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import PacketClient, connected, heard
from packages.mqtt.tests.handshakes import Again, publish_wholly, take
from packages.mqtt.tests.internal_stores import stored_in
from packages.mqtt.tests.limited import limited
from packages.mqtt.tests.persistent_sessions import back, settled
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    UnsubscribePacket,
)
from penstock_mqtt.wire.reasons import Reason

pytestmark = pytest.mark.spec("M7")


def ids_in_use(realm: penstock.Realm, client_id: str) -> list[str]:
    """The entries of ids of QoS 2 that are stored for a client."""
    settled(realm)
    stored = stored_in(realm, "mqtt-sessions")
    entries = [(str(event.properties["entry"]), event.data) for event in stored]
    return [
        name
        for name, data in entries
        if data and name.startswith("sent/") and name.endswith(f"/{client_id}")
    ]


def in_flight(url: str, name: str, qos: int) -> int:
    """Have a message in flight to a client that goes; gives its packet id."""
    with back(url, name, present=False) as client, connected(url) as publisher:
        client.subscribe(f"{name}/#", qos=qos)
        publish_wholly(publisher, f"{name}/1", b"goes")
        message = client.receive()
        assert isinstance(message, PublishPacket)
        assert (message.payload, message.qos) == (b"goes", qos)
    return message.packet_id


def purge(realm: penstock.Realm, name: str) -> None:
    settled(realm)
    with realm.connect() as session:
        channel = session.channels.get("mqtt")
        assert channel.purge(selector=f"topic MATCHES '{name}/#'") == 1


@pytest.fixture(params=["connection", "server"])
def realms(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Again]:
    realms_of_test = Again(tmp_path, restarts=request.param == "server")
    yield realms_of_test
    realms_of_test.close()


@pytest.mark.slow
@pytest.mark.parametrize("reason", [Reason.SUCCESS, Reason.PACKET_ID_NOT_FOUND])
def test_a_client_lets_go_of_a_message_that_is_gone(realms: Again, reason: Reason) -> None:
    packet_id = in_flight(realms.url, "c", 2)
    purge(realms.realm, "c")
    with back(realms.come_back(), "c") as client, connected(realms.url) as publisher:
        assert client.receive() == PubrelPacket(packet_id)
        assert ids_in_use(realms.realm, "c") == [f"sent/{packet_id}/c"]
        client.send(PubcompPacket(packet_id, reason))
        publish_wholly(publisher, "c/2", b"next")
        assert take(client) == b"next"
        assert heard(client) == []
        assert ids_in_use(realms.realm, "c") == []
    with back(realms.come_back(), "c") as client:
        assert heard(client) == []


@pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
def test_a_client_that_does_not_answer_is_told_again(
    realm: penstock.Realm, url: str, version: int
) -> None:
    name = f"told-again-{version}"
    packet_id = in_flight(url, name, 2)
    purge(realm, name)
    for _ in range(2):
        with back(url, name, version) as client:
            assert client.receive() == PubrelPacket(packet_id)
            assert heard(client) == []


@pytest.mark.parametrize("qos", [1, 2])
def test_ids_of_what_is_gone_are_used_again(realm: penstock.Realm, url: str, qos: int) -> None:
    name = f"used-again-{qos}"
    with limited(realm, packet_ids=1):
        packet_id = in_flight(url, name, qos)
    purge(realm, name)
    with back(url, name) as client, connected(url) as publisher:
        if qos == 2:
            assert client.receive() == PubrelPacket(packet_id)
            client.send(PubcompPacket(packet_id))
        publish_wholly(publisher, f"{name}/2", b"next")
        message = client.receive()
        assert (message.payload, message.packet_id) == (b"next", packet_id)
        assert not message.is_duplicate


@pytest.mark.parametrize("attributes", [{"ttl": 1}, {"capacity": 1}])
def test_what_has_expired_or_was_evicted_is_gone(attributes: Any) -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        url = realm.listen_mqtt()
        packet_id = in_flight(url, "c", 2)
        channel = session.channels.get("mqtt")
        channel.edit(**attributes)
        with connected(url) as publisher:
            publish_wholly(publisher, "last", b"")
        while any(event.data for event in channel.browse()):
            pass
        with back(url, "c") as client:
            assert client.receive() == PubrelPacket(packet_id)


def test_what_is_purged_in_the_hands_of_a_client_comes_to_its_end(
    realm: penstock.Realm, url: str
) -> None:
    with back(url, "hands", present=False) as client, connected(url) as publisher:
        client.subscribe("hands/#", qos=2)
        publish_wholly(publisher, "hands/1", b"1")
        message = client.receive()
        purge(realm, "hands")
        completed(client, message.packet_id)
        assert heard(client) == []
        assert ids_in_use(realm, "hands") == []


def test_what_a_seek_skips_in_the_hands_of_a_client_comes_to_its_end(
    realm: penstock.Realm, url: str
) -> None:
    with back(url, "sought", present=False) as client, connected(url) as publisher:
        client.subscribe("sought/#", qos=2)
        publish_wholly(publisher, "sought/1", b"1")
        message = client.receive()
        with realm.connect() as session:
            durables = session.channels.get("mqtt").durables
            (name,) = [durable.name for durable in durables.list() if ":sought:" in durable.name]
            durables.get(name).seek("latest")
        settled(realm)
        completed(client, message.packet_id)
        assert ids_in_use(realm, "sought") == []
        publish_wholly(publisher, "sought/2", b"2")
        assert take(client) == b"2"


def completed(client: PacketClient, packet_id: int) -> None:
    client.send(PubrecPacket(packet_id))
    assert client.receive() == PubrelPacket(packet_id)
    client.send(PubcompPacket(packet_id))
    assert heard(client) == []


@pytest.mark.spec("M12")
@pytest.mark.parametrize("is_connected", [True, False])
def test_what_is_in_flight_from_a_channel_that_is_deleted_comes_to_its_end(
    realm: penstock.Realm, url: str, is_connected: bool
) -> None:
    name = f"deleted-{is_connected}"
    with realm.connect() as session:
        session.channels.create(name, topics=f"{name}/#")
        client = back(url, name, present=False)
        client.subscribe(f"{name}/#", qos=2)
        with connected(url) as publisher:
            publish_wholly(publisher, f"{name}/1", b"1")
        packet_id = client.receive().packet_id
        if not is_connected:
            client.close()
            settled(realm)
        session.channels.delete(name)
    if is_connected:
        completed(client, packet_id)
    else:
        client = back(url, name)
        assert client.receive() == PubrelPacket(packet_id)
        client.send(PubcompPacket(packet_id))
        assert heard(client) == []
    assert ids_in_use(realm, name) == []
    client.close()


@pytest.mark.slow
def test_what_was_in_flight_by_a_subscription_that_was_given_up_is_let_go_of_after_a_restart(
    tmp_path: Path,
) -> None:
    realms = Again(tmp_path, restarts=True)
    with back(realms.url, "c", present=False) as client, connected(realms.url) as publisher:
        client.subscribe("a", qos=2)
        publish_wholly(publisher, "a", b"1")
        message = client.receive()
        client.send(UnsubscribePacket(5, ("a",)))
        assert client.receive().reasons == (Reason.SUCCESS,)
    with back(realms.come_back(), "c") as client:
        assert client.receive() == PubrelPacket(message.packet_id)
        client.send(PubcompPacket(message.packet_id))
        assert heard(client) == []
        assert ids_in_use(realms.realm, "c") == []
    realms.close()


@pytest.mark.slow
@pytest.mark.spec("M5")
def test_a_retained_message_that_was_replaced_is_let_go_of(realms: Again) -> None:
    with connected(realms.url) as publisher:
        publish_wholly(publisher, "r/1", b"older", retain=True)
        with back(realms.url, "c", present=False) as client:
            client.subscribe("r/#", qos=2)
            older = client.receive()
            assert older.payload == b"older"
        settled(realms.realm)
        publish_wholly(publisher, "r/1", b"newer", retain=True)
    with back(realms.come_back(), "c") as client:
        payloads, released = list[bytes](), list[int]()
        while not payloads or older.packet_id not in released or len(released) <= len(payloads):
            packet = client.receive()
            if isinstance(packet, PublishPacket):
                payloads.append(packet.payload)
                client.send(PubrecPacket(packet.packet_id))
            else:
                released.append(packet.packet_id)
                client.send(PubcompPacket(packet.packet_id))
        assert set(payloads) == {b"newer"}
        assert heard(client) == []
        assert ids_in_use(realms.realm, "c") == []
