"""The headers of answers over HTTP, as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
