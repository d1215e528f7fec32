"""Payloads of MQTT that are messages of Protocol Buffers, by the descriptors of a channel."""

from __future__ import annotations

import pytest
from google.protobuf import api_pb2, duration_pb2, struct_pb2

import penstock
from packages.mqtt.tests.clients import connected, heard

pytestmark = pytest.mark.spec("M16")


def test_a_payload_has_the_type_of_its_channel(realm: penstock.Realm, url: str) -> None:
    with realm.connect() as session, connected(url) as subscriber:
        channel = session.channels.create("times", topics="times/{of}", descriptors=duration_pb2)
        subscriber.subscribe("times/#")
        with connected(url) as client:
            for seconds in (3, 7):
                duration = duration_pb2.Duration(seconds=seconds)
                client.publish(f"times/{seconds}", duration.SerializeToString())
            assert client.publish("times/wrong", b"\xff").reason == 0
            assert client.publish("times/nothing").reason == 0

        (event,) = channel.browse(selector="seconds > 5 AND of = '7'")
        decoded: object = channel.messages().decode(event)  # a text, as JSON has durations
        assert decoded == "7s"
        types = [event.headers.get("message_type") for event in channel.browse()]
        assert types == ["google.protobuf.Duration"] * 3 + [None]
        assert len(heard(subscriber)) == 4


@pytest.mark.parametrize("descriptors", [struct_pb2, api_pb2])
def test_descriptors_with_several_types_name_none(
    realm: penstock.Realm, url: str, descriptors: object
) -> None:
    name = f"several-{descriptors.__name__.rpartition('.')[2]}"  # type: ignore[attr-defined]
    with realm.connect() as session, connected(url) as client:
        channel = session.channels.create(name, topics=f"{name}/#", descriptors=descriptors)
        client.publish(f"{name}/1", b"\n\x01a")
        (event,) = channel.browse()
        assert "message_type" not in event.headers


@pytest.mark.spec("M14")
def test_json_is_no_message(realm: penstock.Realm, url: str) -> None:
    with realm.connect() as session, connected(url) as client:
        channel = session.channels.create(
            "json-times", topics="json-times", payload="json", descriptors=duration_pb2
        )
        client.publish("json-times", b'{"seconds": 1}')
        (event,) = channel.browse()
        assert event.headers.get("message_type") is None
        assert event.properties["seconds"] == 1.0
