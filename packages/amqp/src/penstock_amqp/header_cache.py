"""Decodes the header and annotations of messages, and caches the results, because most senders
repeat them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock_amqp import message_header
from penstock_amqp.typed import MS_MAX, NoProperty, in_range, property_of, whole_ms
from penstock_amqp.wire.sections import entries, fields
from penstock_amqp.wire.types import encode, encode_map
from penstock_core.columns.schema.layout import PRIORITY_MAX, check_property_name
from penstock_core.vocabulary.errors import InvalidEvent, RemoteProtocolViolation

KNOWN_MAX: Final = 1_024
"""Maximum cached sections of each kind. A full cache is emptied: simpler than LRU, and the sections
in use come back immediately."""
KNOWN_BYTES_MAX: Final = 4_096
"""Largest cached section in bytes."""


class MessageHeader(NamedTuple):
    """The decoded header section of a message."""

    durable: bool
    priority: int | None
    ttl: int
    """Time to live in milliseconds; 0 if the message does not expire."""
    high_priority: int | None = None
    """Priority as sent, if it is above the highest priority of an event."""
    zero_ttl: bool = False
    """Whether a time to live of 0 was sent, as opposed to an absent field."""


class Annotations(NamedTuple):
    """The decoded message annotations; `rest` contains those without a column or property."""

    deliver_ms: int | None
    """Delivery time in milliseconds since 1970."""
    delay_ms: int
    """Delay in milliseconds from now; used if `deliver_ms` is None."""
    tag: str | None
    properties: dict[str, Any]
    """Properties of the event from the annotation `PROPERTIES`."""
    rest: bytes | None
    """The other annotations as an encoded map; None if there are none."""


_headers_by_section: dict[bytes, MessageHeader] = {
    b"": MessageHeader(durable=False, priority=None, ttl=0)
}
_annotations_by_section: dict[bytes, Annotations] = {
    b"": Annotations(None, 0, None, properties={}, rest=None)
}


def decode_header(encoded: bytes) -> MessageHeader:
    """Decode a header section. Raises ``RemoteProtocolViolation`` if a field has a wrong type."""
    header = _headers_by_section.get(encoded)
    if header is None:
        values = [*fields(encoded), None, None, None]
        durable, priority, ttl = values[:3]
        if not isinstance(durable, bool | None) or not isinstance(priority, int | None):
            raise RemoteProtocolViolation("a field in the header of a message has the wrong type")
        if not isinstance(ttl, int | None):
            raise RemoteProtocolViolation("the ttl of a message must be a number")
        event_priority = None if priority is None else min(int(priority), PRIORITY_MAX)
        message_priority = (
            None if event_priority is None or priority == event_priority else int(priority or 0)
        )
        header = MessageHeader(
            bool(durable),
            event_priority,
            int(ttl or 0),
            high_priority=message_priority,
            zero_ttl=ttl == 0,
        )
        _cache(_headers_by_section, encoded, header)
    return header


def decode_annotations(encoded: bytes) -> Annotations:
    """Decode a section of message annotations. Raises ``RemoteProtocolViolation``, and
    ``InvalidEvent`` for an invalid delivery time or delay."""
    annotations = _annotations_by_section.get(encoded)
    if annotations is None:
        annotations = _read_annotations(encoded)
        _cache(_annotations_by_section, encoded, annotations)
    return annotations


def _read_annotations(encoded: bytes) -> Annotations:
    annotations = entries(encoded)
    remaining = dict(annotations)
    # Both annotations stay in `rest`: the event's own delivery time is not visible to receivers.
    deliver_ms = _delivery_time(remaining.get(message_header.DELIVERY_TIME))
    delay_ms = _delay(remaining.get(message_header.DELIVERY_DELAY))
    tag = (
        str(remaining.pop(message_header.TAG))
        if isinstance(remaining.get(message_header.TAG), str)
        else None
    )
    properties: dict[str, Any] = {}
    nested = remaining.get(message_header.PROPERTIES)
    if isinstance(nested, dict):
        try:
            for name, value in nested.items():
                check_property_name(name)
                properties[name] = property_of(value)
            del remaining[message_header.PROPERTIES]
        except (NoProperty, InvalidEvent):
            # One value cannot be a property: the whole map stays in `remaining`.
            properties = {}
    rest = None
    if remaining:
        pairs = [encode(item) for pair in remaining.items() for item in pair]
        rest = encode_map(pairs) if len(remaining) < len(annotations) else encoded
    return Annotations(deliver_ms, delay_ms, tag, properties=properties, rest=rest)


def _delivery_time(value: Any) -> int | None:
    """Return the delivery time in milliseconds since 1970, at most the end of the year 9999.

    Raises ``InvalidEvent`` for a value that is not a time: ignoring it would deliver the message at
    once, against the sender's intention.
    """
    if value is None:
        return None
    ms = whole_ms(value, message_header.DELIVERY_TIME)
    if ms <= MS_MAX and not in_range(ms):
        raise InvalidEvent(
            f"{message_header.DELIVERY_TIME} is {ms} ms, before the year 1; the value must be in "
            f"milliseconds since 1970"
        )
    return min(ms, MS_MAX)


def _delay(value: Any) -> int:
    """Return the delay of a message in milliseconds. Raises ``InvalidEvent``."""
    if value is None:
        return 0
    ms = whole_ms(value, message_header.DELIVERY_DELAY)
    if ms < 0:
        raise InvalidEvent(f"{message_header.DELIVERY_DELAY} is {ms} ms; it must not be negative")
    return ms


def _cache(cached: dict[bytes, Any], encoded: bytes, decoded: Any) -> None:
    if len(cached) >= KNOWN_MAX:
        cached.clear()
    if len(encoded) <= KNOWN_BYTES_MAX:
        cached[encoded] = decoded
