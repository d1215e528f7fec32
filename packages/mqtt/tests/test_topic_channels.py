"""Channels with topics of their own: where messages go, what they become, and who hears of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import Hung, connected, heard
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_mqtt.json_payloads import FEW
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5, PublishPacket
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason

LASTING = PacketProperties(session_expiry_s=3_600)


def events(realm: penstock.Realm, name: str) -> list[Any]:
    with realm.connect() as session:
        return list(session.channels.get(name).browse())


def make(realm: penstock.Realm, name: str, **attributes: Any) -> None:
    with realm.connect() as session:
        session.channels.create(name, **attributes)


@pytest.mark.spec("M12")
def test_a_message_goes_to_the_channel_of_its_topic(realm: penstock.Realm, url: str) -> None:
    make(realm, "temps", topics="a/{site}/{line}/temp")
    with connected(url, "sensor") as client:
        assert client.publish("a/ulm/3/temp", b"21.5").reason == 0
        client.publish("a/ulm/3/state", b"on")

    (event,) = events(realm, "temps")
    assert event.data == b"21.5"
    assert event.properties == {"topic": "a/ulm/3/temp", "site": "ulm", "line": "3"}
    assert event.headers["application_id"] == "sensor"
    assert [event.properties["topic"] for event in events(realm, "mqtt")][-1] == "a/ulm/3/state"


@pytest.mark.spec("M12")
def test_the_most_specific_filter_has_a_topic(realm: penstock.Realm, url: str) -> None:
    for name, topics in {
        "all-b": "b/#",
        "lines": ["b/{line}", "b/{line}/+/x"],
        "third": "b/3",
        "below": "b/+/y/{last}",
    }.items():
        make(realm, name, topics=topics)
    with connected(url) as client:
        for topic in ("b/3", "b/4", "b", "b/4/y/x", "b/4/y/z", "b/4/z"):
            client.publish(topic)

    topics_by_channel = {
        name: [event.properties["topic"] for event in events(realm, name)]
        for name in ("all-b", "lines", "third", "below")
    }
    assert topics_by_channel == {
        "all-b": ["b", "b/4/z"],
        "lines": ["b/4"],
        "third": ["b/3"],
        "below": ["b/4/y/x", "b/4/y/z"],
    }


@pytest.mark.spec("M12")
def test_a_filter_belongs_to_one_channel(realm: penstock.Realm) -> None:
    make(realm, "first", topics="c/{line}")
    make(realm, "second")

    with realm.connect() as session:
        with pytest.raises(InvalidArgument, match=r"'c/\+' of fourth belongs to first already"):
            session.channels.create("fourth", topics=["d4", "c/+"])
        with pytest.raises(InvalidArgument, match="of second belongs to first already"):
            session.channels.get("second").edit(topics="c/{other}")
        session.channels.get("first").edit(topics=["c/{other}", "c2"])  # its own


@pytest.mark.parametrize(
    ("topics", "said"),
    [
        ("a/{b", "a name for a level is all of it"),
        ("a/{b}c", "a name for a level is all of it"),
        ("a/{1}", "a name for a level is all of it"),
        ("a/{b}/{b}", "is there twice"),
        ("a/{topic}", "is the whole topic's"),
        ("a/#/b", "must be the last level"),
        ("$SYS/#", "reserved for the realm"),
        (["a/{b}", "a/+"], "are the same filter"),
    ],
)
@pytest.mark.spec("M12")
def test_a_template_that_is_wrong_is_refused(
    realm: penstock.Realm, topics: str | list[str], said: str
) -> None:
    with realm.connect() as session, pytest.raises(InvalidArgument, match=said):
        session.channels.create("wrong", topics=topics)


@pytest.mark.spec("M12")
def test_a_native_event_has_the_topic_of_its_levels(realm: penstock.Realm, url: str) -> None:
    make(realm, "cells", topics=["d/{site}/{cell}", "d/+/x/#"])
    with connected(url) as client, realm.connect() as session:
        client.subscribe("d/ulm/+", "e/#", qos=1)
        channel = session.channels.get("cells")
        channel.publish(b"1", properties={"site": "ulm", "cell": "7", "unit": "C"})
        channel.publish(b"2", properties={"site": "bonn", "cell": "7"})
        channel.publish(b"3", properties={"site": "ulm"})
        channel.publish(b"4", properties={"site": "ulm", "cell": "7/8"})
        channel.publish(b"5", properties={"topic": "d/ulm/9"})

        messages = [client.receive(), client.receive()]
        assert [(message.topic, message.payload) for message in messages] == [
            ("d/ulm/7", b"1"),
            ("d/ulm/9", b"5"),
        ]
        assert messages[0].properties.user_properties == (("unit", "C"),)
        assert heard(client) == []


@pytest.mark.spec("M12")
def test_who_has_subscribed_hears_of_a_channel_that_comes_later(
    realm: penstock.Realm, url: str
) -> None:
    with connected(url) as client, realm.connect() as session:
        client.subscribe("e/+", qos=1)
        channel = session.channels.create("later", topics="e/{n}")
        channel.publish(b"native", properties={"n": "1"})
        assert client.receive().topic == "e/1"
        with connected(url) as publisher:
            publisher.publish("e/2", b"x")
        assert client.receive().payload == b"x"

        channel.edit(topics=[])
        with connected(url) as publisher:
            publisher.publish("e/3", b"y")
        assert client.receive().payload == b"y"
    assert [event.properties.get("topic") for event in events(realm, "later")] == [None, "e/2"]


@pytest.mark.spec("M6", "M12")
def test_what_waits_for_a_session_comes_from_all_channels(realm: penstock.Realm, url: str) -> None:
    make(realm, "early", topics="f/early/{n}")
    with connected(url, "sleeper", properties=LASTING) as client:
        client.subscribe("f/#", qos=2)
    with realm.connect() as session:
        channel = session.channels.create("late", topics="f/late/{n}")
        channel.publish(b"1", properties={"n": "1"})
    with connected(url) as publisher:
        for topic in ("f/early/1", "f/late/2", "f/x"):
            publisher.publish(topic, b"2")

    with connected(url, "sleeper", clean_start=False) as client:
        messages = sorted(
            (message.topic, message.payload) for message in (client.receive() for _ in range(4))
        )
        assert messages == [
            ("f/early/1", b"2"),
            ("f/late/1", b"1"),
            ("f/late/2", b"2"),
            ("f/x", b"2"),
        ]
    with realm.connect() as session:
        session.channels.get("late").edit(topics=[])
    with connected(url, "sleeper", clean_start=True):
        pass
    with realm.connect() as session:
        assert session.channels.get("early").durables.list() == []
        assert session.channels.get("late").durables.list() == []


# --- JSON ----------------------------------------------------------------------------------


def json_payload(number: int, **fields: Any) -> bytes:
    return json.dumps({"temp": number + 0.5, "unit": "C", **fields}).encode()


def sent(url: str, topic: str, payloads: list[bytes], version: int = MQTT_5) -> list[int]:
    """Publish in one turn of the loop; gives the reasons that came back."""
    with connected(url, "json", version) as client:
        client.send(
            *(
                PublishPacket(f"{topic}/{number}", payload, 1, packet_id=number + 1)
                for number, payload in enumerate(payloads)
            )
        )
        answers = [client.receive() for _ in payloads]
    assert [answer.packet_id for answer in answers] == [*range(1, len(payloads) + 1)]
    return [int(answer.reason) for answer in answers]


@pytest.mark.spec("M14")
@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 3 * FEW])
def test_fields_are_typed_properties(realm: penstock.Realm, url: str, count: int) -> None:
    name = f"typed{count}"
    make(realm, name, topics=f"{name}/{{n}}", payload="json")
    nested = {"at": "2026-11-26T00:00:00Z", "tags": ["a", "b"], "gps": {"lat": 1, "ok": True}}
    assert set(sent(url, name, [json_payload(number, **nested) for number in range(count)])) == {0}

    stored_events = events(realm, name)
    assert [event.properties for event in stored_events] == [
        {"temp": number + 0.5, "unit": "C", **nested, "topic": f"{name}/{number}", "n": str(number)}
        for number in range(count)
    ]
    assert json.loads(stored_events[0].data) == {"temp": 0.5, "unit": "C", **nested}


@pytest.mark.spec("M14")
@pytest.mark.parametrize("count", [4, 2 * FEW])
def test_how_many_come_together_changes_nothing(
    realm: penstock.Realm, url: str, count: int
) -> None:
    name = f"mixed{count}"
    make(realm, name, topics=f"{name}/{{n}}", payload="json")
    payloads = [
        b'{"temp": 21, "n": "x", "topic": 1}',
        b'\n{ "temp":21.5,\n "more": {"a": null, "b": 1}}',
        b'{"temp": null}',
        b'{"other": "2026-11-26", "list": [1, null, 2.5]}',
    ]
    sent(url, name, payloads + [b'{"temp": 1}'] * (count - 4))

    assert [event.properties for event in events(realm, name)][:4] == [
        {"temp": 21.0, "n": "0", "topic": f"{name}/0"},
        {"temp": 21.5, "more": {"b": 1.0}, "n": "1", "topic": f"{name}/1"},
        {"n": "2", "topic": f"{name}/2"},
        {"other": "2026-11-26", "list": [1.0, None, 2.5], "n": "3", "topic": f"{name}/3"},
    ]
    assert {type(event.properties.get("temp")) for event in events(realm, name)} == {
        float,
        type(None),
    }


WRONG = (
    b"21.5",
    b"null",
    b"[]",
    b"text",
    b'{"a": 1',
    b'{"a": 1} {"a": 2}',
    b'{"$penstock": 1}',
    b'{"a": NaN}',
    b'{"a": "\xff"}',
    b'{},"v":{}',
    b'{}}\n{"v":{}',
    b'{"": 1}',
)


@pytest.mark.spec("M2", "M14")
@pytest.mark.parametrize("count", [0, 2 * FEW])
def test_what_is_no_object_is_refused_by_itself(
    realm: penstock.Realm, url: str, count: int
) -> None:
    name = f"wrong{count}"
    make(realm, name, topics=f"{name}/{{n}}", payload="json")
    right = [b'{"a": 1}'] * count
    reasons = sent(url, name, [b'{"a": 1}', *WRONG, *right, b'{"a": 2}'])

    refused = [Reason.PAYLOAD_FORMAT_INVALID] * len(WRONG)
    assert reasons == [0, *refused, *([0] * count), 0]
    assert [event.properties["a"] for event in events(realm, name)] == [1.0, *([1.0] * count), 2.0]
    with connected(url, "old", MQTT_3) as client:
        client.send(PublishPacket(f"{name}/x", b"no", 1, packet_id=1))
        with pytest.raises(Hung):
            client.receive()


@pytest.mark.spec("M14")
@pytest.mark.parametrize("count", [2, 2 * FEW])
def test_whole_numbers_stay_whole_where_the_channel_has_them(
    realm: penstock.Realm, url: str, count: int
) -> None:
    name = f"whole{count}"
    make(realm, name, topics=f"{name}/{{n}}", payload="json")
    with realm.connect() as session:
        session.channels.get(name).publish(b"", properties={"n": "native", "count": 1})
    sent(url, name, [b'{"count": 2, "other": 3}'] * count)

    _, *later = events(realm, name)
    assert {type(event.properties["count"]) for event in later} == {int}
    assert {type(event.properties["other"]) for event in later} == {float}


@pytest.mark.spec("M14", "E10")
@pytest.mark.parametrize("count", [3, 2 * FEW])
def test_a_whole_number_without_an_exact_double_stays_what_it_is(
    realm: penstock.Realm, url: str, count: int
) -> None:
    name = f"exact{count}"
    make(realm, name, topics=f"{name}/{{n}}", payload="json")
    sent(url, name, [b'{"v": 0.5, "id": 9007199254740993}', b'{"v": 9007199254740993}'])
    sent(url, name, [b'{"v": 20, "w": [1, 2.5]}'] * count)

    first, second, *others = (event.properties for event in events(realm, name))
    assert (first["v"], first["id"], second["v"]) == (0.5, (1 << 53) + 1, (1 << 53) + 1)
    assert {type(properties["v"]) for properties in others} == {float}, (
        "one message decides for no other"
    )
    assert others[-1]["w"] == [1.0, 2.5]


@pytest.mark.spec("M12", "M14")
def test_a_native_event_without_data_is_json_to_subscribers(
    realm: penstock.Realm, url: str
) -> None:
    make(realm, "twin", topics="twin/{n}", payload="json")
    with connected(url) as client, realm.connect() as session:
        client.subscribe("twin/+")
        session.channels.get("twin").publish(b"", properties={"n": "1", "temp": 2.5, "unit": "C"})
        message = client.receive()
        assert (message.topic, json.loads(message.payload)) == (
            "twin/1",
            {"temp": 2.5, "unit": "C"},
        )
        assert message.properties.user_properties == ()


@pytest.mark.spec("M5", "M12", "M14")
def test_what_is_retained_is_removed_by_nothing(realm: penstock.Realm, url: str) -> None:
    make(realm, "kept", topics="kept/{n}", payload="json")
    with connected(url) as client:
        client.publish("kept/1", b'{"a": 1}', retain=True)
        client.publish("kept/2", b'{"a": 2}', retain=True)
        assert client.publish("kept/2", b"", retain=True).reason == 0
        assert client.publish("kept/1", b"wrong", retain=True).reason == 0x99
    with connected(url) as client:
        client.subscribe("kept/+", qos=0)
        message = client.receive()
        assert heard(client) == []
        assert (message.topic, message.payload, message.retain) == ("kept/1", b'{"a": 1}', True)
    assert [event.properties.get("a") for event in events(realm, "kept")] == [1.0, 2.0, None]
