"""The parts of events as properties of packets. A part that MQTT cannot express is left out,
counted and logged; the message is still sent (SEM M3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from penstock_core.loggers import logger
from penstock_core.vocabulary.topics import name_fault
from penstock_mqtt.residues import Residue
from penstock_mqtt.wire.primitives import BYTES_MAX, text_fault
from penstock_mqtt.wire.properties import NO_PROPERTIES, PacketProperties
from penstock_server.runtime.access.open_connections import MessageCounts

CONTENT_ENCODING: Final = "content-encoding"
"""The user property with the content encoding of a message from an AMQP client."""
EXPIRY_S_MAX: Final = (1 << 32) - 1
"""The longest message expiry in seconds."""
TOO_LARGE: Final = "it is larger than the receiver accepts"
_TEXT_MAX: Final = 16_383
"""Maximum number of characters of a text that is made from a value. Even with 4 bytes for each
character the text fits the 65,535 bytes that MQTT allows."""

LeaveOut = Callable[[str, str], None]
"""A callback with the name of a part that is left out, and the reason."""

_log = logger("penstock.mqtt")


def count_left_out(counts: MessageCounts, topic: str, part: str, reason: str) -> None:
    """Count a part of an event that MQTT cannot express. Log at most one line a minute."""
    counts.left_out += 1
    if counts.rare_lines.is_due("mqtt.left_out"):
        _log.warning("mqtt.left_out", topic=topic, part=part, reason=reason, count=counts.left_out)


def count_unsent(counts: MessageCounts, topic: str, reason: str) -> None:
    """Count a message that cannot be sent to a receiver. The receiver's durable counts the message
    as consumed. Log lines are limited as in `count_left_out`."""
    counts.unsent += 1
    if counts.rare_lines.is_due("mqtt.not_given_out"):
        _log.warning("mqtt.not_given_out", topic=topic, reason=reason, count=counts.unsent)


def packet_properties(
    residue: Residue, headers: Mapping[str, Any], properties: Mapping[str, Any], omit: LeaveOut
) -> PacketProperties:
    """Return the properties of the PUBLISH for an event. ``omit`` is called for each part that MQTT
    cannot express."""
    # The residue of an MQTT message has the user properties in their order and with repetitions.
    pairs = _user_properties(properties, omit) if residue.user is None else residue.user
    user = tuple(pair for pair in pairs if _is_expressible(pair, omit))
    if residue.content_encoding and all(name != CONTENT_ENCODING for name, _ in user):
        encoding = (CONTENT_ENCODING, residue.content_encoding)
        user += (encoding,) if _is_expressible(encoding, omit) else ()
    content_type, reply_to = residue.content_type, headers.get("reply_to")
    if content_type is not None and (fault := text_fault(content_type)):
        omit("content type", fault)
        content_type = None
    if reply_to and (fault := name_fault(reply_to)):
        omit("response topic", fault)
        reply_to = None
    correlation = _correlation(headers.get("correlation_id"), is_hex=residue.hex)
    if correlation is not None and len(correlation) > BYTES_MAX:
        omit("correlation data", f"{len(correlation)} bytes; at most {BYTES_MAX} are possible")
        correlation = None
    sent_properties = PacketProperties(
        payload_format=residue.payload_format,
        content_type=content_type,
        response_topic=reply_to or None,
        correlation_data=correlation,
        user_properties=user,
    )
    # Other modules compare with NO_PROPERTIES by identity.
    return NO_PROPERTIES if sent_properties == NO_PROPERTIES else sent_properties


def _is_expressible(pair: tuple[str, str], omit: LeaveOut) -> bool:
    name, value = pair
    if fault := text_fault(name) or text_fault(value):
        omit(f"property {name[:80]!r}", fault)
        return False
    return True


def _user_properties(properties: Mapping[str, Any], omit: LeaveOut) -> Iterator[tuple[str, str]]:
    """Yield the properties as pairs of texts. A list becomes several pairs with the same name."""
    for name, value in properties.items():
        if isinstance(value, list) and not value:
            omit(f"property {name[:80]!r}", "an empty list")
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, str):
                yield name, item
            elif item is None:
                omit(f"property {name[:80]!r}", "a null")
            else:
                try:
                    text = _user_text(item)
                except (RecursionError, ValueError) as error:  # nested too deep, for example
                    omit(f"property {name[:80]!r}", str(error))
                    continue
                if len(text) <= _TEXT_MAX:
                    yield name, text
                else:
                    omit(f"property {name[:80]!r}", f"{len(text)} characters when it is written")


def _user_text(value: Any) -> str:
    """Return a value as text: numbers, true and false as in JSON, times in ISO 8601, bytes in
    hexadecimal digits, structured values as JSON."""
    if isinstance(value, bool | dict | list):
        return msgspec.json.encode(value).decode()
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _correlation(text: str | None, *, is_hex: bool) -> bytes | None:
    """Return a correlation id as bytes. ``is_hex``: whether it was binary data."""
    if text is None:
        return None
    try:
        return bytes.fromhex(text) if is_hex else text.encode()
    except ValueError:  # every publisher can write the header that claims hexadecimal digits
        return text.encode()
