"""Messages for several receivers in one turn of the loop: a failure of one receiver ends its
connection alone, and gives back what its window held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
from structlog.testing import capture_logs

import penstock
from packages.mqtt.tests.clients import Hung, PacketClient, connected, heard
from packages.mqtt.tests.lines import KIB, LastingLine, plain
from penstock_mqtt import fan_out
from penstock_mqtt.connection import MqttConnection
from penstock_mqtt.durable_feed import SHARED_WINDOW, WINDOW
from penstock_mqtt.following import CREDIT
from penstock_mqtt.messages import TopicMessage, published_parts
from penstock_mqtt.outbox import Outbox
from penstock_mqtt.topic_index import TopicIndex
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5, PubackPacket
from penstock_mqtt.wire.properties import PacketProperties

HOUR = PacketProperties(session_expiry_s=3_600)
FAULT = RuntimeError("a fault")


class Faults:
    """The ids of the clients whose delivery fails, and the failures that the server has logged."""

    def __init__(self, lines: list[Any]) -> None:
        self.client_ids: set[str] = set()
        self._lines = lines

    def check(self, client_id: str) -> None:
        if client_id in self.client_ids:
            raise FAULT

    @property
    def logged(self) -> int:
        return sum(line["event"] == "mqtt.failed" for line in self._lines)


@pytest.fixture
def faults() -> Iterator[Faults]:
    with capture_logs() as lines:
        yield Faults(lines)


@pytest.fixture
def failing_outboxes(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Outboxes raise for the clients of `Faults.client_ids`."""
    send_messages = Outbox.send_messages

    def fail(outbox: Outbox, messages: Any, filters: Any, **options: Any) -> None:
        faults.check(filters[0].connection.client_id)
        send_messages(outbox, messages, filters, **options)

    monkeypatch.setattr(Outbox, "send_messages", fail)
    return faults


class Connect(Protocol):
    def __call__(self, client_id: str, version: int = ..., **fields: Any) -> PacketClient: ...


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Connects clients that are closed with the test."""
    with ExitStack() as clients:

        def connect(client_id: str, version: int = MQTT_5, **fields: Any) -> PacketClient:
            return clients.enter_context(connected(url, client_id, version, **fields))

        yield connect


def ends(client: PacketClient) -> None:
    """Check that the server closes the connection without sending a message."""
    with pytest.raises(Hung):
        client.receive()


def payloads(client: PacketClient, count: int) -> list[bytes]:
    """Receive messages and acknowledge each."""
    received = []
    for _ in range(count):
        message = client.receive()
        client.send(PubackPacket(message.packet_id))
        received.append(message.payload)
    return received


# --- live filters -----------------------------------------------------------------------------


@pytest.mark.spec("M4")
def test_a_live_filter_whose_outbox_raises_ends_its_connection_alone(
    connect: Connect, failing_outboxes: Faults
) -> None:
    failing_outboxes.client_ids.add("live-fails")
    first, failing, last, publisher = (
        connect(name) for name in ("live-first", "live-fails", "live-last", "live-writer")
    )
    for client in (first, failing, last):
        client.subscribe("live")
    publisher.publish("live", b"1")
    ends(failing)
    publisher.publish("live", b"2")

    assert payloads(first, 2) == payloads(last, 2) == [b"1", b"2"]
    assert failing_outboxes.logged == 1
    failing_outboxes.client_ids.clear()
    with connect("live-fails") as again:
        again.subscribe("live")
        publisher.publish("live", b"3")
        assert payloads(again, 1) == [b"3"]


@pytest.mark.spec("M4")
def test_a_connection_that_cannot_be_written_to_ends_alone(
    connect: Connect, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receivers of QoS 0 are sent the same bytes, without their outboxes."""
    write = MqttConnection.write

    def fail(connection: MqttConnection, data: bytes) -> None:
        if b"alike" in data and b"sent" in data:
            faults.check(connection.client_id)
        write(connection, data)

    monkeypatch.setattr(MqttConnection, "write", fail)
    faults.client_ids.add("alike-fails")
    first, failing, last, publisher = (
        connect(name) for name in ("alike-1", "alike-fails", "alike-2", "alike-writer")
    )
    for client in (first, failing, last):
        client.subscribe("alike", qos=0)
    publisher.publish("alike", b"sent")
    ends(failing)

    for client in (first, last):
        assert [message.payload for message in heard(client)] == [b"sent"]
    assert faults.logged == 1


@pytest.mark.spec("M4")
def test_a_version_whose_bytes_cannot_be_made_is_the_failure_of_its_receivers_alone(
    connect: Connect, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: TopicMessage, version: int, *rest: Any, **options: Any) -> Any:
        if version == MQTT_3:
            raise FAULT
        return published_parts(message, version, *rest, **options)

    monkeypatch.setattr(fan_out, "published_parts", fail)
    older = connect("version-older", MQTT_3)
    newer, publisher = connect("version-newer"), connect("version-writer")
    for client in (older, newer):
        client.subscribe("version", qos=0)
    publisher.publish("version", b"1")

    # The outbox writes each message of the older one by itself, which does not fail here.
    for client in (older, newer):
        assert [message.payload for message in heard(client)] == [b"1"]


@pytest.mark.spec("M4")
def test_a_topic_that_fails_leaves_other_topics_and_the_credit_of_the_channel(
    realm: penstock.Realm, connect: Connect, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = TopicIndex.find

    def fail(index: TopicIndex[Any], topic: str) -> Any:
        if topic == "topic/fails":
            raise FAULT
        return find(index, topic)

    monkeypatch.setattr(TopicIndex, "find", fail)
    client = connect("topic-reader")
    client.subscribe("topic/well")
    with realm.connect() as session:
        channel = session.channels.get("mqtt")
        channel.publish_many(
            [penstock.Event(b"1", properties={"topic": "topic/fails"})] * (CREDIT + 1)
        )
        channel.publish_many(
            [
                penstock.Event(b"2", properties={"topic": "topic/fails"}),
                penstock.Event(b"3", properties={"topic": "topic/well"}),
            ]
        )

    assert client.receive().payload == b"3"
    assert faults.logged >= 2


# --- durables ---------------------------------------------------------------------------------


@pytest.mark.spec("M6", "M12")
def test_a_durable_whose_outbox_raises_delivers_again_and_others_have_their_messages(
    connect: Connect, failing_outboxes: Faults
) -> None:
    count = 2 * WINDOW
    well = connect("durable-well", properties=HOUR)
    failing = connect("durable-fails", properties=HOUR)
    for client in (failing, well):
        client.subscribe("durable")
    failing_outboxes.client_ids.add("durable-fails")
    with connect("durable-writer") as publisher:
        for number in range(count):
            publisher.publish("durable", b"%d" % number)
    ends(failing)
    expected = [b"%d" % number for number in range(count)]
    assert payloads(well, count) == expected
    logged = failing_outboxes.logged
    assert logged > 0

    failing_outboxes.client_ids.clear()
    again = connect("durable-fails", clean_start=False, properties=HOUR)

    assert payloads(again, count) == expected, "the window is whole again"
    assert failing_outboxes.logged == logged


@pytest.mark.spec("M9")
def test_messages_of_a_shared_subscription_go_to_a_member_whose_outbox_is_well(
    connect: Connect, failing_outboxes: Faults
) -> None:
    count = 3 * SHARED_WINDOW
    failing, well = connect("shared-fails"), connect("shared-well")
    for client in (failing, well):
        client.subscribe("$share/group/shared")
    failing_outboxes.client_ids.add("shared-fails")
    with connect("shared-writer") as publisher:
        for number in range(count):
            publisher.publish("shared", b"%d" % number)
    ends(failing)

    assert sorted(payloads(well, count)) == sorted(b"%d" % number for number in range(count))
    assert failing_outboxes.logged > 0


class WithoutSize(bytes):
    """A payload whose bytes cannot be counted."""

    def __len__(self) -> int:
        raise FAULT


@pytest.mark.parametrize("failing", range(3))
def test_bytes_of_messages_that_could_not_be_queued_are_not_counted(failing: int) -> None:
    """A session outlives the failure, and its user would have a share that no message takes."""
    line = LastingLine()
    messages = [plain(KIB * 100)] * 3
    messages[failing] = plain(WithoutSize(KIB * 100))

    with pytest.raises(RuntimeError):
        line.give_of_durable(*messages)
    line.outbox.connection_lost()

    assert line.outbox.bytes.held == line.counted_bytes == 0
