"""The HTTP status of each error code, and the headers of answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


Headers = list[tuple[str, str]]


def _raw(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]


_SECURITY: Final = tuple(
    _raw(
        (
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
        )
    )
)
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")


def raw_headers(
    kind: str, framing: Headers, headers: Headers | None, *, is_secure: bool
) -> list[tuple[bytes, bytes]]:
    """Return all headers of an answer of the content type ``kind``. ``framing`` has those about the
    length of the body; ``is_secure`` means that the client uses TLS."""
    lines = _raw([("content-type", kind), *framing])
    lines += _SECURITY
    lines += _raw(headers or ())
    if is_secure:
        lines.append(_HSTS)
    return lines
