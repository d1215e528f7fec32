"""Decodes the header and annotations of messages, and remembers the results: most senders repeat
them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock_amqp import message_header
from penstock_amqp.typed import MS_MAX, NoProperty, in_range, property_of, whole_ms
from penstock_amqp.wire.sections import entries, fields
from penstock_amqp.wire.types import encode, encode_map
from penstock_core.columns.schema.layout import PRIORITY_MAX, check_property_name
from penstock_core.vocabulary.errors import InvalidEvent, RemoteProtocolViolation

KNOWN_MAX: Final = 1_024
"""Most sections of each kind that are remembered."""
KNOWN_BYTES_MAX: Final = 4_096
"""Largest section in bytes that is remembered."""


class MessageHeader(NamedTuple):
    durable: bool
    priority: int | None
    ttl: int
    high_priority: int | None = None
    """The priority as sent, if it is above the highest that an event can have."""
    zero_ttl: bool = False
    """Whether a time to live of 0 was sent, and not none."""


class Annotations(NamedTuple):
    deliver_ms: int | None
    """When to deliver, in milliseconds since 1970."""
    delay_ms: int
    """How long to wait from now on, if there is no such time."""
    tag: str | None
    properties: dict[str, Any]
    rest: bytes | None


_headers_known: dict[bytes, MessageHeader] = {
    b"": MessageHeader(durable=False, priority=None, ttl=0)
}
_annotations_known: dict[bytes, Annotations] = {
    b"": Annotations(None, 0, None, properties={}, rest=None)
}


def header_in(encoded: bytes) -> MessageHeader:
    found = _headers_known.get(encoded)
    if found is None:
        values = [*fields(encoded), None, None, None]
        durable, priority, ttl = values[:3]
        if not isinstance(durable, bool | None) or not isinstance(priority, int | None):
            raise RemoteProtocolViolation("a field in the header of a message has the wrong type")
        if not isinstance(ttl, int | None):
            raise RemoteProtocolViolation("the ttl of a message must be a number")
        wanted = None if priority is None else min(int(priority), PRIORITY_MAX)
        high = None if wanted is None or priority == wanted else int(priority or 0)
        found = MessageHeader(
            bool(durable), wanted, int(ttl or 0), high_priority=high, zero_ttl=ttl == 0
        )
        _remember(_headers_known, encoded, found)
    return found


def annotations_in(encoded: bytes) -> Annotations:
    found = _annotations_known.get(encoded)
    if found is None:
        found = _read_annotations(encoded)
        _remember(_annotations_known, encoded, found)
    return found


def _read_annotations(encoded: bytes) -> Annotations:
    all_of_them = entries(encoded)
    left = dict(all_of_them)
    # Both are kept in the rest, because a delivered event does not show them.
    deliver_ms = _delivery_time(left.get(message_header.DELIVERY_TIME))
    delay_ms = _delay(left.get(message_header.DELIVERY_DELAY))
    tag = (
        str(left.pop(message_header.TAG)) if isinstance(left.get(message_header.TAG), str) else None
    )
    properties: dict[str, Any] = {}
    nested = left.get(message_header.PROPERTIES)
    if isinstance(nested, dict):
        try:
            for name, value in nested.items():
                check_property_name(name)
                properties[name] = property_of(value)
            del left[message_header.PROPERTIES]
        except (NoProperty, InvalidEvent):
            properties = {}
    rest = None
    if left:
        pairs = [encode(each) for pair in left.items() for each in pair]
        rest = encode_map(pairs) if len(left) < len(all_of_them) else encoded
    return Annotations(deliver_ms, delay_ms, tag, properties=properties, rest=rest)


def _delivery_time(value: Any) -> int | None:
    """When to deliver a message; a time after the year 9999 is its end. Raises ``InvalidEvent`` for
    a value that means no time: a message that was to wait must not come at once."""
    if value is None:
        return None
    ms = whole_ms(value, message_header.DELIVERY_TIME)
    if ms <= MS_MAX and not in_range(ms):
        raise InvalidEvent(
            f"{message_header.DELIVERY_TIME} is {ms} ms, before the year 1; it counts "
            f"milliseconds since 1970"
        )
    return min(ms, MS_MAX)


def _delay(value: Any) -> int:
    """How long a message waits. Raises ``InvalidEvent``."""
    if value is None:
        return 0
    ms = whole_ms(value, message_header.DELIVERY_DELAY)
    if ms < 0:
        raise InvalidEvent(f"{message_header.DELIVERY_DELAY} is {ms} ms; it must not be negative")
    return ms


def _remember(known: dict[bytes, Any], encoded: bytes, found: Any) -> None:
    if len(known) >= KNOWN_MAX:
        known.clear()
    if len(encoded) <= KNOWN_BYTES_MAX:
        known[encoded] = found
