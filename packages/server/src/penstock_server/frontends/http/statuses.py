"""The HTTP status of each error code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock_core.vocabulary.errors import PenstockError

_BY_STATUS: Final[dict[int, tuple[str, ...]]] = {
    400: (
        "invalid-argument",
        "invalid-name",
        "refused",
        "protocol-violation",
        "local-protocol-violation",
        "remote-protocol-violation",
    ),
    401: ("authentication-failed",),
    403: ("access-denied", "cross-site", "insecure-connection"),
    404: ("name-does-not-exist", "no-such-stage", "no-such-transaction"),
    409: (
        "already-aborted",
        "already-committed",
        "address-in-use",
        "capacity-reached",
        "conflict",
        "data-directory-in-use",
        "different-content",
        "durable-in-use",
        "durable-unbound",
        "illegal-state",
        "lease-ended",
        "name-already-bound",
        "sequence-too-old",
    ),
    410: ("data-lost", "trimmed"),
    413: ("event-too-large",),
    422: (
        "damaged-backup",
        "damaged-export",
        "invalid-descriptor",
        "invalid-event",
        "invalid-selector",
    ),
    429: ("limit-reached", "sign-in-locked"),
    500: (
        "corrupt",
        "damaged",
        "fenced",
        "internal",
        "newer-format",
        "penstock",
        "step-failed",
        "unknown",
    ),
    503: (
        "cannot-connect",
        "connection-lost",
        "deposed",
        "elsewhere",
        "no-quorum",
        "publishing-paused",
        "realm-stopping",
        "session-closed",
        "unavailable",
    ),
    504: ("no-reply",),
    507: ("memory-limit", "storage-failed"),
}

STATUSES: Final[Mapping[str, int]] = MappingProxyType(
    {code: status for status, codes in _BY_STATUS.items() for code in codes}
)
"""HTTP status by error code."""


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error; 500 for an unknown code."""
    return STATUSES.get(error.code, 500)
