"""The guide's table of parts that one protocol cannot express: its rows of MQTT, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_mqtt.expressing import EXPIRY_S_MAX
from penstock_mqtt.messages import Received, messages_of, user_properties_of
from penstock_mqtt.wire.packets import MQTT_5, PublishPacket
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.runtime.access.open_connections import MessageCounts
from tests.docs.protocol_pairs import PairRow, rows_of

NOW_US: Final = 1_700_000_000_000_000
LONG: Final = "x" * 65_536


class Sent:
    """The message that MQTT clients receive for an event."""

    def __init__(self, **parts: Any) -> None:
        parts["properties"] = {"topic": "t", **parts.get("properties", {})}
        counts = MessageCounts()
        batch = stamp(body_of([Event(b"data", **parts)]), Span(0, 1), NOW_US)
        (message,) = messages_of(batch, counts=counts)
        assert message is not None
        self.left_out = counts.left_out
        self.is_ended = message.ends_us
        self.properties = message.properties
        self.user = message.properties.user_properties
        packet = PublishPacket("t", message.payload, properties=message.properties)
        assert packet_bytes(packet, MQTT_5), "the rest can be sent"


def user_pairs(**properties: Any) -> tuple[tuple[str, str], ...]:
    sent = Sent(properties=properties)
    assert not sent.left_out
    return sent.user


def is_left_out(**parts: Any) -> bool:
    """Whether nothing but one part of a message is left out."""
    parts["properties"] = {**parts.get("properties", {}), "kept": "k"}
    sent = Sent(**parts)
    return sent.left_out == 1 and sent.properties == PacketProperties(
        user_properties=(("kept", "k"),)
    )


def long_ttl() -> None:
    sent = Sent(ttl=(EXPIRY_S_MAX + 1) * 1_000)
    assert (sent.left_out, sent.is_ended) == (1, 0)
    assert Sent(ttl=EXPIRY_S_MAX * 1_000).is_ended == NOW_US + EXPIRY_S_MAX * 1_000_000


def time() -> None:
    moment = datetime(2030, 1, 2, hour=3, minute=4, second=5, microsecond=6, tzinfo=UTC)
    assert user_pairs(at=moment) == (("at", "2030-01-02T03:04:05.000006+00:00"),)


def no_numbers() -> None:
    pairs = user_pairs(a=float("nan"), b=float("inf"), c=float("-inf"))
    assert pairs == (("a", "nan"), ("b", "inf"), ("c", "-inf"))


def number() -> None:
    assert user_pairs(a=5, b=2.5) == (("a", "5"), ("b", "2.5"))


def null_characters() -> None:
    assert is_left_out(properties={"p": "a\0b"})
    assert is_left_out(properties={"p\0": "a"})
    assert is_left_out(headers={"mqtt": '{"content_type":"a\\u0000"}'})


def long_texts() -> None:
    assert is_left_out(properties={"p": LONG})
    assert is_left_out(headers={"mqtt": f'{{"user":[["kept","k"],["{LONG}",""]]}}'})
    assert is_left_out(headers={"mqtt": f'{{"content_type":"{LONG}"}}'})
    assert is_left_out(headers={"correlation_id": LONG})


def no_name() -> None:
    pairs = PacketProperties(user_properties=(("", "1"), ("a", "2")))
    message = Received("t", PublishPacket("t", b"", properties=pairs), "client")
    assert user_properties_of(message) == {"a": "2"}


def wildcard() -> None:
    for reply_to in ("a/#", "+/b"):
        assert is_left_out(headers={"reply_to": reply_to})


def binary() -> None:
    assert user_pairs(b=b"\x00\xff") == (("b", "00ff"),)


def lists() -> None:
    pairs = user_pairs(names=["a", "b"], numbers=[1, 2], nested={"a": [1]})
    assert [text for name, text in pairs if name == "names"] == ["a", "b"]
    assert [text for name, text in pairs if name == "numbers"] == ["1", "2"]
    assert [text for name, text in pairs if name == "nested"] == ['{"a":[1]}']


def nulls() -> None:
    assert is_left_out(properties={"n": None})
    assert is_left_out(properties={"n": []})
    sent = Sent(properties={"n": ["a", None, "b", None]})
    assert (sent.user, sent.left_out) == ((("n", "a"), ("n", "b")), 2)


CASES: Final[Mapping[PairRow, Callable[[], None]]] = {
    ("TTL above 136 years", "all", "MQTT"): long_ttl,
    ("time as a property", "all", "MQTT"): time,
    ("NaN and infinity", "all", "MQTT"): no_numbers,
    ("number", "all", "MQTT"): number,
    ("null character in a string, a name or a content type", "all", "MQTT"): null_characters,
    (
        "string, name, content type or correlation above 65,535 bytes",
        "all",
        "MQTT",
    ): long_texts,
    ("user property without a name", "MQTT", "all"): no_name,
    ("reply address with a wildcard of MQTT", "all", "MQTT"): wildcard,
    ("bytes as a property", "all", "MQTT"): binary,
    ("list or dictionary as a property", "all", "MQTT"): lists,
    ("null or empty list as a property, null in a list", "all", "MQTT"): nulls,
}


@pytest.mark.parametrize("row", rows_of("MQTT"), ids=lambda row: "-".join(row))
def test_what_the_table_says_of_mqtt_is_what_happens(row: PairRow) -> None:
    CASES[row]()


def test_every_case_is_in_the_table() -> None:
    assert set(CASES) == set(rows_of("MQTT"))
