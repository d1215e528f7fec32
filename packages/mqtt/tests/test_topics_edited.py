"""Channels whose topics are edited: what waits there for sessions and groups is theirs, over a
restart as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import PacketClient, connected, heard
from packages.mqtt.tests.handshakes import Again, publish_wholly
from packages.mqtt.tests.handshakes import take as take_wholly
from packages.mqtt.tests.persistent_sessions import back, settled, take
from penstock_mqtt.wire.packets import PubackPacket

pytestmark = pytest.mark.spec("M6", "M12")


def make(realm: penstock.Realm, name: str, **attributes: Any) -> None:
    with realm.connect() as session:
        session.channels.create(name, **attributes)


def edit(realm: penstock.Realm, name: str, **attributes: Any) -> None:
    with realm.connect() as session:
        session.channels.get(name).edit(**attributes)
    settled(realm)


def durables(realm: penstock.Realm, name: str) -> list[str]:
    settled(realm)
    with realm.connect() as session:
        return [durable.name for durable in session.channels.get(name).durables.list()]


def publish(url: str, *topics: str) -> None:
    with connected(url) as client:
        for topic in topics:
            assert client.publish(topic, topic.encode()).reason == 0


@pytest.mark.parametrize("topics", [[], ["elsewhere/#"]])
def test_what_waits_in_a_channel_comes_though_its_topics_are_others_now(
    realm: penstock.Realm, url: str, topics: list[str]
) -> None:
    name = f"left-{len(topics)}"
    make(realm, name, topics=f"{name}/#")
    with back(url, name, present=False) as client:
        client.subscribe(f"{name}/#", qos=1)
    publish(url, f"{name}/1", f"{name}/2")
    edit(realm, name, topics=topics)
    publish(url, f"{name}/3")
    assert len(durables(realm, name)) == 1

    with back(url, name) as client:
        assert sorted(take(client, 3)) == [f"{name}/{number}".encode() for number in (1, 2, 3)]
        assert heard(client) == []
        assert durables(realm, name) == []
        publish(url, f"{name}/4")
        assert take(client, 1) == [f"{name}/4".encode()]
    edit(realm, name, topics=[])


def test_what_a_client_has_in_hand_comes_to_its_end(realm: penstock.Realm, url: str) -> None:
    make(realm, "hand", topics="hand/#")
    with back(url, "hand", present=False) as client, connected(url) as publisher:
        client.subscribe("hand/#", qos=2)
        publish_wholly(publisher, "hand/1", b"1")
        assert client.receive().payload == b"1"
        edit(realm, "hand", topics=[])
    with back(url, "hand") as client:
        assert take_wholly(client) == b"1"
        assert heard(client) == []
        assert durables(realm, "hand") == []


def test_a_durable_with_nothing_in_it_goes_at_once(realm: penstock.Realm, url: str) -> None:
    make(realm, "empty", topics="empty/#")
    with back(url, "empty-1", present=False) as client, back(url, "empty-2", present=False) as away:
        client.subscribe("empty/#", "$share/g/empty/#", qos=1)
        away.subscribe("empty/#", qos=1)
        away.close()
        assert len(durables(realm, "empty")) == 3
        edit(realm, "empty", topics=[])
        assert durables(realm, "empty") == []
        assert heard(client) == [], "it stays connected"
        edit(realm, "empty", topics=["empty/#"])
        assert len(durables(realm, "empty")) == 3
        publish(url, "empty/1")
        assert take(client, 2) == [b"empty/1"] * 2


def test_a_group_takes_what_waits_for_it(realm: penstock.Realm, url: str) -> None:
    make(realm, "group", topics="group/#")
    text = "$share/g/group/#"
    with back(url, "group-1", present=False) as one, back(url, "group-2", present=False) as two:
        one.subscribe(text, qos=1)
        two.subscribe(text, qos=1)
    publish(url, *(f"group/{number}" for number in range(30)))
    edit(realm, "group", topics=[])
    with back(url, "group-1") as one, back(url, "group-2") as two:
        payloads = {message.payload for client in (one, two) for message in hear_and_ack(client)}
        while len(payloads) < 30:
            payloads |= {
                message.payload for client in (one, two) for message in hear_and_ack(client)
            }
        assert durables(realm, "group") == []
        assert heard(one) == heard(two) == []


def hear_and_ack(client: PacketClient) -> list[Any]:
    """Return the messages that a client receives, after acknowledging them."""
    messages = heard(client)
    client.send(*(PubackPacket(message.packet_id) for message in messages))
    return messages


@pytest.mark.slow
def test_what_waits_survives_a_restart_and_sessions_that_end_leave_nothing(tmp_path: Path) -> None:
    realms = Again(tmp_path, restarts=True)
    make(realms.realm, "left", topics="left/#")
    for name in ("stays", "ends"):
        with back(realms.url, name, present=False) as client:
            client.subscribe("left/#", qos=1)
    publish(realms.url, "left/1")
    edit(realms.realm, "left", topics=[])
    url = realms.come_back()
    assert len(durables(realms.realm, "left")) == 2
    with connected(url, "ends", clean_start=True):
        assert len(durables(realms.realm, "left")) == 1
    with back(url, "stays") as client:
        assert take(client, 1) == [b"left/1"]
        assert heard(client) == []
        assert durables(realms.realm, "left") == []
    realms.close()


@pytest.mark.slow
def test_since_when_a_channel_has_topics_is_known_over_a_restart(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm, back(realm.listen_mqtt(), "c", present=False) as client:
        client.subscribe("late/#", qos=1)
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:  # nobody serves MQTT
        channel = session.channels.create("late")
        channel.publish(b"before", properties={"topic": "late/1"})
        channel.edit(topics=["late/#"])
        channel.publish(b"since", properties={"topic": "late/2"})
    with penstock.Realm(tmp_path) as realm, back(realm.listen_mqtt(), "c") as client:
        assert take(client, 1) == [b"since"]
        assert heard(client) == []
