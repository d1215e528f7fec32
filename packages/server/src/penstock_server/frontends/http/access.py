"""Authenticates each HTTP request, and refuses those of other sites' pages."""

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
from penstock_core.vocabulary.errors import AuthenticationFailed, CrossSite, InvalidArgument
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.access.logins import CSRF_HEADER

COOKIE: Final = "penstock_session"
"""Prefix of the name of the session cookie."""
LOCAL_HOSTS: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:/?#@\\]*))(?::([0-9]{0,5}))?")
"""A host name or address, and a port."""


class Guard:
    """Finds out who sends a request, and refuses pages of other sites."""

    def __init__(
        self, access: AccessControl, hosts: Collection[str] = (), *, is_secure: bool = False
    ) -> None:
        """``hosts`` are names of this realm besides those of this machine. With ``is_secure`` the
        realm proves its name to each client by its certificate."""
        self.access = access
        self._hosts = LOCAL_HOSTS | {name.lower() for name in hosts}
        self.is_secure = is_secure

    def check_site(self, headers: Mapping[str, str], local: str, *, changes: bool) -> None:
        """Refuse a request that a page of another site makes a browser send.

        Without authentication the ``Host`` must name this machine or be ``local``, the address at
        which the request came in: a foreign DNS name that leads here is neither (DNS rebinding).
        Requests that change something are accepted only from the console's own pages, or from no
        page at all. Raises ``CrossSite``, and ``InvalidArgument`` for a malformed ``Host``.
        """
        named = headers.get("host", "")
        host = host_of(named)
        if self.access.is_open and host not in self._hosts | {local}:
            raise CrossSite(
                f"the request names the host {named[:80]!r}; without authentication this realm "
                f"answers "
                "to localhost, 127.0.0.1 and ::1 only, and to names in http.hosts"
            )
        origin = headers.get("origin")
        is_other = origin is not None and urlsplit(origin).netloc != named
        fetched = headers.get("sec-fetch-site", "none")
        if changes and (is_other or fetched in ("cross-site", "same-site")):
            raise CrossSite(
                f"a web page from {str(origin)[:80]!r} may not change this realm; only the "
                f"realm's own console may"
            )

    def _nobody(self, headers: Mapping[str, str], host: str) -> Principal:
        """The principal of a client that does not sign in.

        Under a name that the realm does not know, the request may come from another site's page
        whose DNS name leads here, and is refused. Raises ``AuthenticationFailed``.
        """
        named = headers.get("host", "")
        if self.access.mode == "optional" and not (self.is_secure or self._knows(named)):
            raise AuthenticationFailed(
                "without signing in, this realm answers only to its addresses, to localhost and "
                f"to the names in http.hosts, and {named[:80]!r} is none of them: sign in, or add "
                f"the name there"
            )
        return self.access.anonymous(host)

    def _knows(self, named: str) -> bool:
        """Whether a ``Host`` is known to mean this realm. Addresses always do: only names can be
        pointed elsewhere."""
        host = host_of(named)
        return host in self._hosts or is_address(host)

    async def identify(
        self,
        headers: Mapping[str, str],
        host: str,
        certificate: Mapping[str, Any] | None,
        *,
        changes: bool,
    ) -> Principal:
        """The principal of a request, by Basic, Bearer, console session or certificate, or
        anonymous.

        Raises ``AuthenticationFailed``, ``AccessDenied`` for a session without its CSRF header,
        ``InvalidArgument``.
        """
        if self.access.is_open:
            return self.access.anonymous(host)
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        match scheme.lower():
            case "basic":
                user, password = _basic(credentials)
                return await self.access.password(user, password, host, secure=self.is_secure)
            case "bearer":
                return await self.access.token(credentials.strip(), host, secure=self.is_secure)
            case "":
                pass
            case _:
                raise InvalidArgument(
                    f"the scheme {scheme[:20]!r} is not supported; use Basic or Bearer"
                )
        secret = self.secret_in(headers)
        login = await self.access.logins.found(secret) if secret else None
        if login is None:
            known = self.access.certificate(certificate, host)
            return known or self._nobody(headers, host)
        if changes:
            self.access.logins.check_csrf(login, headers.get(CSRF_HEADER.lower(), ""))
        return replace(login.principal, host=host)  # the host of this request, not of the login

    def cookie(self, headers: Mapping[str, str]) -> str:
        """The name of the session cookie, for the ``Host`` in ``headers``."""
        return cookie_name(headers, is_secure=self.is_secure)

    def secret_in(self, headers: Mapping[str, str]) -> str:
        """The secret of the session; empty if the request has none."""
        return cookie_of(headers, is_secure=self.is_secure)

    def csrf_of(self, headers: Mapping[str, str]) -> str | None:
        """The CSRF token of the session; None: the request shows none."""
        found = self.access.logins.find(self.secret_in(headers))
        return None if found is None else found.csrf

    def check_still(self, principal: Principal, headers: Mapping[str, str], now_us: int) -> None:
        """Raise an error if a view that was opened with ``headers`` has to end, because its token
        or session has ended, or its user was deleted or lost access."""
        access = self.access
        access.check_still(principal, now_us)
        secret = self.secret_in(headers)
        if access.is_open or "authorization" in headers or principal.proof != "password":
            return
        if access.logins.find(secret, use=False) is None:
            raise AuthenticationFailed("the session has ended; sign in again")


def cookie_name(headers: Mapping[str, str], *, is_secure: bool) -> str:
    """The name of the session cookie.

    Browsers keep cookies by host and not by port, so the name has the port: two realms on one
    machine do not overwrite each other's. Over TLS it is bound to the exact host as well.
    """
    port = port_of(headers.get("host", ""))
    prefix = "__Host-" if is_secure else ""
    return f"{prefix}{COOKIE}_{port}" if port else f"{prefix}{COOKIE}"


def cookie_of(headers: Mapping[str, str], *, is_secure: bool) -> str:
    """The session's secret; empty if the request has none."""
    wanted = cookie_name(headers, is_secure=is_secure)
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return ""


def host_of(named: str) -> str:
    """The host in ``Host`` without its port; an IPv6 address without brackets. Raises
    ``InvalidArgument``."""
    found = _HOST.fullmatch(named)
    if found is None:
        raise InvalidArgument(
            f"Host is {named[:80]!r}; it must be a name or an address, then optionally a colon "
            f"and a port"
        )
    return (found[1] or found[2]).lower()


def port_of(named: str) -> str:
    """The port in ``Host`` as it is written; empty if there is none."""
    found = _HOST.fullmatch(named)
    return "" if found is None else found[3] or ""


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _basic(credentials: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidArgument("the text after Basic must be user:password in base64") from None
    user, colon, password = text.partition(":")
    if not colon:
        raise InvalidArgument("the text after Basic must be user:password in base64")
    return user, password
