"""Parts of MQTT and AMQP messages without a column, as JSON in the headers ``mqtt`` and ``amqp``.
Every publisher can write these headers."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.nesting import check_json_nesting

_CACHED_MAX: Final = 1_024
"""Maximum number of residues that are cached; many events have the same one."""
SHORT: Final = 100
"""Maximum number of characters of a cached residue."""


class Residue(Struct, frozen=True, omit_defaults=True):
    """Parts of an event without a column; JSON in its header ``mqtt``."""

    content_type: str | None = None
    payload_format: Annotated[int, Meta(ge=0, le=1)] | None = None
    user: tuple[tuple[str, str], ...] | None = None
    """The user properties in their order."""
    hex: bool = False
    """Whether ``correlation_id`` holds binary data as hexadecimal digits."""
    retain: bool = False
    """Whether the message was published with the retain flag."""
    content_encoding: str | None = None
    """Content encoding that an AMQP client has set, such as ``gzip``."""
    qos: Annotated[int, Meta(ge=0, le=2)] | None = None
    """QoS of the message. None if the event tells it: a persistent event has QoS 1, another one 0.
    It is stored for QoS 2, and for QoS 0 of retained messages, whose events always persist."""

    @property
    def has_content(self) -> bool:
        """Whether the residue has more than the retain flag and the QoS."""
        return self != Residue(retain=self.retain, qos=self.qos)

    def qos_for(self, persistent: bool) -> int:
        """Return the QoS of an event."""
        return int(persistent) if self.qos is None else self.qos


NO_RESIDUE: Final = Residue()
_UNREADABLE: Final = (InvalidArgument, msgspec.MsgspecError, RecursionError)
"""Errors raised for a header that its publisher has written for another use."""


class _AmqpHeader(Struct, frozen=True, omit_defaults=True):
    """The fields of the header ``amqp`` that MQTT can express."""

    body: str = ""
    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str = ""


def residue_of(text: str | None) -> Residue:
    """Return the residue in a header ``mqtt``; an empty one if it is not such JSON."""
    if text is None:
        return NO_RESIDUE
    return _decode(text) if len(text) > SHORT else _decode_cached(text)


@lru_cache(_CACHED_MAX)
def _decode_cached(text: str) -> Residue:
    return _decode(text)


def _decode(text: str) -> Residue:
    try:
        check_json_nesting(text, "the header")
        return msgspec.json.decode(text or "{}", type=Residue)
    except _UNREADABLE:
        return Residue()


def residue_of_amqp(text: str) -> Residue:
    """Return the parts of a header ``amqp`` that MQTT can express; an empty residue if it is not
    such JSON."""
    return _decode_amqp(text) if len(text) > SHORT else _decode_amqp_cached(text)


def _decode_amqp(text: str) -> Residue:
    try:
        check_json_nesting(text, "the header")
        header = msgspec.json.decode(text, type=_AmqpHeader)
    except _UNREADABLE:
        return NO_RESIDUE
    is_text = header.body == "text" and not header.content_encoding
    return Residue(
        content_type=header.content_type,
        payload_format=1 if is_text else None,
        hex=header.correlation_id == "binary",
        content_encoding=header.content_encoding,
    )


_decode_amqp_cached: Final = lru_cache(_CACHED_MAX)(_decode_amqp)
