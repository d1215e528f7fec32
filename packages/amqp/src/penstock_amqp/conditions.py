"""The AMQP condition of each error code; conditions never change."""

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
"""Every error code with its condition."""


def condition_of(error: PenstockError) -> str:
    """The condition that an error is reported with."""
    if isinstance(error, UnreadableMessage):
        return DECODE
    return CONDITIONS.get(error.code, INTERNAL)


def condition_of_attached(error: PenstockError) -> str:
    """The condition for a link that is already attached; a missing name then means that its
    destination was deleted."""
    return DELETED if isinstance(error, NameDoesNotExist) else condition_of(error)


def description_of(error: PenstockError) -> str:
    """The description of an error: its code, for programs, and a text for people."""
    return f"{error.code}: {error}"


def no_text(error: UnicodeDecodeError) -> RemoteProtocolViolation:
    """The error for a name or text that is not valid text. Proton decodes texts when they are first
    read, so this may come late."""
    return RemoteProtocolViolation(f"a name or text is not {error.encoding}: {error.reason}")
