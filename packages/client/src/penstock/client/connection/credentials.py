"""How a client signs in: from the URL, arguments, and the environment.

Secrets need not be on a command line or in a URL: ``PENSTOCK_USER``, ``PENSTOCK_PASSWORD`` and
``PENSTOCK_TOKEN`` are used if nothing else was given.
"""

from __future__ import annotations

import getpass
import os
import ssl
from collections.abc import Callable, Mapping

from penstock.client.connection.urls import Address, RealmUrl
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.wire.addresses import is_loopback

USER_VARIABLE = "PENSTOCK_USER"
PASSWORD_VARIABLE = "PENSTOCK_PASSWORD"
TOKEN_VARIABLE = "PENSTOCK_TOKEN"

Token = str | Callable[[], str]
"""A bearer token, or what gives one that is good now: it is asked for each connection."""


class Credentials:
    """The credentials for a realm; their text shows none of them."""

    __slots__ = ("_token", "password", "user")

    def __init__(
        self, url: RealmUrl, token: Token | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Arguments and the URL take precedence over the environment; one kind of proof is
        enough."""
        given = url.user or environment.get(USER_VARIABLE, "")
        self.user = given or current_user()
        self.password = url.password
        self._token = token
        if not url.password and token is None and given:
            self.password = environment.get(PASSWORD_VARIABLE, "")
        if not self.password and token is None and not url.certificate:
            self._token = environment.get(TOKEN_VARIABLE) or None

    @property
    def has_token(self) -> bool:
        return self._token is not None and not self.password

    def token(self) -> str:
        """The token to use now; empty: there is none."""
        found = self._token() if callable(self._token) else self._token
        return found or ""

    def __repr__(self) -> str:
        return f"Credentials({self.user})"


def check_token_is_safe(url: RealmUrl, *addresses: Address) -> None:
    """Raise ``InvalidArgument`` if others could see the token on its way to the addresses, because
    whoever has it can use it."""
    if url.tls:
        return
    for address in addresses:
        if not is_here(address.host):
            raise InvalidArgument(
                f"a token would be sent unencrypted to {address}; connect with penstocks://"
            )


def is_here(host: str) -> bool:
    """Whether an address is this machine's; that of an embedded realm is."""
    return host == "embedded" or is_loopback(host)


def tls_context(url: RealmUrl) -> ssl.SSLContext | None:
    """How to speak TLS with the realm; None: in the open. Raises ``InvalidArgument`` naming a file
    that does not do."""
    if not url.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=url.ca or None)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the authorities {url.ca} cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if url.certificate:
        try:
            context.load_cert_chain(url.certificate, url.key or None)
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"the certificate {url.certificate} cannot be used: {error}"
            ) from error
    return context


def current_user() -> str:
    """The user of this process; it is the publisher of events (SEM E3) if the realm has no
    users."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return ""
