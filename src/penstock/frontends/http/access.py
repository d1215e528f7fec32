"""Who asks, and whether they may: the one door every route goes through."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from penstock.core.errors import AuthenticationFailed, CrossSite, InvalidArgument
from penstock.core.rights import Principal
from penstock.runtime.access import Access
from penstock.runtime.logins import CSRF_HEADER

COOKIE: Final = "penstock_session"
LOCAL_HOSTS: Final = frozenset(("localhost", "127.0.0.1", "::1"))


class Guard:
    """Finds out who asks, and keeps other sites' pages out."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def check_site(self, headers: Mapping[str, str], local: str, *, changes: bool) -> None:
        """Refuse what a page of another site makes a browser ask.

        Without authentication the name in ``Host`` has to be one of this machine, or ``local``,
        the address the request came in by: a name that somebody else's DNS leads here is neither
        (DNS rebinding). What changes something is only taken from the console's own pages, or
        from no page at all. Raises ``CrossSite``.
        """
        named = headers.get("host", "")
        if self.access.is_open and _host_of(named) not in LOCAL_HOSTS | {local}:
            raise CrossSite(
                f"the request is for {named[:80]!r}; without authentication this realm answers "
                "to localhost, 127.0.0.1 and ::1 only"
            )
        origin = headers.get("origin")
        is_other = origin is not None and urlsplit(origin).netloc != named
        fetched = headers.get("sec-fetch-site", "none")
        if changes and (is_other or fetched in ("cross-site", "same-site")):
            raise CrossSite(
                f"a page of {str(origin)[:80]!r} may not change this realm; its own console may"
            )

    async def identify(
        self,
        headers: Mapping[str, str],
        host: str,
        certificate: Mapping[str, Any] | None,
        *,
        changes: bool,
    ) -> Principal:
        """Who asks: by Basic, Bearer, the console's session or a certificate, or nobody in
        particular.

        Raises ``AuthenticationFailed``, ``AccessDenied`` for a session without its CSRF header,
        ``InvalidArgument``.
        """
        if self.access.is_open:
            return self.access.anonymous(host)
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        match scheme.lower():
            case "basic":
                user, password = _basic(credentials)
                return await self.access.password(user, password, host)
            case "bearer":
                return await self.access.token(credentials.strip(), host)
            case "":
                pass
            case _:
                raise InvalidArgument(f"no scheme {scheme[:20]!r}; there are Basic and Bearer")
        secret = cookie_of(headers)
        login = self.access.logins.find(secret) if secret else None
        if login is None:
            return self.access.certificate(certificate, host) or self.access.anonymous(host)
        if changes:
            self.access.logins.check_csrf(login, headers.get(CSRF_HEADER.lower(), ""))
        return replace(login.principal, host=host)  # the host is where it comes from now

    def check_still(self, principal: Principal, headers: Mapping[str, str], now_us: int) -> None:
        """Raises when a view that was opened with ``headers`` has to end: its token or session has
        ended, its user is gone, or may not come in any more."""
        access = self.access
        access.check_still(principal, now_us)
        secret = cookie_of(headers)
        if access.is_open or "authorization" in headers or principal.proof != "password":
            return
        if access.logins.find(secret, use=False) is None:
            raise AuthenticationFailed("the session has ended; sign in again")


def cookie_of(headers: Mapping[str, str]) -> str:
    """The session's secret; empty: the request has none."""
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def _host_of(named: str) -> str:
    """Without its port; an IPv6 address without its brackets."""
    if named.startswith("["):
        return named[1:].partition("]")[0]
    return named.partition(":")[0].lower()


def _basic(credentials: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidArgument("what follows Basic is not base64 of user:password") from None
    user, colon, password = text.partition(":")
    if not colon:
        raise InvalidArgument("what follows Basic is not base64 of user:password")
    return user, password
