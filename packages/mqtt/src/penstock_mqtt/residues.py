"""What an event says over MQTT or AMQP that it has no column for: JSON in its headers ``mqtt`` and
``amqp``, which anybody who publishes may write."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

_REMEMBERED_MAX: Final = 1_024
"""Most residues that are remembered; many events have the same."""
SHORT: Final = 100
"""Characters of the longest of them."""


class Residue(Struct, frozen=True, omit_defaults=True):
    """What an event has no column for; JSON in its header ``mqtt``."""

    content_type: str | None = None
    payload_format: Annotated[int, Meta(ge=0, le=1)] | None = None
    user: tuple[tuple[str, str], ...] | None = None
    """The user properties in their order."""
    hex: bool = False
    """Whether ``correlation_id`` is bytes that are no text, written as hexadecimal digits."""
    retain: bool = False
    """Whether it was published to be retained."""
    content_encoding: str | None = None
    """How the payload is encoded, such as ``gzip``, as an AMQP client has said it."""
    qos: Annotated[int, Meta(ge=0, le=2)] | None = None
    """What it was published with, where the event does not say: retained events all persist, and
    so does what has QoS 2."""

    @property
    def says_more(self) -> bool:
        """Whether there is something besides the retain flag and the QoS."""
        return self != Residue(retain=self.retain, qos=self.qos)

    def of_qos(self, persistent: bool) -> int:
        """The QoS of an event."""
        return int(persistent) if self.qos is None else self.qos


NO_RESIDUE: Final = Residue()


class _SaidByAmqp(Struct, frozen=True, omit_defaults=True):
    """What the header ``amqp`` of an event says that MQTT can say, too."""

    body: str = ""
    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str = ""


def residue_of(text: str | None) -> Residue:
    """Return what a header ``mqtt`` says; nothing if it is not such JSON."""
    if text is None:
        return NO_RESIDUE
    return _decoded(text) if len(text) > SHORT else _remembered(text)


@lru_cache(_REMEMBERED_MAX)
def _remembered(text: str) -> Residue:
    return _decoded(text)


def _decoded(text: str) -> Residue:
    try:
        return msgspec.json.decode(text or "{}", type=Residue)
    except (msgspec.MsgspecError, RecursionError):  # its publisher wrote something else there
        return Residue()


def residue_of_amqp(text: str) -> Residue:
    """Return what a header ``amqp`` says that MQTT can say, too; nothing if it is not such JSON."""
    return _decoded_of_amqp(text) if len(text) > SHORT else _remembered_of_amqp(text)


def _decoded_of_amqp(text: str) -> Residue:
    try:
        said = msgspec.json.decode(text, type=_SaidByAmqp)
    except (msgspec.MsgspecError, RecursionError):  # its publisher wrote something else there
        return NO_RESIDUE
    is_text = said.body == "text" and not said.content_encoding
    return Residue(
        content_type=said.content_type,
        payload_format=1 if is_text else None,
        hex=said.correlation_id == "binary",
        content_encoding=said.content_encoding,
    )


_remembered_of_amqp: Final = lru_cache(_REMEMBERED_MAX)(_decoded_of_amqp)
