"""Rights on topics: what a client may do that may nothing on the channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from packages.mqtt.tests.clients import Hung, PacketClient, connected, heard
from penstock_core.access.acl import Acl, Entry, filled
from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import AccessDenied, InvalidArgument
from penstock_mqtt.wire.packets import PublishPacket, Will
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason

pytestmark = pytest.mark.spec("M15")
LASTING = PacketProperties(session_expiry_s=3_600)
DENIED = Reason.NOT_AUTHORIZED


@pytest.fixture(scope="module")
def guarded() -> Iterator[penstock.Realm]:
    with penstock.Realm(
        access__mode="mandatory", access__password_rounds=4_096, access__password_length_min=1
    ) as realm:
        with realm.connect() as session:
            access = session.access
            access.create_user("device", "pw")
            access.create_user("other", "pw")
            access.create_group("fleet", ["device"])
            access.grant("device@*", "access")
            access.grant("other@*", "access")
            access.grant("group:fleet", "publish", topic="dev/%c/#")
            access.grant("device@*", "subscribe", topic="cmd/%u/+")
            access.grant("*@*", "subscribe", "durable", topic="lasting/#")
            access.grant("other@*", "full", topic="#")
            session.channels.create("cells", topics=["dev/{client}/cell", "lasting/cell"])
        yield realm


@pytest.fixture(scope="module")
def line(guarded: penstock.Realm) -> str:
    return guarded.listen_mqtt()


def device(line: str, client_id: str = "d1", **fields: Any) -> PacketClient:
    return connected(line, client_id, user="device", password=b"pw", **fields)


@pytest.mark.parametrize(
    ("topic", "is_allowed"),
    [
        ("dev/d1", True),
        ("dev/d1/x", True),
        ("dev/d1/cell", True),
        ("dev/d2/x", False),
        ("dev", False),
        ("cmd/device/x", False),
        ("lasting/x", False),
    ],
)
def test_publishing_needs_a_filter_that_takes_the_topic(
    line: str, topic: str, is_allowed: bool
) -> None:
    with device(line) as client:
        assert client.publish(topic).reason == (0 if is_allowed else DENIED)


@pytest.mark.parametrize(
    ("wanted", "plain", "lasting"),
    [
        ("cmd/device/x", True, False),
        ("cmd/device/+", True, False),
        ("cmd/device/#", False, False),
        ("cmd/+/x", False, False),
        ("#", False, False),
        ("lasting/#", True, True),
        ("lasting/a", True, True),
        ("lasting", True, True),
        ("+/a", False, False),
        ("dev/d1/#", False, False),
        ("$share/g/lasting/a", True, True),
        ("$share/g/cmd/device/x", False, False),
    ],
)
def test_subscribing_needs_a_filter_that_takes_all_of_them(
    line: str, wanted: str, plain: bool, lasting: bool
) -> None:
    for is_allowed, client in (
        (plain, device(line)),
        (lasting, device(line, "d3", properties=LASTING)),
    ):
        with client:
            (reason,) = client.subscribe(wanted).reasons
            assert reason == (Reason.GRANTED_QOS_1 if is_allowed else DENIED)


@pytest.mark.parametrize("name", ["+", "#", "d1/#", "$SYS", "a/b"])
def test_a_client_id_is_no_part_of_a_filter(line: str, name: str) -> None:
    with device(line, name) as client:
        assert client.publish("dev/d2/x").reason == DENIED
        assert client.publish(f"dev/{name}/x".replace("+", "p").replace("#", "h")).reason == DENIED


def test_what_is_granted_is_given_and_nothing_else(guarded: penstock.Realm, line: str) -> None:
    with device(line, "d4", properties=LASTING) as client, guarded.connect() as session:
        client.subscribe("lasting/+")
        channel = session.channels.get("cells")
        channel.publish(b"1", properties={"topic": "lasting/cell"})
        channel.publish(b"2", properties={"topic": "dev/d4/cell"})
        assert client.receive().payload == b"1"
        assert heard(client) == []


def test_who_loses_a_topic_loses_the_connection(guarded: penstock.Realm, line: str) -> None:
    with guarded.connect() as session:
        session.access.grant("device@*", "subscribe", topic="short/%c")
        with device(line, "d5") as client:
            assert client.subscribe("short/d5").reasons == (Reason.GRANTED_QOS_1,)
            session.access.revoke("device@*", topic="short/%c")
            assert client.receive().reason == DENIED
            with pytest.raises(Hung):
                client.receive()
        assert "short/%c" not in session.access.topics()


def test_granting_is_checked_and_audited(guarded: penstock.Realm) -> None:
    with guarded.connect() as session:
        access = session.access
        for wrong, message in (
            ("a/#/b", "not a topic filter"),
            ("$SYS/#", "reserved for the realm"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                access.grant("device@*", "publish", topic=wrong)
        with pytest.raises(InvalidArgument, match="'push' is not a right on a topic"):
            access.grant("device@*", "push", topic="a")
        with pytest.raises(InvalidArgument, match="give only one of channel, queue and topic"):
            access.grant("device@*", "publish", topic="a", channel="mqtt")
        access.grant("device@*", "publish", topic="audited/+")
        newest = access.audit(1)[0]
        assert (newest.operation, newest.target) == (
            "topic.acl.change",
            "topic audited/+: +publish device@*",
        )
        (entry,) = access.entries(topic="audited/+").entries
        assert (entry.subject, entry.rights) == ("device@*", ("publish",))
    with guarded.connect("device") as session:
        for refused in (session.access.topics, lambda: session.access.entries(topic="a")):
            with pytest.raises(AccessDenied, match="manage_acl"):
                refused()


def test_the_cost_is_what_is_granted_to_a_client() -> None:
    acl = Acl()
    for number in range(50):
        acl.put("topic", f"{number}/%u", [Entry(f"user{number}@*", ("publish",))])
    acl.put("topic", "host/#", [Entry("*@10.0.0.1", ("full",))])

    grants = acl.on_topics(Principal("user7", "10.0.0.2"), "c")
    assert grants == [("7/user7", frozenset(("publish",)))]
    ((text, rights),) = acl.on_topics(Principal("nobody", "10.0.0.1"), "c")
    assert (text, "durable" in rights) == ("host/#", True)
    acl.put("topic", "7/%u", [])
    assert acl.on_topics(Principal("user7", "10.0.0.2"), "c") == []
    assert filled("%u/%c", "%c", "%u") == "%c/%u"


def test_publishing_without_an_answer_is_refused_by_the_end_of_the_connection(line: str) -> None:
    with device(line, "d6") as client:
        client.send(PublishPacket("dev/d7/x", b"", 0))
        assert client.receive().reason == DENIED


def test_a_will_needs_the_right_to_its_topic(guarded: penstock.Realm, line: str) -> None:
    with connected(line, "watcher", user="other", password=b"pw") as watcher:
        watcher.subscribe("dev/#")
        with PacketClient(line) as refused:
            will = Will("dev/d9/gone", b"dev/d9/gone", 1)  # it is not its own
            answer = refused.connect("d8", user="device", password=b"pw", will=will)
            assert answer.reason == Reason.NOT_AUTHORIZED
        with device(line, "d8", will=Will("dev/d8/gone", b"dev/d8/gone", 1)):
            pass
        assert watcher.receive().payload == b"dev/d8/gone"
        assert heard(watcher) == []

    with guarded.connect() as session, session.channels.get("mqtt").browse() as stored:
        topics = [event.properties.get("topic") for event in stored]
    assert "dev/d8/gone" in topics
    assert "dev/d9/gone" not in topics


@pytest.mark.spec("M6")
def test_a_filter_that_is_lowered_to_qos_0_does_not_wait_for_messages_without_a_right(
    guarded: penstock.Realm, line: str
) -> None:
    with guarded.connect() as session:
        session.access.create_user("lowering", "pw")
        session.access.grant("lowering@*", "access")
        session.access.grant("lowering@*", "subscribe", "durable", topic="low/#")

    def come() -> PacketClient:
        connect_fields: dict[str, Any] = {"properties": LASTING, "clean_start": False}
        return connected(line, "low", user="lowering", password=b"pw", **connect_fields)

    with come() as client:
        assert client.subscribe("low/#").reasons == (1,)
    with connected(line, "o", user="other", password=b"pw") as publisher:
        publisher.publish("low/1", b"before")
        with guarded.connect() as session:
            session.access.revoke("lowering@*", "durable", topic="low/#")
        with come() as client:
            assert heard(client) == []
            assert client.subscribe("low/#", qos=0).reasons == (0,)
            publisher.publish("low/2", b"after")
            assert client.receive() == PublishPacket("low/2", b"after")
    with guarded.connect() as session:
        names = [durable.name for durable in session.channels.get("mqtt").durables.list()]
    assert not any("low" in name for name in names)
