"""A message is sent to all clients that want it, in bytes that are encoded once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock_mqtt.fan_out import FanOut, SentMessages
from penstock_mqtt.filters import Filter
from penstock_mqtt.messages import TopicMessage
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5, TopicSubscription
from penstock_mqtt.wire.properties import NO_PROPERTIES
from penstock_server.runtime.access.open_connections import MessageCounts

OPEN: Any = SimpleNamespace(is_open=True, version=0)
"""Access that is off."""


class Client:
    """A connection that keeps what it is given."""

    def __init__(self, fan_out: FanOut, *wanted: TopicSubscription, version: int = MQTT_5) -> None:
        self.client_id, self.version, self.is_writable = "somebody", version, True
        self.number, self.session = 1, ""
        self.written: list[bytes] = []
        self.received: list[tuple[bytes, int]] = []
        self.rights = self
        self.packet_bytes_max = 100
        self.may_have_messages, self.is_aborted = True, False
        for text in wanted:
            made = Filter(self, self, text, None)  # type: ignore[arg-type]
            fan_out.add(made)

    def may_read(self, text: str, channel: object, *, makes_durable: bool) -> bool:
        return self.may_have_messages

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_aborted = True

    def send_messages(self, messages: list[TopicMessage], filters: list[Filter]) -> None:
        self.received += [(message.payload, len(filters)) for message in messages]


def message(topic: str, payload: bytes, qos: int = 0, client_id: str = "") -> TopicMessage:
    return TopicMessage(
        topic, payload, qos, client_id=client_id, ends_us=0, properties=NO_PROPERTIES
    )


def test_all_who_want_the_same_are_written_the_same_bytes() -> None:
    fan_out = FanOut(OPEN, MessageCounts())
    clients = [Client(fan_out, TopicSubscription("a/+", 0)) for _ in range(10)]

    fan_out.distribute([message("a/b", b"1"), message("a/b", b"2"), message("c", b"3")])

    assert {len(client.written) for client in clients} == {1}
    assert all(client.written[0] is clients[0].written[0] for client in clients)
    assert clients[0].written == [b"\x30\7\0\3a/b\x001\x30\7\0\3a/b\x002"]


def test_each_version_has_its_bytes() -> None:
    fan_out = FanOut(OPEN, MessageCounts())
    older = Client(fan_out, TopicSubscription("a", 0), version=MQTT_3)
    newer = Client(fan_out, TopicSubscription("a", 0))

    fan_out.distribute([message("a", b"1")])

    assert (older.written, newer.written) == ([b"\x30\4\0\1a1"], [b"\x30\5\0\1a\x001"])


def test_who_acknowledges_gets_each_message_by_itself() -> None:
    fan_out = FanOut(OPEN, MessageCounts())
    client = Client(fan_out, TopicSubscription("a", 1))

    fan_out.distribute([message("a", b"1", 1), message("a", b"2", 0), message("a", b"3", 1)])

    assert client.received == [(b"1", 1), (b"3", 1)]
    assert client.written == [b"\x30\5\0\1a\x002"]


def test_filters_of_one_client_that_overlap_are_one_message() -> None:
    fan_out = FanOut(OPEN, MessageCounts())
    client = Client(fan_out, TopicSubscription("a", 0), TopicSubscription("#", 0))

    fan_out.distribute([message("a", b"1")])

    assert client.received == [(b"1", 2)]


def test_who_wants_nothing_of_its_own_gets_none_of_it() -> None:
    fan_out = FanOut(OPEN, MessageCounts())
    client = Client(fan_out, TopicSubscription("a", 0, no_local=True))

    fan_out.distribute([message("a", b"1", client_id="somebody"), message("a", b"2")])

    assert client.received == [(b"2", 1)]


def test_who_does_not_read_is_left_out() -> None:
    counts = MessageCounts()
    fan_out = FanOut(OPEN, counts)
    clients = [Client(fan_out, TopicSubscription("a", 0)) for _ in range(3)]
    clients[0].is_writable = False

    fan_out.distribute([message("a", b"1"), message("a", b"2")])

    assert [len(client.written) for client in clients] == [0, 1, 1]
    assert (counts.dropped, counts.sent) == (2, [4, 0, 0])


def test_the_messages_that_each_client_got_are_recorded() -> None:
    fan_out = FanOut(OPEN, MessageCounts())
    clients = {
        "same bytes": Client(fan_out, TopicSubscription("a", 0)),
        "own packets": Client(fan_out, TopicSubscription("#", 1)),
        "not its own": Client(fan_out, TopicSubscription("a", 0, no_local=True)),
        "does not read": Client(fan_out, TopicSubscription("a", 0)),
        "fails": Client(fan_out, TopicSubscription("a", 0)),
    }
    for session, client in clients.items():
        client.session = session
    clients["does not read"].is_writable = False
    clients["fails"].packet_bytes_max = -1
    clients["fails"].send_messages = None  # type: ignore[assignment,method-assign]
    first, second = message("a", b"1", 1, client_id="somebody"), message("a", b"2")
    sent: SentMessages = {}
    fan_out.distribute([first, second, message("b", b"3")], sent=sent)

    payloads = {session: [got.payload for got in messages] for session, messages in sent.items()}
    assert payloads == {
        "same bytes": [b"1", b"2"],
        "own packets": [b"1", b"2", b"3"],
        "not its own": [b"2"],
    }
    assert clients["fails"].is_aborted


def test_who_takes_only_small_packets_is_asked_for_each() -> None:
    fan_out = FanOut(OPEN, MessageCounts())
    client = Client(fan_out, TopicSubscription("a", 0))

    fan_out.distribute([message("a", b"1" * 200), message("a", b"2")])

    assert client.received == [(b"1" * 200, 1), (b"2", 1)]


def test_a_subscription_that_is_given_up_gets_nothing_more() -> None:
    fan_out = FanOut(OPEN, MessageCounts())
    client = Client(fan_out, TopicSubscription("a", 0))
    fan_out.distribute([message("a", b"1")])
    (wanted,) = fan_out.filters.find("a")
    fan_out.remove(wanted)

    fan_out.distribute([message("a", b"2")])

    assert len(client.written) == 1


@pytest.mark.spec("M4", "M15")
def test_who_may_have_a_topic_is_asked_again_when_rights_change() -> None:
    access: Any = SimpleNamespace(is_open=False, version=0)
    fan_out = FanOut(access, MessageCounts())
    one, second = (Client(fan_out, TopicSubscription("a", 0)) for _ in range(2))
    second.may_have_messages = False

    fan_out.distribute([message("a", b"1")])
    assert (len(one.written), len(second.written)) == (1, 0)
    one.may_have_messages, access.version = False, 1
    fan_out.distribute([message("a", b"2")])
    assert (len(one.written), len(second.written)) == (1, 0)
    second.may_have_messages = True
    fan_out.forget()
    fan_out.distribute([message("a", b"3")])
    assert (len(one.written), len(second.written)) == (1, 1)
