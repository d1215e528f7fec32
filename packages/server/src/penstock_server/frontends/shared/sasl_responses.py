"""Parses the SASL responses of clients, for all front ends."""

from __future__ import annotations

from typing import Final

from penstock_core.vocabulary.errors import AuthenticationFailed

BEARER: Final = "XOAUTH2"
"""The SASL mechanism for bearer tokens."""


def plain_of(response: bytes) -> tuple[str, str]:
    """Return user and password of a PLAIN response. Raises ``AuthenticationFailed``."""
    try:
        identity, user, password = response.split(b"\0")
        credentials = user.decode(), password.decode()
    except ValueError:
        raise AuthenticationFailed(
            "the PLAIN response must contain a user and a password in UTF-8"
        ) from None
    check_own(identity, user)
    return credentials


def bearer_of(response: bytes) -> tuple[bytes, str]:
    """Return the user and the token of ``user=…^Aauth=Bearer …^A^A``.

    Raises ``AuthenticationFailed`` if the response has another form.
    """
    fields = dict(part.partition(b"=")[::2] for part in response.split(b"\x01") if part)
    kind, _, token = fields.get(b"auth", b"").partition(b" ")
    if kind.lower() != b"bearer" or not token.isascii():
        raise AuthenticationFailed("the XOAUTH2 response must have a user and a bearer token")
    return fields.get(b"user", b""), token.decode()


def check_own(requested: bytes, user: bytes) -> None:
    """Raise ``AuthenticationFailed`` if a client requests to act as another user: an authorization
    identity must be empty or the user's own name."""
    if requested not in (b"", user):
        raise AuthenticationFailed(
            f"{user.decode()!r} cannot act as {requested[:40]!r}; leave the authorization identity "
            f"out"
        )
