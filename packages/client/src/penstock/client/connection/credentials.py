"""The credentials of a client, from the URL, arguments and the environment.

``PENSTOCK_USER``, ``PENSTOCK_PASSWORD`` and ``PENSTOCK_TOKEN`` keep secrets out of URLs and command
lines. They are used for credentials that neither the URL nor an argument contains.
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
"""A bearer token, or a function that returns a valid one; it is called for each connection."""


class Credentials:
    """The credentials for a realm. ``repr`` shows only the user."""

    __slots__ = ("_token", "password", "sends_password", "user")

    def __init__(
        self, url: RealmUrl, token: Token | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Take the credentials from ``url`` and ``token``, which have precedence, and otherwise
        from the environment variables."""
        named_user = url.user or environment.get(USER_VARIABLE, "")
        self.user = named_user or current_user()
        self.password = url.password
        self.sends_password = url.sends_password
        self._token = token
        # A password in the environment belongs to a named user; the operating system's user, which
        # is only the publisher's name, has none.
        if not url.password and token is None and named_user:
            self.password = environment.get(PASSWORD_VARIABLE, "")
        if not self.password and token is None and not url.certificate:
            self._token = environment.get(TOKEN_VARIABLE) or None

    @property
    def has_token(self) -> bool:
        return self._token is not None and not self.password

    @property
    def sent_secret(self) -> str:
        """Description of the secret that is sent itself; empty if none is sent."""
        if self.has_token:
            return "a token"
        return "the password" if self.password and self.sends_password else ""

    def token(self) -> str:
        """Return the token to use now; empty if the credentials have no token."""
        token = self._token() if callable(self._token) else self._token
        return token or ""

    def __repr__(self) -> str:
        return f"Credentials({self.user})"


def check_secret_is_safe(secret: str, url: RealmUrl, *addresses: Address) -> None:
    """Raise ``InvalidArgument`` if a secret (``a token``, ``the password``) would be sent
    unencrypted over a network, where others could read and use it."""
    if url.tls:
        return
    for address in addresses:
        if not is_here(address.host):
            raise InvalidArgument(
                f"{secret} would be sent unencrypted to {address}; connect with penstocks://"
            )


def is_here(host: str) -> bool:
    """Return whether ``host`` is this machine or stands for an embedded realm."""
    return host == "embedded" or is_loopback(host)


def tls_context(url: RealmUrl) -> ssl.SSLContext | None:
    """Return the TLS context for a URL; None for a URL without TLS.

    Raises ``InvalidArgument`` if a file that the URL names cannot be used.
    """
    if not url.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=url.ca or None)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"the file {url.ca} of certificate authorities cannot be used: {error}"
        ) from error
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
    """Return the name of the operating system's user; empty if the user has no name. A realm
    without users records this name as the publisher of events (SEM E3)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in some containers
        return ""
