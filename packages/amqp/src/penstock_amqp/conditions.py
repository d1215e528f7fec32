"""Maps each error code to its AMQP condition; a code's condition never changes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock_core.vocabulary.errors import (
    InvalidEvent,
    NameDoesNotExist,
    PenstockError,
    RemoteProtocolViolation,
)

INTERNAL: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
INVALID: Final = "amqp:invalid-field"
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
DELETED: Final = "amqp:resource-deleted"
FORCED: Final = "amqp:connection:forced"
FRAMING: Final = "amqp:connection:framing-error"
DECODE: Final = "amqp:decode-error"
STOLEN: Final = "amqp:link:stolen"
LOCKED: Final = "amqp:resource-locked"
TOO_MANY: Final = "amqp:link:transfer-limit-exceeded"
TOO_MUCH: Final = "amqp:resource-limit-exceeded"
TOO_LARGE: Final = "amqp:link:message-size-exceeded"
UNKNOWN_TRANSACTION: Final = "amqp:transaction:unknown-id"
ROLLED_BACK: Final = "amqp:transaction:rollback"

_BY_CONDITION: Final[dict[str, tuple[str, ...]]] = {
    "amqp:unauthorized-access": (
        "access-denied",
        "authentication-failed",
        "cross-site",
        "insecure-connection",
        "sign-in-locked",
    ),
    NOT_FOUND: ("name-does-not-exist", "no-such-stage"),
    INVALID: (
        "invalid-argument",
        "invalid-descriptor",
        "invalid-event",
        "invalid-name",
        "invalid-selector",
        "damaged-backup",
        "damaged-export",
    ),
    LOCKED: ("durable-in-use", "name-already-bound"),
    TOO_MUCH: (
        "capacity-reached",
        "limit-reached",
        "memory-limit",
        "storage-failed",
    ),
    TOO_LARGE: ("event-too-large",),
    "amqp:illegal-state": (
        "already-aborted",
        "already-committed",
        "illegal-state",
        "lease-ended",
    ),
    "amqp:precondition-failed": (
        "conflict",
        "different-content",
        "no-reply",
        "publishing-paused",
        "refused",
        "sequence-too-old",
    ),
    DELETED: ("data-lost", "durable-unbound", "trimmed"),
    UNKNOWN_TRANSACTION: ("no-such-transaction",),
    FORCED: (
        "cannot-connect",
        "connection-lost",
        "deposed",
        "elsewhere",
        "no-quorum",
        "realm-stopping",
        "session-closed",
        "address-in-use",
        "data-directory-in-use",
        "unavailable",
    ),
    FRAMING: (
        "local-protocol-violation",
        "protocol-violation",
        "remote-protocol-violation",
    ),
    INTERNAL: (
        "corrupt",
        "damaged",
        "fenced",
        "internal",
        "newer-format",
        "penstock",
        "step-failed",
        "unknown",
    ),
}


class UnreadableMessage(InvalidEvent):
    """A message cannot be decoded (3.2, 3.4.3)."""


CONDITIONS: Final[Mapping[str, str]] = MappingProxyType(
    {code: condition for condition, codes in _BY_CONDITION.items() for code in codes}
)
"""The condition of every error code."""


def condition_of(error: PenstockError) -> str:
    """Return the condition that reports an error."""
    if isinstance(error, UnreadableMessage):
        return DECODE
    return CONDITIONS.get(error.code, INTERNAL)


def condition_of_attached(error: PenstockError) -> str:
    """Return the condition that ends a link after its attach: a missing name then means that the
    destination was deleted."""
    return DELETED if isinstance(error, NameDoesNotExist) else condition_of(error)


def description_of(error: PenstockError) -> str:
    """Return the description of an error: its code, for programs, and its text, for people."""
    return f"{error.code}: {error}"


def decoding_error(error: UnicodeDecodeError) -> RemoteProtocolViolation:
    """Return the protocol error for a string that cannot be decoded. Proton decodes strings when
    they are first read, so the error may appear long after the frame."""
    return RemoteProtocolViolation(f"a name or string is not {error.encoding}: {error.reason}")
