"""What clients say in mechanisms of SASL, over AMQP as over MQTT."""

from __future__ import annotations

from typing import Final

from penstock_core.vocabulary.errors import AuthenticationFailed

BEARER: Final = "XOAUTH2"
"""The mechanism that shows a bearer token."""


def bearer_of(response: bytes) -> tuple[bytes, str]:
    """The user and the token of ``user=…^Aauth=Bearer …^A^A``. Raises ``AuthenticationFailed`` for
    another text."""
    said = dict(part.partition(b"=")[::2] for part in response.split(b"\x01") if part)
    kind, _, token = said.get(b"auth", b"").partition(b" ")
    if kind.lower() != b"bearer" or not token.isascii():
        raise AuthenticationFailed("the XOAUTH2 response must hold a user and a bearer token")
    return said.get(b"user", b""), token.decode()


def check_own(wanted: bytes, own: bytes) -> None:
    """Refuse to act for another user: an authorization identity must be one's own, or absent.
    Raises ``AuthenticationFailed``."""
    if wanted not in (b"", own):
        raise AuthenticationFailed(
            f"{own.decode()!r} asked to act as {wanted[:40]!r}, which is not possible; leave the "
            f"authorization identity out"
        )
