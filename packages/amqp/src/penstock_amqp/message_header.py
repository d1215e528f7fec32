"""The header ``amqp`` of an event: the parts of its AMQP message that no column can hold.

The header is a JSON object, so that clients of other protocols can read and write it. An event
without it becomes a message with a single data section. :class:`AmqpExtras` names the keys.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock_amqp.wire.types import read as read_value
from penstock_core.vocabulary.errors import InvalidArgument, RemoteProtocolViolation
from penstock_core.vocabulary.nesting import check_json_nesting

HEADER: Final = "amqp"
"""The header's name (``penstock_core.columns.schema.layout.HEADERS``)."""

TAG: Final = "x-opt-penstock-tag"
"""Message annotation with the event's tag."""
PROPERTIES: Final = "x-opt-penstock-properties"
"""Message annotation with the properties that application properties cannot hold, for example
nested ones."""
DELIVERY_TIME: Final = "x-opt-delivery-time"
"""Message annotation with the delivery time in milliseconds since 1970."""
DELIVERY_DELAY: Final = "x-opt-delivery-delay"
"""Message annotation with the delay in milliseconds; ignored if the message has a
`DELIVERY_TIME`."""

GROUP_ID: Final = "JMSXGroupID"
GROUP_SEQUENCE: Final = "JMSXGroupSeq"
"""Properties of events with the group of a message and its number in the group. JMS selectors use
these names."""

KNOWN_MAX: Final = 1_024
"""Maximum cached headers, in each direction."""
KNOWN_CHARACTERS_MAX: Final = 512
"""Longest cached text of a header. Senders choose the texts, so only this bounds the memory of the
cache."""


class AmqpExtras(Struct, frozen=True, omit_defaults=True):
    """The event header ``amqp``: the parts of an AMQP message that no column can hold."""

    body: str = "data"
    """Kind of body: ``data``, ``text`` (a string value; the event's data is its UTF-8), ``binary``
    (a binary value), ``null``, ``value`` (any other value, AMQP-encoded), ``sequence`` (the lists,
    AMQP-encoded) or ``none``."""
    priority: int | None = None
    """Priority, if it is above 9."""
    zero_ttl: bool = False
    """Whether a time to live of 0 was sent, as opposed to an absent field; both mean the same."""
    sizes: tuple[int, ...] = ()
    """Sizes in bytes of the data sections, if the body has several."""
    to: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    reply_to_group_id: str | None = None
    message_id: str = ""
    """Type of the message id if it is not a string: ``ulong``, ``uuid`` or ``binary``."""
    correlation_id: str = ""
    """Type of the correlation id if it is not a string."""
    user_id: bytes | None = None
    """User id, if it is not UTF-8."""
    times: tuple[int | None, int | None] | None = None
    """Absolute expiry and creation time in ms, if one is outside the years 1 to 9999."""
    types: dict[str, str] = {}
    """Types of application properties, by name, that event properties cannot represent."""
    annotations: bytes | None = None
    """Other message annotations, as an encoded AMQP map."""
    application_properties: bytes | None = None
    """All application properties, as an encoded AMQP map, if one of them cannot be a property."""
    footer: bytes | None = None


PLAIN: Final = AmqpExtras()


class _MqttHeader(Struct, frozen=True):
    """The fields of an event's header ``mqtt`` that AMQP can express."""

    content_type: str | None = None
    payload_format: int | None = None
    hex: bool = False


_Content = TypeVar("_Content")

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AmqpExtras)
_mqtt_decoder = msgspec.json.Decoder(_MqttHeader)
extras_by_text: dict[str, AmqpExtras] = {}
extras_by_mqtt_text: dict[str, AmqpExtras] = {}
"""Decoded headers ``amqp`` and ``mqtt``, by their text."""


def encode_extras(extras: AmqpExtras) -> str | None:
    """Encode the header; None if all fields have their defaults."""
    text = _encoder.encode(extras).decode()
    return None if text == "{}" else text


def decode_extras(text: str | None) -> AmqpExtras:
    """Decode a header. An unreadable header counts as absent, because any client may have written
    it."""
    if not text:
        return PLAIN
    extras = extras_by_text.get(text)
    if extras is None:
        extras = _usable(_decode_or_none(_decoder, text) or PLAIN)
        _cache(extras_by_text, text, extras)
    return extras


def decode_mqtt(text: str) -> AmqpExtras:
    """Convert the header ``mqtt`` of an event that has no header ``amqp``: a text payload becomes a
    string value, and correlation data that is not text becomes binary."""
    extras = extras_by_mqtt_text.get(text)
    if extras is None:
        header = _decode_or_none(_mqtt_decoder, text) or _MqttHeader()
        extras = AmqpExtras(
            body="text" if header.payload_format == 1 else "data",
            content_type=header.content_type,
            correlation_id="binary" if header.hex else "",
        )
        extras = PLAIN if extras == PLAIN else extras
        _cache(extras_by_mqtt_text, text, extras)
    return extras


def _decode_or_none(decoder: msgspec.json.Decoder[_Content], text: str) -> _Content | None:
    """Decode a header's text; None if it is invalid or nested too deep."""
    try:
        check_json_nesting(text, "the header")
        return decoder.decode(text)
    except (InvalidArgument, RecursionError, ValueError):  # also what msgspec raises
        return None


def _usable(extras: AmqpExtras) -> AmqpExtras:
    """Return the header without invalid sizes and encoded maps, which no receiver could decode."""
    unusable: dict[str, Any] = {
        name: None
        for name in ("annotations", "application_properties", "footer")
        if (encoded := getattr(extras, name)) is not None and not _is_map(encoded)
    }
    if extras.sizes and min(extras.sizes) < 0:
        unusable["sizes"] = ()
    return replace(extras, **unusable) if unusable else extras


def _is_map(encoded: bytes) -> bool:
    try:
        value, end = read_value(encoded)
    except RemoteProtocolViolation:
        return False
    return isinstance(value, dict) and end == len(encoded)


def _cache(cached: dict[str, AmqpExtras], text: str, extras: AmqpExtras) -> None:
    if len(text) > KNOWN_CHARACTERS_MAX:
        return
    if len(cached) >= KNOWN_MAX:
        cached.clear()
    cached[text] = extras
