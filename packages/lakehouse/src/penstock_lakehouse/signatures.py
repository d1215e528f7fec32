"""Verifies the signatures of requests to the object gate: AWS Signature Version 4.

Clients of S3 sign with the key that they received when they loaded a table
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from penstock_core.vocabulary.errors import AuthenticationFailed

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SKEW_S: Final = 900
"""Largest difference between the time in a request and the realm's clock, in seconds."""
HEADERS_MAX: Final = 64
"""Maximum number of signed headers."""
_FIELDS: Final = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=([^,\s]+),\s*SignedHeaders=([^,\s]+),\s*Signature=([0-9a-f]{64})"
)
_TIME: Final = "%Y%m%dT%H%M%SZ"
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"


class RequestSignature(NamedTuple):
    """The parsed ``Authorization`` header of a signed request."""

    key: str
    """Access key that identifies the grant."""
    date: str
    """Day of the signature, as YYYYMMDD."""
    region: str
    service: str
    headers: Sequence[str]
    """Names of the signed headers."""
    digest: str
    """The signature itself, in hexadecimal."""


def signature_of(header: str) -> RequestSignature:
    """Parse an ``Authorization`` header.

    Raises ``AuthenticationFailed`` if it is not a signature of version 4, or if it does not sign
    the host and the time.
    """
    match = _FIELDS.fullmatch(header.strip())
    scope = match[1].split("/") if match else []
    if match is None or len(scope) != 5 or scope[4] != "aws4_request":
        raise AuthenticationFailed(
            f"files of tables are read with a key of a loaded table: Authorization must begin with "
            f"{ALGORITHM} and have Credential, SignedHeaders and Signature"
        )
    names = match[2].split(";")
    if len(names) > HEADERS_MAX or "host" not in names or "x-amz-date" not in names:
        raise AuthenticationFailed(
            f"SignedHeaders must name host and x-amz-date, and at most {HEADERS_MAX} headers"
        )
    key, date, region, service, _ = scope
    return RequestSignature(key, date, region, service=service, headers=names, digest=match[3])


def check_signature(
    signature: RequestSignature,
    secret: str,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    now_us: int,
) -> None:
    """Raise ``AuthenticationFailed`` unless the request was signed with ``secret``, at a time that
    differs from ``now_us`` by at most 15 minutes.

    ``path`` and ``query`` are as received; ``headers`` have lower-case names.
    """
    date_text = headers.get("x-amz-date", "")
    try:
        signed_at = datetime.strptime(date_text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        raise AuthenticationFailed(
            f"x-amz-date is {date_text[:40]!r}; it must be like 20260504T120000Z"
        ) from None
    if abs(signed_at.timestamp() - now_us / 1_000_000) > SKEW_S or not date_text.startswith(
        signature.date
    ):
        raise AuthenticationFailed(
            f"the request was signed at {date_text}, more than {SKEW_S} s from the realm's time; "
            f"set the clock of the client's machine"
        )
    canonical = "\n".join(
        (
            method,
            # Clients differ in the characters that they escape, but all sign the path in this form.
            quote(unquote(path), safe="/-_.~"),
            _canonical_query(query),
            *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in signature.headers),
            "",
            ";".join(signature.headers),
            headers.get("x-amz-content-sha256", _UNSIGNED),
        )
    )
    scope = f"{signature.date}/{signature.region}/{signature.service}/aws4_request"
    text = "\n".join((ALGORITHM, date_text, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    # The signing key is derived from the parts of the scope one by one; the last step signs.
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    # The comparison takes the same time wherever the two differ, so that a signature cannot be
    # guessed by timing.
    if not hmac.compare_digest(key.hex(), signature.digest):
        raise AuthenticationFailed("the signature of the request does not match its content")


def _canonical_query(query: str) -> str:
    """Return the query parameters, encoded and sorted as the signature requires."""
    pairs = (part.partition("=") for part in query.split("&") if part)
    encoded = sorted(
        (quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~"))
        for name, _, value in pairs
    )
    return "&".join(f"{name}={value}" for name, value in encoded)
