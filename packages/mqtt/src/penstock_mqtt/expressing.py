"""Parts of events as properties of packets. What MQTT cannot express is left out part by part,
counted and logged: the message itself is sent (SEM M3)."""

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
"""The user property that says how a payload of AMQP is encoded."""
EXPIRY_S_MAX: Final = (1 << 32) - 1
"""Seconds of the longest message expiry."""
TOO_LARGE: Final = "it is larger than the receiver takes"
_TEXT_MAX: Final = 16_383
"""Characters of the longest text that is made of a value; in UTF-8, MQTT has room for it."""

LeaveOut = Callable[[str, str], None]
"""Takes the name of a part that is left out, and why."""

_log = logger("penstock.mqtt")


def leave_out(counts: MessageCounts, topic: str, part: str, reason: str) -> None:
    """Count a part of an event that its message does not have. The log has a line a minute."""
    counts.left_out += 1
    if counts.rare_lines.is_due("mqtt.left_out"):
        _log.warning("mqtt.left_out", topic=topic, part=part, reason=reason, count=counts.left_out)


def give_up(counts: MessageCounts, topic: str, reason: str) -> None:
    """Count a message that cannot be sent to a receiver, which its durable then counts as taken.
    The log has lines as for `leave_out`."""
    counts.unsent += 1
    if counts.rare_lines.is_due("mqtt.not_given_out"):
        _log.warning("mqtt.not_given_out", topic=topic, reason=reason, count=counts.unsent)


def packet_properties(
    rest: Residue, headers: Mapping[str, Any], properties: Mapping[str, Any], omit: LeaveOut
) -> PacketProperties:
    """Return what an event says as the properties of a PUBLISH; ``omit`` is told of each part that
    MQTT cannot express."""
    pairs = _user_properties(properties, omit) if rest.user is None else rest.user
    user = tuple(pair for pair in pairs if _is_expressible(pair, omit))
    if rest.content_encoding and all(name != CONTENT_ENCODING for name, _ in user):
        encoding = (CONTENT_ENCODING, rest.content_encoding)
        user += (encoding,) if _is_expressible(encoding, omit) else ()
    content_type, reply_to = rest.content_type, headers.get("reply_to")
    if content_type is not None and (fault := text_fault(content_type)):
        omit("content type", fault)
        content_type = None
    if reply_to and (fault := name_fault(reply_to)):
        omit("response topic", fault)
        reply_to = None
    correlation = _correlation(headers.get("correlation_id"), is_hex=rest.hex)
    if correlation is not None and len(correlation) > BYTES_MAX:
        omit("correlation data", f"{len(correlation)} bytes; at most {BYTES_MAX} are possible")
        correlation = None
    made = PacketProperties(
        payload_format=rest.payload_format,
        content_type=content_type,
        response_topic=reply_to or None,
        correlation_data=correlation,
        user_properties=user,
    )
    return NO_PROPERTIES if made == NO_PROPERTIES else made


def _is_expressible(pair: tuple[str, str], omit: LeaveOut) -> bool:
    name, value = pair
    if fault := text_fault(name) or text_fault(value):
        omit(f"property {name[:80]!r}", fault)
        return False
    return True


def _user_properties(properties: Mapping[str, Any], omit: LeaveOut) -> Iterator[tuple[str, str]]:
    """Properties as MQTT has them, which are texts: a list is a name that is repeated."""
    for name, value in properties.items():
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, str):
                yield name, each
            elif each is not None:
                try:
                    text = _user_text(each)
                except (RecursionError, ValueError) as error:  # nested too deep, for example
                    omit(f"property {name[:80]!r}", str(error))
                    continue
                if len(text) <= _TEXT_MAX:
                    yield name, text
                else:
                    omit(f"property {name[:80]!r}", f"{len(text)} characters when it is written")


def _user_text(value: Any) -> str:
    """Numbers as they are written, true and false; times in ISO 8601, bytes in hexadecimal digits,
    what has parts as JSON."""
    if isinstance(value, bool | dict | list):
        return msgspec.json.encode(value).decode()
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _correlation(text: str | None, *, is_hex: bool) -> bytes | None:
    if text is None:
        return None
    try:
        return bytes.fromhex(text) if is_hex else text.encode()
    except ValueError:
        return text.encode()
