"""Conversions of MQTT payloads, and of other publishers' events into MQTT messages."""

from __future__ import annotations

import json
from typing import Final

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.nesting import NESTING_MAX, json_nesting
from penstock_mqtt.json_payloads import FEW, JsonColumns
from penstock_mqtt.messages import TopicMessage, message_of, published_parts
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5
from penstock_mqtt.wire.reasons import MqttViolation
from penstock_server.runtime.access.open_connections import MessageCounts

_TTLS: Final = (0, 1, (1 << 32) * 1_000, 1 << 50)
_COUNTS: Final = MessageCounts()


def payloads(data: bytes) -> None:
    """Read a JSON payload, alone and with others: it becomes columns or properties, or is
    refused."""
    columns = JsonColumns(("topic",))
    (row,) = columns.rows([data], ())
    if json_nesting(data) > NESTING_MAX:
        assert isinstance(row, MqttViolation)
    columns.columns([data, *[b'{"b":1}'] * FEW], {}, ())
    columns.columns([data] * FEW, {}, ())


def some_payloads() -> list[bytes]:
    deep = [b'{"a":' + opens * count for opens in (b"[", b'{"b":') for count in (101, 3_000)]
    return [b'{"a":1,"b":[1,null,"x"],"c":{"d":2.5}}', b'{"t":"2026-01-01T00:00:00Z"}', *deep]


def events(data: bytes) -> None:
    """Convert an event with these bytes in each of its parts to messages of every version; parts
    that MQTT cannot express are left out."""
    text = data.decode(errors="replace")
    for ttl in _TTLS:
        parts = {"correlation_id": text, "reply_to": text, "mqtt": text, "amqp": text}
        event = Event(
            data, properties={"topic": "a", text: text, "p": [text]}, headers=parts, ttl=ttl
        )
        message = message_of(event)
        assert isinstance(message, TopicMessage)
        for version in (MQTT_3, MQTT_5):
            published_parts(message, version, 1)


def some_events() -> list[bytes]:
    residue = {"content_type": "a/b\0", "payload_format": 1, "user": [["a", "\0"], ["", "b"]]}
    return [
        json.dumps(residue).encode(),
        b'{"body":"text","content_encoding":"gzip","correlation_id":"binary"}',
        b'{"hex":true}',
        b'{"zz":' + b"[" * 3_000,
        b"\0" * 10,
        b"x" * 65_536,
    ]
