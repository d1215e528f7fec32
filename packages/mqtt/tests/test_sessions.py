"""Sessions of MQTT that outlive their connection, and the server's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import Hung, PacketClient, connected, heard
from packages.mqtt.tests.internal_stores import made_before
from packages.mqtt.tests.persistent_sessions import HOUR, back, durables, settled, stored, take
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.session_durables import is_of_session
from penstock_mqtt.durable_feed import durable_of
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    DisconnectPacket,
    PubackPacket,
    PublishPacket,
    SubscribePacket,
    TopicSubscription,
    UnsubscribePacket,
    Will,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason
from penstock_testing.process import ServerProcess

VERSIONS = pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
pytestmark = pytest.mark.spec("M6")


@VERSIONS
def test_what_comes_while_a_client_is_away_waits_for_it(
    realm: penstock.Realm, url: str, version: int
) -> None:
    name = f"away-{version}"
    with back(url, name, version, present=False) as client:
        assert client.subscribe(f"{name}/+").reasons == (Reason.GRANTED_QOS_1,)
    with connected(url) as publisher:
        for number in range(150):  # more than are given out at once
            publisher.publish(f"{name}/a", b"%d" % number)
        publisher.publish("elsewhere", b"not for it")
    with back(url, name, version) as client:
        assert take(client, 150) == [b"%d" % number for number in range(150)]
        assert heard(client) == []

    assert len(stored(realm, f"{name}/a")) == 150, "a table keeps what a session has consumed"


@VERSIONS
def test_what_was_not_acknowledged_comes_again_in_order_with_its_id(url: str, version: int) -> None:
    name = f"again-{version}"
    with back(url, name, version, present=False) as client, connected(url) as publisher:
        client.subscribe(name)
        for number in range(4):
            publisher.publish(name, b"%d" % number)
        first = [client.receive() for _ in range(4)]
        client.send(PubackPacket(first[1].packet_id))
        assert heard(client) == []
    with back(url, name, version) as client:
        second = [client.receive() for _ in range(3)]
        assert heard(client) == []

    assert not any(message.is_duplicate for message in first)
    assert [(message.payload, message.packet_id, message.is_duplicate) for message in second] == [
        (message.payload, message.packet_id, True) for message in (first[0], *first[2:])
    ]


def test_a_client_gets_no_more_than_it_takes_when_it_comes_back(url: str) -> None:
    with back(url, "few", present=False) as client:
        client.subscribe("few")
    with connected(url) as publisher:
        for number in range(5):
            publisher.publish("few", b"%d" % number)
    two = PacketProperties(session_expiry_s=3_600, receive_maximum=2)
    with back(url, "few", properties=two) as client:
        first = [client.receive() for _ in range(2)]
        assert heard(client) == []
        client.send(PubackPacket(first[0].packet_id))
        assert client.receive().payload == b"2"


@VERSIONS
def test_a_clean_start_forgets_the_session(realm: penstock.Realm, url: str, version: int) -> None:
    name = f"clean-{version}"
    with back(url, name, version, present=False) as client:
        client.subscribe(name)
    assert durable_of(name, name) in durables(realm)
    with connected(url) as publisher:
        publisher.publish(name, b"never")
    with connected(url, name, version) as client:
        assert heard(client) == []
        assert durable_of(name, name) not in durables(realm)
    with back(url, name, version, present=False) as client:
        assert heard(client) == []


def test_a_session_ends_with_the_connection_that_says_so(realm: penstock.Realm, url: str) -> None:
    with back(url, "ends", present=False) as client:
        client.subscribe("ends")
        client.send(DisconnectPacket(properties=PacketProperties(session_expiry_s=0)))
        with pytest.raises(Hung):
            client.receive()
    with back(url, "ends", present=False):
        assert durable_of("ends", "ends") not in durables(realm)


def test_a_session_that_ends_with_its_connection_cannot_be_made_to_last(url: str) -> None:
    with connected(url, "short") as client:
        client.send(DisconnectPacket(properties=PacketProperties(session_expiry_s=5)))
        assert client.receive().reason == Reason.PROTOCOL_ERROR


def test_who_connects_again_takes_over_with_what_is_in_flight(url: str) -> None:
    with back(url, "twin", present=False) as older, connected(url) as publisher:
        older.subscribe("twin")
        publisher.publish("twin", b"1")
        assert older.receive().payload == b"1"
        with back(url, "twin") as newer:
            assert older.receive().reason == Reason.SESSION_TAKEN_OVER
            assert take(newer, 1) == [b"1"]
            publisher.publish("twin", b"2")
            assert take(newer, 1) == [b"2"]


def test_a_subscription_that_is_made_again_loses_nothing(url: str) -> None:
    with back(url, "again", present=False) as client:
        client.subscribe("again/#")
    with connected(url) as publisher:
        publisher.publish("again/1", b"1")
        with back(url, "again", properties=PacketProperties(session_expiry_s=60)) as client:
            assert client.receive().payload == b"1"
            number = PacketProperties(subscription_ids=(9,))
            client.send(SubscribePacket(7, (TopicSubscription("again/#", 1),), number))
            assert client.receive().reasons == (Reason.GRANTED_QOS_1,)
            publisher.publish("again/2", b"2")
            second = client.receive()
            assert (second.payload, second.properties.subscription_ids) == (b"2", (9,))


def test_a_subscription_that_is_given_up_leaves_nothing(realm: penstock.Realm, url: str) -> None:
    with back(url, "leaves", present=False) as client, connected(url) as publisher:
        client.subscribe("leaves")
        client.send(UnsubscribePacket(5, ("leaves", "other")))
        codes = (Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)
        assert client.receive().reasons == codes
        publisher.publish("leaves")
        assert heard(client) == []
        assert durable_of("leaves", "leaves") not in durables(realm)
    with back(url, "leaves") as client:
        assert heard(client) == []


def test_qos_0_is_for_who_is_there(realm: penstock.Realm, url: str) -> None:
    with back(url, "zero", present=False) as client, connected(url) as publisher:
        client.subscribe("zero", qos=0)
        publisher.publish("zero", b"1")
        assert client.receive() == PublishPacket("zero", b"1")
    with connected(url) as publisher:
        publisher.publish("zero", b"2")
    with back(url, "zero") as client, connected(url) as publisher:
        publisher.publish("zero", b"3")
        assert client.receive() == PublishPacket("zero", b"3")
        assert durable_of("zero", "zero") not in durables(realm)


def test_filters_that_overlap_each_have_a_copy_with_their_number(url: str) -> None:
    with back(url, "overlap", present=False) as client, connected(url) as publisher:
        for number, (text, qos) in enumerate((("overlap/+", 0), ("overlap/a", 1)), 1):
            properties = PacketProperties(subscription_ids=(number,))
            client.send(SubscribePacket(number, (TopicSubscription(text, qos),), properties))
            assert client.receive().reasons == (Reason(qos),)
        publisher.publish("overlap/a")
        got = sorted((client.receive() for _ in range(2)), key=lambda message: int(message.qos))

    assert [(message.qos, message.properties.subscription_ids) for message in got] == [
        (0, (1,)),
        (1, (2,)),
    ]


def test_no_local_holds_in_a_session(url: str) -> None:
    with back(url, "own", present=False) as client, connected(url) as publisher:
        client.subscribe("own", no_local=True)
        client.publish("own", b"mine")
        publisher.publish("own", b"theirs")
        assert take(client, 1) == [b"theirs"]
        assert heard(client) == []


def test_a_native_event_that_no_message_can_be_is_passed_over(
    realm: penstock.Realm, url: str
) -> None:
    with back(url, "native", present=False) as client, realm.connect() as session:
        client.subscribe("#")
        channel = session.channels.get("mqtt")
        channel.publish(b"x", properties={"topic": "a/+"})
        channel.publish(b"y", properties={"topic": "native/y"})
        assert take(client, 1) == [b"y"]
        client.send(UnsubscribePacket(5, ("#",)))
        assert client.receive().reasons == (Reason.SUCCESS,)


def test_retained_messages_are_owed_until_the_client_has_them(
    realm: penstock.Realm, url: str
) -> None:
    with connected(url) as publisher:
        for number in range(3):
            publisher.publish(f"owed/{number}", b"%d" % number, retain=True)
    one = PacketProperties(session_expiry_s=3_600, receive_maximum=1)
    with back(url, "owed", present=False, properties=one) as client:
        client.subscribe("owed/#")
        assert client.receive().payload == b"0"
    with back(url, "owed", properties=HOUR) as client:
        assert take(client, 3) == [b"0", b"1", b"2"]
        assert heard(client) == []
        settled(realm)
    with back(url, "owed") as client:
        assert heard(client) == []


@pytest.mark.spec("M4")
def test_a_session_is_its_users_and_needs_the_right_to_make_durables() -> None:
    with penstock.Realm(
        access__mode="mandatory", access__password_rounds=4_096, access__password_length_min=1
    ) as realm:
        url = realm.listen_mqtt()
        with realm.connect() as session:
            for user in ("device", "other"):
                session.access.create_user(user, "pw")
                session.access.grant(f"{user}@*", "access")
                session.access.grant(f"{user}@*", "subscribe", channel="mqtt")
            mine: dict[str, Any] = {"user": "device", "password": b"pw"}
            with back(url, "a", present=False, **mine) as client:
                assert client.subscribe("a").reasons == (Reason.NOT_AUTHORIZED,)
                assert client.subscribe("a", qos=0).reasons == (Reason.SUCCESS,)
                session.access.grant("device@*", "durable", channel="mqtt")
                assert client.subscribe("a").reasons == (Reason.GRANTED_QOS_1,)
        with back(url, "a", present=False, user="other", password=b"pw"):
            pass
        with back(url, "a", present=True, **mine):
            pass


@pytest.mark.spec("M8")
def test_a_session_expires_and_its_will_comes_first() -> None:
    with penstock.Realm() as realm:
        url = realm.listen_mqtt()
        short = PacketProperties(session_expiry_s=1)
        will = Will("gone", b"bye", 1, properties=PacketProperties(will_delay_s=600))
        with connected(url, "watcher") as watcher:
            watcher.subscribe("gone")
            with back(url, "short", present=False, properties=short, will=will) as client:
                client.subscribe("a")
            assert watcher.receive().payload == b"bye"
        with back(url, "short", present=False):
            assert not [durable for durable in durables(realm) if is_of_session(durable)]


@pytest.mark.spec("M8")
@VERSIONS
def test_a_will_that_waits_is_not_published_if_its_client_comes_back(
    realm: penstock.Realm, url: str, version: int
) -> None:
    name = f"returns-{version}"
    will = Will(name, b"bye", 1, properties=PacketProperties(will_delay_s=600))
    with back(url, name, present=False, will=will):
        pass
    with back(url, name):
        assert stored(realm, name) == []
    with back(url, name, will=Will(name, b"at once", 1)):
        pass
    with back(url, name):
        assert stored(realm, name) == [b"at once"]


def test_a_channel_that_is_not_fit_for_sessions_is_refused() -> None:
    with penstock.Realm() as realm:
        made_before(realm, "mqtt-sessions", Definition())
        with pytest.raises(InvalidArgument, match="publish key entry"):
            realm.listen_mqtt()


def test_durables_that_no_session_has_are_deleted_at_the_start(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm:
        realm.listen_mqtt()
        with realm.connect() as session:
            durable_list = session.channels.get("mqtt").durables
            durable_list.create(durable_of("nobody", "a"), type="serial")
            durable_list.create("mqtt:mine", type="serial")
    with penstock.Realm(tmp_path) as realm:
        realm.listen_mqtt()
        assert durables(realm) == ["mqtt:mine"]


def test_a_second_port_has_the_same_sessions(realm: penstock.Realm, url: str) -> None:
    with back(url, "ports", present=False) as client:
        client.subscribe("ports")
    with back(realm.listen_mqtt(), "ports"):
        pass


def test_a_restart_keeps_sessions_and_what_waits_for_them(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm:
        url = realm.listen_mqtt()
        with back(url, "kept", present=False) as client, connected(url) as publisher:
            client.subscribe("kept")
            publisher.publish("kept", b"1")
            publisher.publish("kept", b"2")
            assert take(client, 1) == [b"1"]
            assert heard(client) == [PublishPacket("kept", b"2", 1, packet_id=2)]
            settled(realm)
    with penstock.Realm(tmp_path) as realm:
        url = realm.listen_mqtt()
        with back(url, "kept") as client:
            assert take(client, 1) == [b"2"]
            assert heard(client) == []


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.spec("M8")
def test_a_kill_keeps_sessions_and_publishes_the_wills_of_who_was_there(tmp_path: Path) -> None:
    def url_of(server: ServerProcess) -> str:
        (listening,) = server.logged("mqtt.listening")
        return str(listening["url"])

    later = PacketProperties(will_delay_s=1)
    with ServerProcess(tmp_path / "data", "--mqtt-port", "0") as server:
        url = url_of(server)
        will = Will("w/2", b"2", 1, properties=later)
        with (
            back(url, "lasting", present=False, will=will) as lasting,
            connected(url, "brief", will=Will("w/1", b"1", 1)) as brief,
        ):
            lasting.subscribe("a/#", "w/#")
            for number in range(5):
                assert brief.publish("a/1", b"%d" % number) == PubackPacket(number + 1)
            got = [lasting.receive() for _ in range(5)]
            lasting.send(PubackPacket(got[0].packet_id))
            assert heard(lasting) == []
            server.kill()
    with ServerProcess(tmp_path / "data", "--mqtt-port", "0") as server:
        with connected(url_of(server), "watcher") as watcher:
            watcher.subscribe("w/#", "a/#")
            seen = {watcher.receive().payload}
            while b"2" not in seen:  # two wills, of which one may have been before the watcher
                seen.add(watcher.receive().payload)
        with back(url_of(server), "lasting") as client:
            messages = sorted({(message.topic, message.payload) for message in heard_all(client)})
        assert server.terminate() == 0

    expected = [("a/1", b"%d" % number) for number in range(1, 5)]
    assert [message for message in messages if message != ("a/1", b"0")] == [
        *expected,
        ("w/1", b"1"),
        ("w/2", b"2"),
    ]


def heard_all(client: PacketClient) -> list[Any]:
    """Return the topics of the messages that a client receives until it has received both wills."""
    messages: list[Any] = []
    while {"w/1", "w/2"} - {message.topic for message in messages}:
        messages.append(client.receive())
    return messages + heard(client)
