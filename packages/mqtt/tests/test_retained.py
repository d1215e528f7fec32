"""Retained messages of MQTT: published once, and delivered to every later subscriber."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import Hung, PacketClient, connected, heard
from packages.mqtt.tests.internal_stores import (
    definition_of,
    made_before,
    put_into,
    stored_in,
    take_away,
)
from packages.mqtt.tests.limited import limited
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidArgument, NameAlreadyBound
from penstock_mqtt import retained
from penstock_mqtt.wire.packets import (
    MQTT_3,
    MQTT_5,
    PubackPacket,
    PublishPacket,
    UnsubscribePacket,
    Will,
)
from penstock_mqtt.wire.properties import NO_PROPERTIES, PacketProperties
from penstock_mqtt.wire.reasons import Reason

VERSIONS = pytest.mark.parametrize("version", [MQTT_3, MQTT_5])
pytestmark = pytest.mark.spec("M5")


def receive_retained(client: PacketClient, last: str = "last") -> list[tuple[str, bytes, bool]]:
    """Return the messages that a client receives before a live message that is published now, each
    with its retain flag."""
    messages = []
    client.send(PublishPacket(last, b"."))
    while (message := client.receive()).topic != last:
        messages.append((message.topic, message.payload, message.retain))
        if message.packet_id:
            client.send(PubackPacket(message.packet_id))
    return messages


def retain(
    url: str, messages: dict[str, bytes], properties: PacketProperties = NO_PROPERTIES
) -> None:
    with connected(url, "thermometer") as client:
        for topic, payload in messages.items():
            assert not client.publish(topic, payload, retain=True, properties=properties).reason


def got(client: PacketClient, number: int) -> list[Any]:
    return [client.receive() for _ in range(number)]


def kept(realm: penstock.Realm, under: str) -> dict[str, bytes]:
    """The events of the channel of retained messages, by topic."""
    with realm.connect() as session:
        retained_events = list(session.mqtt.retained(f"{under}/#"))
    assert len({event.properties["topic"] for event in retained_events}) == len(retained_events)
    return {event.properties["topic"]: event.data for event in retained_events}


@VERSIONS
def test_the_newest_of_each_topic_is_given_to_whoever_subscribes_later(
    realm: penstock.Realm, url: str, version: int
) -> None:
    under = f"newest{version}"
    retain(url, {f"{under}/a": b"old", f"{under}/b": b"1", f"{under}/b/c": b"2"})
    retain(url, {f"{under}/a": b"new"})
    with connected(url) as client:
        client.publish(f"{under}/a", b"is not retained")

    with connected(url, version=version) as client:
        client.subscribe(f"{under}/+")
        messages = sorted(
            (message.topic, message.payload, message.qos, message.retain)
            for message in got(client, 2)
        )
        assert messages == [(f"{under}/a", b"new", 1, True), (f"{under}/b", b"1", 1, True)]
        client.subscribe(f"{under}/b/c", qos=0)
        assert got(client, 1) == [PublishPacket(f"{under}/b/c", b"2", retain=True)]
        assert heard(client) == []
    assert kept(realm, under) == {f"{under}/a": b"new", f"{under}/b": b"1", f"{under}/b/c": b"2"}


def test_one_turn_may_retain_a_topic_twice(realm: penstock.Realm, url: str) -> None:
    with connected(url) as client:
        client.send(
            *(
                PublishPacket(f"turn/{n % 2}", b"%d" % n, 1, packet_id=n + 1, retain=True)
                for n in range(100)
            )
        )
        assert [message.packet_id for message in got(client, 100)] == list(range(1, 101))

    assert kept(realm, "turn") == {"turn/0": b"98", "turn/1": b"99"}


@VERSIONS
def test_an_empty_message_removes_what_is_retained_and_is_given_as_any_other(
    realm: penstock.Realm, url: str, version: int
) -> None:
    topic = f"removed{version}/a"
    retain(url, {topic: b"1"})
    with connected(url) as watcher, connected(url, version=version) as client:
        watcher.subscribe(topic, retain_handling=2)
        client.publish(topic, b"", retain=True)

        assert (watcher.receive().payload, heard(client)) == (b"", [])
    with connected(url, version=version) as late:
        late.subscribe(topic, "last")
        assert receive_retained(late) == []
    removals = [
        event for event in stored_in(realm, "mqtt-retained") if event.properties["topic"] == topic
    ]
    assert all((removal.data, removal.ttl) == (b"", 1_000) for removal in removals)


def test_retain_handling_says_when_they_are_given(url: str) -> None:
    retain(url, {"handling": b"1"})
    with connected(url) as client:
        client.subscribe("last", retain_handling=2)
        client.subscribe("handling", retain_handling=2)
        assert receive_retained(client) == []
        client.subscribe("handling", retain_handling=1)
        assert receive_retained(client) == []
        for _ in range(2):
            client.subscribe("handling", retain_handling=0)
            (first,) = got(client, 1)
            assert (first.payload, first.retain) == (b"1", True)
        client.send(UnsubscribePacket(9, ("handling",)))
        assert client.receive().packet_id == 9
        client.subscribe("handling", retain_handling=1)
        assert got(client, 1)[0].payload == b"1"


def test_the_retain_flag_is_as_published_only_where_that_was_asked_for(url: str) -> None:
    with connected(url) as plain, connected(url) as keeping, connected(url, version=MQTT_3) as old:
        plain.subscribe("flag")
        old.subscribe("flag")
        keeping.subscribe("flag", retain_as_published=True)
        retain(url, {"flag": b"1"})
        with connected(url) as client:
            client.publish("flag", b"2")

        for client, flags in (
            (plain, [False, False]),
            (old, [False] * 2),
            (keeping, [True, False]),
        ):
            assert [message.retain for message in got(client, 2)] == flags


def test_the_qos_of_a_retained_message_is_the_lower_one_too(
    realm: penstock.Realm, url: str
) -> None:
    with connected(url) as client:
        client.send(PublishPacket("qos/0", b"0", retain=True))
        client.publish("qos/1", b"1", retain=True)
        client.subscribe("qos/+", qos=1)
        assert sorted((message.payload, message.qos) for message in got(client, 2)) == [
            (b"0", 0),
            (b"1", 1),
        ]
    with realm.connect() as session:
        retained_events = list(session.mqtt.retained("qos/+"))
    assert [event.persistent for event in retained_events] == [True, True]


def test_properties_of_a_retained_message_reach_who_comes_later(url: str) -> None:
    user = (("b", "1"), ("a", "2"))
    sent = PacketProperties(message_expiry_s=3_600, content_type="x/y", user_properties=user)
    retain(url, {"properties": b"1"}, sent)
    with connected(url) as client:
        client.subscribe("properties")
        properties = client.receive().properties

    assert properties.message_expiry_s in (3_599, 3_600)
    assert (properties.content_type, properties.user_properties) == ("x/y", user)


def test_overlapping_filters_are_as_subscriptions_one_after_the_other(url: str) -> None:
    retain(url, {"both/a": b"1"})
    with connected(url, "thermometer") as same, connected(url) as second:
        same.subscribe("both/#", no_local=True)
        assert heard(same) == []
        second.subscribe("both/a", "both/+", "both/b")
        assert [message.payload for message in got(second, 2)] == [b"1", b"1"]
        assert heard(second) == []


@pytest.mark.parametrize("text", ["it's/+", "ü ''/#", '\\\n%_"/+', "$private/+"])
def test_filters_find_what_is_retained_whatever_is_in_them(url: str, text: str) -> None:
    topic = text[:-1] + "x"
    retain(url, {topic: b"1"})
    with connected(url) as client:
        client.subscribe(text)
        assert client.receive().topic == topic


def test_a_wildcard_at_the_beginning_finds_no_private_topics(url: str) -> None:
    retain(url, {"$hidden/a": b"1", "a/$shown": b"2"})
    with connected(url) as client:
        client.subscribe("+/a", "#", "last")
        topics = {topic for topic, _, _ in receive_retained(client)}

    assert "a/$shown" in topics
    assert not {topic for topic in topics if topic.startswith("$")}


def test_topics_are_found_without_a_search(
    realm: penstock.Realm, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_: object) -> None:
        raise AssertionError("it looks at all that is retained")

    retain(url, {f"exact/{number}": b"%d" % number for number in range(5)})
    retain(url, {"exact/3": b""})
    monkeypatch.setattr(retained, "batches_of", searched)
    with connected(url) as client:
        client.subscribe("exact/2", "exact/4", "exact/3", "exact/none")
        assert [message.payload for message in got(client, 2)] == [b"2", b"4"]
        client.subscribe("exact/+", "none/#")
        assert [message.payload for message in got(client, 4)] == [b"0", b"1", b"2", b"4"]
    retain(url, {"exact/2": b"22", "exact/9": b"9"})
    with connected(url) as client:  # what is new is found, too
        client.subscribe("exact/#")
        assert [message.payload for message in got(client, 5)] == [b"0", b"1", b"4", b"22", b"9"]


def test_a_client_is_given_all_of_it_as_fast_as_it_takes_it(
    realm: penstock.Realm, url: str
) -> None:
    topics = {f"many/{number}": b"x" * 30 for number in range(45)}
    retain(url, topics)
    slow = PacketProperties(receive_maximum=2)
    with (
        limited(realm, waiting_max=3, page_max=10, flush_bytes=100),
        connected(url, properties=slow) as client,
    ):
        client.subscribe("many/+")
        messages = []
        for _ in topics:
            messages.append(client.receive())
            if len(messages) % 2 == 0:
                client.send(*(PubackPacket(message.packet_id) for message in messages[-2:]))

    assert [message.topic for message in messages] == list(topics)


@VERSIONS
def test_whoever_wants_everything_with_qos_0_is_given_it(
    version: int,
) -> None:
    with penstock.Realm() as realm:
        url = realm.listen_mqtt()
        messages = {f"all/{number}": b"%d" % number for number in range(8)}
        retain(url, messages | {"all/removed": b"x", "all/large": b"x" * 300})
        retain(url, {"all/removed": b""})
        retain(url, {"all/typed": b"t"}, PacketProperties(content_type="text"))
        retain(url, {"all/brief": b"b"}, PacketProperties(message_expiry_s=3_600))
        put_into(realm, "mqtt-retained", [({"topic": "$own/1"}, b"private")])
        properties = (
            PacketProperties(maximum_packet_bytes=200) if version == MQTT_5 else NO_PROPERTIES
        )
        large = {} if version == MQTT_5 else {"all/large": b"x" * 300}
        wanted = messages | large | {"all/typed": b"t", "all/brief": b"b"}
        with (
            limited(realm, together=3),
            connected(url, version=version, properties=properties) as client,
        ):
            client.subscribe("#", qos=0)
            message_by_topic = {message.topic: message for message in got(client, len(wanted))}
            assert heard(client) == []

    assert {topic: message.payload for topic, message in message_by_topic.items()} == wanted
    assert all(message.retain and message.qos == 0 for message in message_by_topic.values())
    if version == MQTT_5:
        assert message_by_topic["all/typed"].properties.content_type == "text"
        assert message_by_topic["all/brief"].properties.message_expiry_s


def test_several_filters_find_them_too(url: str) -> None:
    retain(url, {"wide/a": b"1", "wide/b": b"2", "wide/c": b"3"})
    with connected(url) as client:
        client.subscribe("wide/a", "wide/c")
        assert sorted(message.payload for message in got(client, 2)) == [b"1", b"3"]
        assert heard(client) == []


def test_a_newer_message_that_came_meanwhile_is_not_followed_by_the_older_one(
    realm: penstock.Realm, url: str
) -> None:
    retain(url, {"order/a": b"1", "order/b": b"1", "order/c": b"1", "order/d": b"1"})
    slow = PacketProperties(receive_maximum=1)
    with (
        limited(realm, waiting_max=10),
        connected(url, properties=slow) as client,
        connected(url) as watcher,
    ):
        client.subscribe("order/+")
        messages = got(client, 1)
        watcher.subscribe("order/d", retain_handling=2)
        retain(url, {"order/d": b"2"})
        assert watcher.receive().payload == b"2"  # so the newer one waits for the client, too
        while len(messages) < 4:
            client.send(PubackPacket(messages[-1].packet_id))
            messages.append(client.receive())
        client.send(PubackPacket(messages[-1].packet_id))
        assert heard(client) == []

    assert sorted((message.topic, message.payload) for message in messages) == [
        ("order/a", b"1"),
        ("order/b", b"1"),
        ("order/c", b"1"),
        ("order/d", b"2"),
    ]


@VERSIONS
def test_a_will_is_retained_where_it_says_so(url: str, version: int) -> None:
    topic = f"state/{version}"
    with connected(url) as watcher:
        watcher.subscribe(topic)
        for payload, retain_it in ((b"offline", True), (b"gone", False)):
            with connected(url, "lost", version, will=Will(topic, payload, 1, retain=retain_it)):
                pass
            last = watcher.receive()
            assert (last.payload, last.retain) == (payload, False)
    with connected(url) as late:
        late.subscribe(topic)
        last = late.receive()

    assert (last.payload, last.retain) == (b"offline", True)


def test_retained_messages_survive_a_restart(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm:
        retain(realm.listen_mqtt(), {"a": b"1", "b": b"2", "c": b"3"})
        with connected(realm.listen_mqtt()) as client:
            client.publish("a", b"", retain=True)
            client.send(PublishPacket("b", b"QoS 0", retain=True))
            assert heard(client) == []
    with penstock.Realm(tmp_path) as realm, connected(realm.listen_mqtt()) as client:
        client.subscribe("#")
        messages = sorted(
            (message.topic, message.payload, message.qos) for message in got(client, 2)
        )

    assert messages == [("b", b"QoS 0", 0), ("c", b"3", 1)]


def test_a_message_is_published_and_retained_or_neither() -> None:
    with penstock.Realm(limits__max_event_bytes=1_024) as realm:
        with connected(realm.listen_mqtt()) as client:
            payloads = (b"a", b"b" * 2_000, b"c")
            client.send(
                *(
                    PublishPacket(f"t/{n}", payload, 1, packet_id=n + 1, retain=True)
                    for n, payload in enumerate(payloads)
                )
            )
            answers = {answer.packet_id: answer.reason.is_failure for answer in got(client, 3)}
        with realm.connect() as session:
            published = [event.data for event in session.channels.get("mqtt").browse()]

        assert answers == {1: False, 2: True, 3: False}
        assert published == [b"a", b"c"]
        assert kept(realm, "t") == {"t/0": b"a", "t/2": b"c"}


@pytest.mark.spec("A6")
def test_where_nothing_can_be_retained_nothing_is_published_and_the_store_is_made_anew() -> None:
    with penstock.Realm() as realm:
        with connected(realm.listen_mqtt()) as client, realm.connect() as session:
            take_away(realm, "mqtt-retained")
            assert client.publish("a", b"1", retain=True).reason.is_failure
            assert client.publish("a", b"2") == PubackPacket(2)
            published = [event.data for event in session.channels.get("mqtt").browse()]
            assert client.publish("b", b"3", retain=True).reason == Reason.SUCCESS

        assert published == [b"2"]


@pytest.mark.spec("M5")
def test_so_many_topics_have_a_retained_message_and_the_rest_goes_on() -> None:
    with penstock.Realm(limits__mqtt_retained_messages_max=2) as realm, realm.connect() as session:
        with connected(realm.listen_mqtt()) as client:
            for topic in ("a", "b", "a"):
                assert client.publish(topic, b"1", retain=True).reason == Reason.SUCCESS
            refused = client.publish("c", b"too many", retain=True)
            assert refused.reason == Reason.QUOTA_EXCEEDED
            assert client.publish("c", b"2").reason == Reason.SUCCESS
            assert client.publish("b", b"3", retain=True).reason == Reason.SUCCESS

        published = [event.data for event in session.channels.get("mqtt").browse()]
        assert published == [b"1", b"1", b"1", b"2", b"3"]


@pytest.mark.parametrize("keys", [{}, {"topic": 2}, {"topic": 1, "line": 1}])
def test_a_channel_that_is_not_fit_for_it_is_refused(keys: dict[str, int]) -> None:
    with penstock.Realm(listen__mqtt_channel="plant") as realm, realm.connect() as session:
        session.channels.create("mqtt-retained", keys=keys)  # it is reserved beside `mqtt` only
        with pytest.raises(NameAlreadyBound, match="reserved for an internal store"):
            session.channels.create("plant-retained", keys=keys)
    with penstock.Realm() as realm:
        made_before(realm, "mqtt-retained", Definition(keys=keys))

        with pytest.raises(InvalidArgument, match="the publish key topic of depth 1"):
            realm.listen_mqtt()


@pytest.mark.parametrize(
    ("attributes", "type_", "sync"),
    [
        ({"type": "persistent", "storage": {"sync": "none"}}, "persistent", "none"),
        ({"type": "reliable"}, "reliable", "group"),
        ({"type": "transient"}, "mixed", "group"),
    ],
)
def test_the_channel_is_as_the_channel_of_all_topics(
    attributes: dict[str, Any], type_: str, sync: str
) -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        session.channels.create("mqtt", **attributes)
        url = realm.listen_mqtt()
        definition = definition_of(realm, "mqtt-retained")
        retain(url, {"a": b"1"}, PacketProperties(message_expiry_s=60))
        with connected(url) as client:
            client.subscribe("a")
            assert client.receive().properties.message_expiry_s in (59, 60)

    assert (definition.type, definition.keys, definition.event_ttl) == (type_, {"topic": 1}, True)
    assert (definition.storage.sync, definition.retain_consumed) == (sync, True)


def test_retained_messages_need_no_more_than_the_rights_of_the_channel() -> None:
    with penstock.Realm(
        access__mode="mandatory", access__password_rounds=4_096, access__password_length_min=1
    ) as realm:
        url = realm.listen_mqtt()
        with realm.connect() as session:
            for name, rights in (("writer", ["publish"]), ("reader", ["subscribe"])):
                session.access.create_user(name, "pw")
                session.access.grant(f"{name}@*", "access")
                session.access.grant(f"{name}@*", *rights, channel="mqtt")
        with (
            connected(url, "w", user="writer", password=b"pw") as writer,
            connected(url, "r", user="reader", password=b"pw") as reader,
        ):
            assert writer.publish("a", b"1", retain=True).reason == Reason.SUCCESS
            assert writer.subscribe("a").reasons == (Reason.NOT_AUTHORIZED,)
            assert heard(writer) == []
            assert reader.publish("a", b"2", retain=True).reason == Reason.NOT_AUTHORIZED
            reader.subscribe("a")
            assert reader.receive().payload == b"1"


def test_a_client_that_goes_meanwhile_is_forgotten(realm: penstock.Realm, url: str) -> None:
    retain(url, {f"going/{number}": b"1" for number in range(10)})
    twin = count()
    slow = PacketProperties(receive_maximum=1)
    with limited(realm, page_max=2), connected(url, "twin", properties=slow) as client:
        client.subscribe("going/+")
        assert client.receive().packet_id == 1
        with connected(url, "twin") as newer:
            client.receive()
            with pytest.raises(Hung):
                client.receive()
            newer.subscribe("going/+")
            assert [next(twin) for _ in got(newer, 10)] == list(range(10))
