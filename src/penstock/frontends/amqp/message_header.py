"""What a message says and no column of an event does: the header ``amqp`` of an event.

It is a JSON object, so that clients of other protocols can read and write it. An event without
one is a message with a single data section. :class:`Residue` names its keys.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

HEADER: Final = "amqp"
"""The header's name (``columns.schema.layout.HEADERS``)."""

TAG: Final = "x-opt-penstock-tag"
"""The message annotation that is an event's tag."""
PROPERTIES: Final = "x-opt-penstock-properties"
"""The message annotation with the properties that application properties cannot be: nested
ones."""
DELIVERY_TIME: Final = "x-opt-delivery-time"
"""The message annotation with the time to deliver at, in milliseconds since 1970."""

GROUP_ID: Final = "JMSXGroupID"
GROUP_SEQUENCE: Final = "JMSXGroupSeq"

KNOWN_MAX: Final = 1_024
"""Different ones that are remembered, each way."""


class Residue(Struct, frozen=True, omit_defaults=True):
    """The rest of a message."""

    body: str = "data"
    """``data``, ``text`` (a string value; the event's data is its UTF-8), ``binary`` (a binary
    value), ``null``, ``value`` (any other value, as AMQP encodes it), ``sequence`` (the lists, as
    AMQP encodes them) or ``none``."""
    priority: int | None = None
    """One above 9."""
    zero_ttl: bool = False
    """A time to live of 0 was said, and not nothing; it means the same."""
    sizes: tuple[int, ...] = ()
    """Sizes in bytes of several data sections: the places where the data is divided."""
    to: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    reply_to_group_id: str | None = None
    message_id: str = ""
    """The type of the message id where it is no string: ``ulong``, ``uuid``, ``binary``."""
    correlation_id: str = ""
    user_id: bytes | None = None
    """A user id that is no UTF-8."""
    times: tuple[int | None, int | None] | None = None
    """Absolute expiry and creation, in ms, where one is outside of the years 1 to 9999."""
    types: dict[str, str] = {}
    """Types of application properties that a property does not have, or may lose: by name."""
    annotations: bytes | None = None
    """Other message annotations: an AMQP map."""
    application_properties: bytes | None = None
    """All of them, an AMQP map, where one can be no property."""
    footer: bytes | None = None


PLAIN: Final = Residue()

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Residue)
_known: dict[str, Residue] = {}


def written(residue: Residue) -> str | None:
    """As the header holds it; None where there is nothing to say."""
    text = _encoder.encode(residue).decode()
    return None if text == "{}" else text


def read(text: str | None) -> Residue:
    """What the header says. A header that says nothing sensible is one that is not there: anybody
    may have written it."""
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
