"""AMQP transactions, performative by performative."""

from __future__ import annotations

from typing import Any

from packages.amqp.tests.dialogue import (
    Dialogue,
    attach_sender,
    begin,
    on,
)
from packages.amqp.tests.frames import (
    ATTACH,
    BEGIN,
    FLOW,
    Raw,
    frame_of,
    performative,
)
from penstock_amqp.wire.sections import section
from penstock_amqp.wire.types import Symbol, UByte, UInt, encode

INVALID = "amqp:invalid-field"


def granted(dialogue: Dialogue) -> None:
    """Wait until the realm has given credit to a sender."""
    dialogue.hear(FLOW, lambda frame: frame.values[4] is not None)


def check_session_lives(dialogue: Dialogue, channel: int = 1) -> None:
    """Check that the realm still serves another session of the connection."""
    dialogue.say(begin(channel), on(channel, attach_sender("alive", 0)))
    assert dialogue.hear(BEGIN).values[0] == channel
    by_link(dialogue, "alive")


def by_link(dialogue: Dialogue, name: str) -> tuple[int, int]:
    """Return channel and handle of the realm's attach of a link."""
    attach = dialogue.hear(ATTACH, lambda frame: frame.values[0] == name)
    return attach.channel, attach.handle


BROKEN = section(0x70, b"\x45") + encode("between the sections") + section(0x77, encode("x"))


def coordinator(handle: int, *outcomes: str) -> bytes:
    said_of = [None] * 9 + [Symbol(outcome) for outcome in outcomes]
    source = Raw(performative(0x28, *map(encode, said_of)) if outcomes else performative(0x28))
    target = Raw(performative(0x30, encode(Symbol("amqp:local-transactions"))))
    modes = UByte(0), UByte(0)
    return frame_of(ATTACH, "tx", UInt(handle), False, *modes, source, target, None, None, UInt(0))


def declare(*values: Any) -> bytes:
    return section(0x77, performative(0x31, *map(encode, values)))


def discharge(*values: Any) -> bytes:
    return section(0x77, performative(0x32, *map(encode, values)))


def in_transaction(txn: bytes, outcome: int = 0) -> Raw:
    more = [performative(outcome)] if outcome else []
    return Raw(performative(0x34, encode(txn), *more))
