"""Reads plain messages (PUBLISH packets with nothing but topic, payload and id) and their PUBACKs
without an object for each packet. Most messages are plain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from struct import iter_unpack
from typing import Final

from penstock_core.vocabulary.topics import name_fault
from penstock_mqtt.wire.packets import MQTT_5

PlainMessage = tuple[str, bytes, int]
"""Topic name, payload and packet id; the id is 0 with QoS 0."""

TOPIC_BYTES_CACHED: Final = 256
"""Maximum number of bytes of a topic name whose validity is cached."""
_CACHED_MAX: Final = 4_096
_UNCONFIRMED: Final = 0x30
"""First byte of a PUBLISH of QoS 0 that is not retained."""
_CONFIRMED: Final = 0x32
"""First byte of a PUBLISH of QoS 1 that is neither retained nor a duplicate."""


# The alternatives exclude the packet id 0, which is invalid.
_PUBACKS: Final = re.compile(rb"(?s:\x40\x02(?:[^\0].|\0[^\0])){1,4096}")
"""Consecutive PUBACKs without a reason code; most PUBACKs have none."""


def plain_pubacks(data: bytes) -> tuple[Sequence[int], int]:
    """Return the packet ids of the PUBACKs without a reason code at the start of ``data``, and the
    offset of their end."""
    match = _PUBACKS.match(data)
    if match is None:
        return (), 0
    return [packet_id for (packet_id,) in iter_unpack(">xxH", match[0])], match.end()


@lru_cache(_CACHED_MAX)
def valid_topic(written: bytes) -> str:
    """Return a topic name if the bytes are a valid one, otherwise an empty text."""
    try:
        name = written.decode()
    except UnicodeDecodeError:
        return ""
    return "" if name_fault(name) else name


def plain_messages(  # noqa: C901  a call for each packet would cost more than the rest
    data: bytes, version: int, count_max: int, packet_bytes_max: int
) -> tuple[list[PlainMessage], int]:
    """Return at most ``count_max`` plain messages at the start of ``data``, and the offset of their
    end. Stops before the first packet that is not plain, or is incomplete, long or invalid; the
    general reader processes such packets."""
    messages: list[PlainMessage] = []
    start, size, has_properties = 0, len(data), version == MQTT_5
    while start + 4 <= size and len(messages) < count_max:
        first, length, begin = data[start], data[start + 1], start + 2
        if first != _CONFIRMED and first != _UNCONFIRMED:
            break
        if length >= 0x80:
            # A second length byte. Its high bit would announce a third one (over 16 KiB).
            high = data[begin]
            if not 0 < high < 0x80:
                break
            # ``length`` still contains the continuation bit, 1 << 7.
            length += (high - 1) << 7
            begin += 1
        end = begin + length
        if end > size or length < 2 or end - start > packet_bytes_max:
            break
        topic_at = begin + 2
        topic_end = payload_at = topic_at + (data[begin] << 8 | data[begin + 1])
        if first == _CONFIRMED:
            payload_at += 2
        if payload_at + has_properties > end or topic_end - topic_at > TOPIC_BYTES_CACHED:
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
        if not (topic := valid_topic(data[topic_at:topic_end])):
            break
        messages.append((topic, data[payload_at:end], packet_id))
        start = end
    return messages, start
