"""Messages as most of them come: PUBLISH packets that say nothing but topic, payload and id, read
without an object for each."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from penstock_core.vocabulary.topics import name_fault
from penstock_mqtt.wire.packets import MQTT_5

PlainMessage = tuple[str, bytes, int]
"""Topic name, payload, and packet id: 0 with QoS 0."""

TOPIC_BYTES_REMEMBERED: Final = 256
"""Bytes of the longest topic name of which it is remembered that it is right."""
_REMEMBERED_MAX: Final = 4_096
_UNCONFIRMED: Final = 0x30
"""How a PUBLISH of QoS 0 begins that is not retained."""
_CONFIRMED: Final = 0x32
"""How one of QoS 1 does, if it is sent for the first time."""


@lru_cache(_REMEMBERED_MAX)
def right_topic(written: bytes) -> str:
    """A topic name that is right; empty: it is not."""
    try:
        found = written.decode()
    except UnicodeDecodeError:
        return ""
    return "" if name_fault(found) else found


def plain_messages(  # noqa: C901  a call for each packet would cost more than the rest
    data: bytes, version: int, most: int, packet_bytes_max: int
) -> tuple[list[PlainMessage], int]:
    """The messages that ``data`` begins with, at most so many, and where they end: up to what is
    another packet, not whole, long, or wrong, which others say more about."""
    found: list[PlainMessage] = []
    at, size, has_properties = 0, len(data), version == MQTT_5
    while at + 4 <= size and len(found) < most:
        first, length, begin = data[at], data[at + 1], at + 2
        if first != _CONFIRMED and first != _UNCONFIRMED:
            break
        if length >= 0x80:
            high = data[begin]
            if not 0 < high < 0x80:
                break
            length += (high - 1) << 7
            begin += 1
        end = begin + length
        if end > size or length < 2 or end - at > packet_bytes_max:
            break
        topic_at = begin + 2
        topic_end = payload_at = topic_at + (data[begin] << 8 | data[begin + 1])
        if first == _CONFIRMED:
            payload_at += 2
        if payload_at + has_properties > end or topic_end - topic_at > TOPIC_BYTES_REMEMBERED:
            break
        packet_id = 0
        if first == _CONFIRMED:
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            if not packet_id:
                break
        if has_properties:
            if data[payload_at]:
                break
            payload_at += 1
        if not (topic := right_topic(data[topic_at:topic_end])):
            break
        found.append((topic, data[payload_at:end], packet_id))
        at = end
    return found, at
