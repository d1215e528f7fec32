"""Bridges from MQTT sources that fail at any packet: each message of QoS 2 is stored once."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Flag

import pytest

import penstock
from packages.tools.tests.bridge.mqtt_messages import (
    COUNT,
    bridged,
    messages,
    numbers_in,
    source_of,
)
from packages.tools.tests.bridge.strange_mqtt import StrangeMqtt
from penstock.client.sync.sync import Channel
from penstock_core.vocabulary.errors import EventTooLarge, IllegalState
from penstock_mqtt.wire.packets import (
    MQTT_3,
    Acknowledgement,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PubackPacket,
    PubcompPacket,
    PublishPacket,
    PubrecPacket,
    PubrelPacket,
    SubscribePacket,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason
from penstock_tools.bridge import running, sources
from penstock_tools.bridge.ledger import BridgeLedger
from penstock_tools.bridge.running import Bridge
from penstock_tools.bridge.sources import SourceLost


@pytest.fixture(autouse=True)
def new(session: penstock.Session, monkeypatch: pytest.MonkeyPatch) -> Channel:
    monkeypatch.setattr(running, "RETRY_S", (0.01,))
    return session.channels.create("new", type="persistent")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_arrive_in_order_and_are_acknowledged(
    session: penstock.Session, new: Channel, qos: int
) -> None:
    with StrangeMqtt(messages(qos)) as broker:
        steps = bridged(session, broker.url)

    events = list(new.subscribe(start="earliest", timeout=0.2))
    assert [int(event.data) for event in events] == list(range(COUNT))
    assert [event.properties["topic"] for event in events] == [f"t/{n}" for n in range(COUNT)]
    assert (broker.messages, broker.released) == ({}, set())
    assert sum(step.stored for step in steps) == COUNT
    (connect,) = broker.packets(ConnectPacket)
    assert (connect.clean_start, connect.client_id) == (False, "penstock-bridge-old")
    assert connect.properties.session_expiry_s == 0xFFFF_FFFF


def first_of(kind: type[Acknowledgement], packet_id: int) -> Callable[[Packet], bool]:
    return lambda packet: isinstance(packet, kind) and packet.packet_id == packet_id


@pytest.mark.parametrize("kind", [PubrecPacket, PubcompPacket])
@pytest.mark.parametrize("restarts", [False, True], ids=["reconnects", "restarts"])
def test_messages_of_qos_2_are_stored_once_when_an_answer_is_lost(
    session: penstock.Session, new: Channel, kind: type[Acknowledgement], *, restarts: bool
) -> None:
    with StrangeMqtt(messages()) as broker:
        broker.hangs_up_before = first_of(kind, COUNT // 2)
        if restarts:
            ledger = BridgeLedger(session, "old", new, broker.url)
            stopping = Flag()
            lost = Bridge(source_of(broker.url, []), ledger, on_retry=lambda _: stopping.set())
            lost.run(stopping, idle_s=5.0)
        bridged(session, broker.url)

    assert len(broker.packets(ConnectPacket)) == 2
    assert numbers_in(new) == list(range(COUNT))
    assert (broker.messages, broker.released) == ({}, set())


def test_messages_of_qos_1_are_stored_at_least_once(
    session: penstock.Session, new: Channel
) -> None:
    with StrangeMqtt(messages(1)) as broker:
        broker.hangs_up_before = first_of(PubackPacket, 1)
        bridged(session, broker.url)

    assert set(numbers_in(new)) == set(range(COUNT))
    assert len(numbers_in(new)) > COUNT


def test_a_packet_id_that_is_used_again_after_a_release_is_a_new_message(
    session: penstock.Session, new: Channel
) -> None:
    with StrangeMqtt(messages()) as broker:
        bridged(session, broker.url)
        broker.messages = {packet.packet_id: packet for packet in messages()}
        bridged(session, broker.url)

    assert numbers_in(new) == [*range(COUNT), *range(COUNT)]


def test_a_source_that_has_forgotten_the_session_begins_anew(
    session: penstock.Session, new: Channel
) -> None:
    """Its packet ids begin again, too, and must not hide new messages."""
    reports: list[str] = []
    with StrangeMqtt(messages()) as broker:
        broker.hangs_up_before = first_of(PubcompPacket, 1)
        ledger = BridgeLedger(session, "old", new, broker.url)
        stopping = Flag()
        lost = Bridge(source_of(broker.url, []), ledger, on_retry=lambda _: stopping.set())
        lost.run(stopping, idle_s=5.0)
        stored = len(numbers_in(new))
        broker.has_session = False
        broker.released.clear()
        broker.messages = {packet.packet_id: packet for packet in messages()}
        bridged(session, broker.url, reports)

    assert stored > 0
    assert numbers_in(new)[stored:] == list(range(COUNT))
    assert "has forgotten the session" in reports[0]
    assert len(broker.packets(SubscribePacket)) == 2


def test_a_source_that_has_lost_its_last_packets_hides_no_new_message(
    session: penstock.Session, new: Channel
) -> None:
    """It uses a packet id again that it has not released, with another message."""
    with StrangeMqtt(messages(count=1)) as broker:
        broker.hangs_up_before = first_of(PubcompPacket, 1)
        ledger = BridgeLedger(session, "old", new, broker.url)
        stopping = Flag()
        lost = Bridge(source_of(broker.url, []), ledger, on_retry=lambda _: stopping.set())
        lost.run(stopping, idle_s=5.0)
        broker.released.clear()
        broker.messages = {1: PublishPacket("t/0", b"7", 2, packet_id=1)}
        bridged(session, broker.url)

    assert numbers_in(new) == [0, 7]


def test_the_subscription_is_requested_again_until_it_is_confirmed(
    session: penstock.Session, new: Channel
) -> None:
    with StrangeMqtt(messages()) as broker:
        broker.hangs_up_before = lambda packet: isinstance(packet, SubscribePacket)
        bridged(session, broker.url)
        bridged(session, broker.url)

    assert len(broker.packets(SubscribePacket)) == 2
    # A session that has the subscription sends its retained messages no second time.
    options = [packet.subscriptions[0] for packet in broker.packets(SubscribePacket)]
    assert [option.retain_handling for option in options] == [1, 1]
    assert numbers_in(new) == list(range(COUNT))


def test_the_older_version_stores_each_message_once(
    session: penstock.Session, new: Channel
) -> None:
    with StrangeMqtt(messages(), version=MQTT_3) as broker:
        broker.hangs_up_before = first_of(PubrecPacket, 3)
        bridged(session, f"{broker.url}?version=3.1.1")
        bridged(session, f"{broker.url}?version=3.1.1")

    assert numbers_in(new) == list(range(COUNT))
    assert len(broker.packets(SubscribePacket)) == 1


def test_a_message_that_cannot_be_an_event_is_refused_and_reported(
    session: penstock.Session, new: Channel
) -> None:
    bad = PacketProperties(user_properties=(("$penstock", "x"),))
    sent = [*messages(1, 3), *messages(2, 6)[3:]]
    sent[1] = PublishPacket("t/1", b"bad", 1, packet_id=2, properties=bad)
    sent[4] = PublishPacket("t/4", b"bad", 2, packet_id=5, properties=bad)
    reports: list[str] = []
    with StrangeMqtt(sent) as broker:
        steps = bridged(session, broker.url, reports)

    assert numbers_in(new) == [0, 2, 3, 5]
    assert sum(step.rejected for step in steps) == 2
    answers = [*broker.packets(PubackPacket), *broker.packets(PubrecPacket)]
    assert [answer.packet_id for answer in answers if answer.reason.is_failure] == [2, 5]
    assert len(reports) == 2
    assert (broker.messages, broker.released) == ({}, set())


def test_a_lower_quality_of_service_is_reported(session: penstock.Session) -> None:
    reports: list[str] = []
    with StrangeMqtt(granted=1) as broker:
        bridged(session, broker.url, reports)

    assert "grants QoS 1 only" in reports[0]


def test_a_refused_subscription_ends_the_bridge(session: penstock.Session) -> None:
    with (
        StrangeMqtt(granted=Reason.NOT_AUTHORIZED) as broker,
        pytest.raises(IllegalState, match="NOT_AUTHORIZED"),
    ):
        bridged(session, broker.url)


def test_a_session_that_another_client_takes_over_ends_the_bridge(
    session: penstock.Session,
) -> None:
    with StrangeMqtt() as broker:
        broker._answers = lambda packet: [  # type: ignore[method-assign]
            DisconnectPacket(Reason.SESSION_TAKEN_OVER)
        ]
        with pytest.raises(IllegalState, match="run one process for each name"):
            bridged(session, broker.url)


def test_a_message_that_is_too_large_stays_at_the_source(
    session: penstock.Session, new: Channel
) -> None:
    huge = PublishPacket("t", bytes(4 << 20), 2, packet_id=9)
    with (
        StrangeMqtt([*messages(count=8), huge]) as broker,
        pytest.raises(EventTooLarge, match="1,048,576 bytes"),
    ):
        bridged(session, broker.url)

    assert 9 in broker.messages


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\x02\x00\x01"])
def test_a_source_that_is_no_broker_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(sources, "CONNECT_S", 0.2)
    with StrangeMqtt() as broker:
        broker._answers = lambda packet: [DisconnectPacket()]  # type: ignore[method-assign]
        monkeypatch.setattr(
            "packages.tools.tests.bridge.strange_mqtt.packet_bytes", lambda *_: answer
        )
        source = source_of(broker.url, [])
        with pytest.raises(SourceLost, match="has no MQTT 5"):
            source.connect(b"")


def test_an_unknown_release_is_answered(session: penstock.Session, new: Channel) -> None:
    with StrangeMqtt() as broker:
        broker.released = {4_711}
        bridged(session, broker.url)

    (answer,) = broker.packets(PubcompPacket)
    assert (answer.packet_id, answer.reason) == (4_711, Reason.PACKET_ID_NOT_FOUND)
    assert PubrelPacket not in {type(packet) for packet in broker.received}
