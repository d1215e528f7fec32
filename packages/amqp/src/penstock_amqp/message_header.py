"""The header ``amqp`` of an event: what its AMQP message said and no column holds.

It is a JSON object, so that clients of other protocols can read and write it. An event without the
header is a message with a single data section. :class:`AmqpExtras` names the keys.
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
"""The message annotation that is an event's tag."""
PROPERTIES: Final = "x-opt-penstock-properties"
"""The message annotation with properties that application properties cannot hold: nested ones."""
DELIVERY_TIME: Final = "x-opt-delivery-time"
"""The message annotation with the time to deliver at, in milliseconds since 1970."""
DELIVERY_DELAY: Final = "x-opt-delivery-delay"
"""The message annotation with the time to wait, in milliseconds; it counts where there is no
`DELIVERY_TIME`."""

GROUP_ID: Final = "JMSXGroupID"
GROUP_SEQUENCE: Final = "JMSXGroupSeq"

KNOWN_MAX: Final = 1_024
"""Most different headers that are remembered, in each direction."""
KNOWN_CHARACTERS_MAX: Final = 512
"""Longest text of a header that is remembered. Senders choose the texts, so that only their length
bounds the memory they take."""


class AmqpExtras(Struct, frozen=True, omit_defaults=True):
    """The content of the header."""

    body: str = "data"
    """``data``, ``text`` (a string value; the event's data is its UTF-8), ``binary`` (a binary
    value), ``null``, ``value`` (any other value, as AMQP encodes it), ``sequence`` (the lists, as
    AMQP encodes them) or ``none``."""
    priority: int | None = None
    """The priority, if it is above 9."""
    zero_ttl: bool = False
    """Whether a time to live of 0 was sent, and not none; both mean the same."""
    sizes: tuple[int, ...] = ()
    """Sizes in bytes of the data sections, if there are several."""
    to: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    reply_to_group_id: str | None = None
    message_id: str = ""
    """The type of the message id if it is not a string: ``ulong``, ``uuid`` or ``binary``."""
    correlation_id: str = ""
    user_id: bytes | None = None
    """The user id if it is not UTF-8."""
    times: tuple[int | None, int | None] | None = None
    """Absolute expiry and creation time in ms, if one is outside the years 1 to 9999."""
    types: dict[str, str] = {}
    """Types of application properties, by name, that properties do not have or may lose."""
    annotations: bytes | None = None
    """Other message annotations, as an encoded AMQP map."""
    application_properties: bytes | None = None
    """All application properties, as an encoded AMQP map, if one of them cannot be a property."""
    footer: bytes | None = None


PLAIN: Final = AmqpExtras()


class _SaidByMqtt(Struct, frozen=True):
    """What the header ``mqtt`` of an event says that AMQP can say, too."""

    content_type: str | None = None
    payload_format: int | None = None
    hex: bool = False


_Content = TypeVar("_Content")

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AmqpExtras)
_mqtt_decoder = msgspec.json.Decoder(_SaidByMqtt)
_known: dict[str, AmqpExtras] = {}
_known_of_mqtt: dict[str, AmqpExtras] = {}


def encode_extras(residue: AmqpExtras) -> str | None:
    """The header's text; None if it would say nothing."""
    text = _encoder.encode(residue).decode()
    return None if text == "{}" else text


def decode_extras(text: str | None) -> AmqpExtras:
    """The content of a header. One that cannot be read counts as absent, because any client may
    have written it."""
    if not text:
        return PLAIN
    extras = _known.get(text)
    if extras is None:
        extras = _usable(_decoded(_decoder, text) or PLAIN)
        _remember(_known, text, extras)
    return extras


def decode_mqtt(text: str) -> AmqpExtras:
    """What the header ``mqtt`` says, for an event that has no header ``amqp``: a text is a string
    value, and correlation data that is no text is binary."""
    extras = _known_of_mqtt.get(text)
    if extras is None:
        said = _decoded(_mqtt_decoder, text) or _SaidByMqtt()
        extras = AmqpExtras(
            body="text" if said.payload_format == 1 else "data",
            content_type=said.content_type,
            correlation_id="binary" if said.hex else "",
        )
        extras = PLAIN if extras == PLAIN else extras
        _remember(_known_of_mqtt, text, extras)
    return extras


def _decoded(decoder: msgspec.json.Decoder[_Content], text: str) -> _Content | None:
    """The content of a header's text; None if it cannot be read."""
    try:
        check_json_nesting(text.encode(), "the header")
        return decoder.decode(text)
    except (InvalidArgument, RecursionError, ValueError):  # also what msgspec raises
        return None


def _usable(extras: AmqpExtras) -> AmqpExtras:
    """The extras without sizes and encoded maps that are impossible, which would break each
    receiver."""
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


def _remember(known: dict[str, AmqpExtras], text: str, extras: AmqpExtras) -> None:
    if len(text) > KNOWN_CHARACTERS_MAX:
        return
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[text] = extras
