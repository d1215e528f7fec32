"""Authenticates HTTP requests, and refuses requests from pages of other sites."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import (
    AccessDenied,
    AuthenticationFailed,
    CrossSite,
    InvalidArgument,
)
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.access.logins import CSRF_HEADER

COOKIE: Final = "penstock_session"
"""Prefix of the name of the session cookie."""
LOCAL_HOSTS: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:/?#@\\]*))(?::([0-9]{0,5}))?")
"""A host name or address, and optionally a port."""


class Guard:
    """Authenticates requests, and refuses requests from pages of other sites."""

    def __init__(
        self, access: AccessControl, hosts: Collection[str] = (), *, is_secure: bool = False
    ) -> None:
        """``hosts`` are further names of this realm, in addition to those of this machine. With
        ``is_secure`` the realm proves its name to each client with its certificate."""
        self.access = access
        self._hosts = LOCAL_HOSTS | {name.lower() for name in hosts}
        self.is_secure = is_secure

    def check_site(self, headers: Mapping[str, str], local: str, *, changes: bool) -> None:
        """Refuse a request that a page of another site makes a browser send.

        Without authentication, ``Host`` must name this machine or be ``local``, the address at
        which the request arrived. A foreign DNS name that resolves to this machine is neither (DNS
        rebinding). Requests that change something are accepted only from the console's pages or
        from clients other than browsers. Raises ``CrossSite``, and ``InvalidArgument`` if ``Host``
        is malformed.
        """
        host_header = headers.get("host", "")
        host = host_of(host_header)
        if self.access.is_open and host not in self._hosts | {local}:
            raise CrossSite(
                f"the request names the host {host_header[:80]!r}; without authentication this "
                "realm answers only to localhost, 127.0.0.1, ::1 and the names in http.hosts"
            )
        origin = headers.get("origin")
        is_other = origin is not None and urlsplit(origin).netloc != host_header
        # Only browsers send this header; without it the request counts as sent by the user.
        fetch_site = headers.get("sec-fetch-site", "none")
        # A same-site page belongs to another host of the same domain, which may have another owner.
        if changes and (is_other or fetch_site in ("cross-site", "same-site")):
            raise CrossSite(
                f"a web page from {str(origin)[:80]!r} may not change this realm; only the "
                f"realm's console may"
            )

    def _anonymous(self, headers: Mapping[str, str], host: str) -> Principal:
        """Return the principal of a client that does not sign in.

        A request with a host name that the realm does not know may come from a page of another
        site whose DNS name resolves to this machine. Raises ``AuthenticationFailed`` for these.
        """
        host_header = headers.get("host", "")
        if self.access.mode == "optional" and not (self.is_secure or self._knows(host_header)):
            raise AuthenticationFailed(
                f"the request names the host {host_header[:80]!r}; without signing in, this realm "
                "answers only to its addresses, to localhost and to the names in http.hosts: sign "
                "in, or add the name there"
            )
        return self.access.anonymous(host)

    def _knows(self, host_header: str) -> bool:
        """Return whether a ``Host`` header names this realm. Every address counts as known, because
        a DNS rebinding attack needs a name."""
        host = host_of(host_header)
        return host in self._hosts or is_address(host)

    async def identify(
        self,
        headers: Mapping[str, str],
        host: str,
        certificate: Mapping[str, Any] | None,
        *,
        changes: bool,
        takes_issued_tokens: bool = False,
    ) -> Principal:
        """Return the principal of a request, from Basic, Bearer, the console session or the
        certificate, or the anonymous principal.

        ``takes_issued_tokens`` is True if the route accepts tokens that this realm has issued.
        Raises ``AuthenticationFailed``, ``AccessDenied`` for a session without its CSRF header and
        for an issued token on another route, ``InvalidArgument``.
        """
        if self.access.is_open:
            return self.access.anonymous(host)
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        match scheme.lower():
            case "basic":
                user, password = basic_credentials(credentials)
                return await self.access.password(user, password, host, secure=self.is_secure)
            case "bearer":
                token = credentials.strip()
                issued = await self.access.issued_token(token, host, secure=self.is_secure)
                if issued is None:
                    return await self.access.token(token, host, secure=self.is_secure)
                if takes_issued_tokens:
                    return issued
                raise AccessDenied(
                    "this token is for the catalog of tables only; sign in here with the password"
                )
            case "":
                pass
            case _:
                raise InvalidArgument(
                    f"the scheme {scheme[:20]!r} is not supported; use Basic or Bearer"
                )
        secret = self.secret_in(headers)
        login = await self.access.logins.find_and_store_use(secret) if secret else None
        if login is None:
            principal = self.access.certificate(certificate, host)
            return principal or self._anonymous(headers, host)
        if changes:
            self.access.logins.check_csrf(login, headers.get(CSRF_HEADER.lower(), ""))
        return replace(login.principal, host=host)  # the host of this request, not of the login

    def cookie(self, headers: Mapping[str, str]) -> str:
        """Return the name of the session cookie for the ``Host`` in ``headers``."""
        return cookie_name(headers, is_secure=self.is_secure)

    def secret_in(self, headers: Mapping[str, str]) -> str:
        """Return the secret of the session; empty if the request has no session."""
        return cookie_of(headers, is_secure=self.is_secure)

    def csrf_of(self, headers: Mapping[str, str]) -> str | None:
        """Return the CSRF token of the session; None if the request has no session."""
        login = self.access.logins.find(self.secret_in(headers))
        return None if login is None else login.csrf

    def check_still(self, principal: Principal, headers: Mapping[str, str], now_us: int) -> None:
        """Raise an error if a view that was opened with ``headers`` must end, because its token or
        session has ended, or its user was deleted or lost access."""
        access = self.access
        access.check_still(principal, now_us)
        secret = self.secret_in(headers)
        if (
            access.is_open
            or "authorization" in headers
            or principal.proof not in ("password", "ldap")
        ):
            return
        if access.logins.find(secret, use=False) is None:
            raise AuthenticationFailed("the session has ended; sign in again")


def cookie_name(headers: Mapping[str, str], *, is_secure: bool) -> str:
    """Return the name of the session cookie.

    The name contains the port, because browsers store cookies by host without the port and two
    realms on one machine must not overwrite each other's cookies. Over TLS, the prefix ``__Host-``
    binds the cookie to the exact host.
    """
    port = port_of(headers.get("host", ""))
    prefix = "__Host-" if is_secure else ""
    return f"{prefix}{COOKIE}_{port}" if port else f"{prefix}{COOKIE}"


def cookie_of(headers: Mapping[str, str], *, is_secure: bool) -> str:
    """Return the secret of the session; empty if the request has no session cookie."""
    expected = cookie_name(headers, is_secure=is_secure)
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == expected:
            return value
    return ""


def host_of(host_header: str) -> str:
    """Return the host in a ``Host`` header without its port; an IPv6 address without brackets.

    Raises ``InvalidArgument`` if the header is malformed.
    """
    match = _HOST.fullmatch(host_header)
    if match is None:
        raise InvalidArgument(
            f"Host is {host_header[:80]!r}; it must be a name or an address, then optionally a "
            f"colon and a port"
        )
    return (match[1] or match[2]).lower()


def port_of(host_header: str) -> str:
    """Return the port in a ``Host`` header as text; empty if it has no port."""
    match = _HOST.fullmatch(host_header)
    return "" if match is None else match[3] or ""


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def basic_credentials(credentials: str) -> tuple[str, str]:
    """Return the user and password of the scheme Basic. Raises ``InvalidArgument``."""
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidArgument("the text after Basic must be user:password in base64") from None
    user, colon, password = text.partition(":")
    if not colon:
        raise InvalidArgument("the text after Basic must be user:password in base64")
    return user, password
