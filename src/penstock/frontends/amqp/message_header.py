"""The header ``amqp`` of an event: what its AMQP message said and no column holds.

It is a JSON object, so that clients of other protocols can read and write it. An event without the
header is a message with a single data section. :class:`AmqpExtras` names the keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

HEADER: Final = "amqp"
"""The header's name (``columns.schema.layout.HEADERS``)."""

TAG: Final = "x-opt-penstock-tag"
"""The message annotation that is an event's tag."""
PROPERTIES: Final = "x-opt-penstock-properties"
"""The message annotation with properties that application properties cannot hold: nested ones."""
DELIVERY_TIME: Final = "x-opt-delivery-time"
"""The message annotation with the time to deliver at, in milliseconds since 1970."""

GROUP_ID: Final = "JMSXGroupID"
GROUP_SEQUENCE: Final = "JMSXGroupSeq"

KNOWN_MAX: Final = 1_024
"""Most different headers that are remembered, in each direction."""


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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AmqpExtras)
_known: dict[str, AmqpExtras] = {}


def written(residue: AmqpExtras) -> str | None:
    """The header's text; None if it would say nothing."""
    text = _encoder.encode(residue).decode()
    return None if text == "{}" else text


def read(text: str | None) -> AmqpExtras:
    """The content of a header. One that cannot be read counts as absent, because any client may
    have written it."""
    if not text:
        return PLAIN
    found = _known.get(text)
    if found is None:
        try:
            found = _decoder.decode(text)
        except (msgspec.MsgspecError, ValueError):
            found = PLAIN
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[text] = found
    return found


@lru_cache(KNOWN_MAX)
def read_mqtt(text: str) -> AmqpExtras:
    """What the header ``mqtt`` says, for an event that has no header ``amqp``: a text is a string
    value, and correlation data that is no text is binary."""
    try:
        said = msgspec.json.decode(text, type=_SaidByMqtt)
    except (msgspec.MsgspecError, ValueError):
        return PLAIN
    found = AmqpExtras(
        body="text" if said.payload_format == 1 else "data",
        content_type=said.content_type,
        correlation_id="binary" if said.hex else "",
    )
    return PLAIN if found == PLAIN else found
