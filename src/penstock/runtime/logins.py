"""Sign-ins of browsers: a session in a cookie, and a token against forged requests."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from msgspec import Struct

from penstock.core.errors import AccessDenied
from penstock.core.ports import Clock
from penstock.core.rights import Principal

LOGINS_MAX = 10_000
"""Sessions of browsers kept; the one that was idle longest goes first."""
CSRF_HEADER = "X-CSRF-Token"


class Login(Struct):
    """One signed-in browser. Its values are secrets: they are in no text of it."""

    id: str
    """The cookie's value."""
    csrf: str
    """What requests that change something carry in :data:`CSRF_HEADER`."""
    principal: Principal
    opened_us: int
    used_us: int

    def __repr__(self) -> str:
        return f"Login({self.principal.name})"


class Logins:
    """Kept in memory: a restart of the realm has everybody sign in again."""

    def __init__(self, clock: Clock, *, idle_s: float = 3_600, total_s: float = 43_200) -> None:
        """They end ``idle_s`` after their last use, and ``total_s`` after they were opened."""
        self._clock = clock
        self._idle_us = int(idle_s * 1_000_000)
        self._total_us = int(total_s * 1_000_000)
        self._held: dict[bytes, Login] = {}

    def open(self, principal: Principal) -> Login:
        """A session for somebody who has just signed in; never one that was there before."""
        now_us = self._clock.now_us()
        if len(self._held) >= LOGINS_MAX:
            self._forget_old(now_us)
        login = Login(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), principal, now_us, now_us
        )
        self._held[_digest(login.id)] = login
        return login

    def find(self, id: str, *, use: bool = True) -> Login | None:
        """The session of a cookie; None: there is none, or it has ended. Using it prolongs it."""
        key = _digest(id)
        login = self._held.get(key)
        if login is None:
            return None
        now_us = self._clock.now_us()
        if self._has_ended(login, now_us):
            del self._held[key]
            return None
        if use:
            login.used_us = now_us
        return login

    def check_csrf(self, login: Login, given: str) -> None:
        """Raises ``AccessDenied`` unless the request comes from the console's own pages."""
        if not hmac.compare_digest(login.csrf.encode(), given.encode()):
            raise AccessDenied(
                f"the header {CSRF_HEADER} does not have this session's value: the request may "
                "have been made by another site; sign in again"
            )

    def close(self, id: str) -> None:
        """Sign out."""
        self._held.pop(_digest(id), None)

    def close_of(self, user: str) -> None:
        """Sign a user out everywhere."""
        self._held = {k: each for k, each in self._held.items() if each.principal.user != user}

    def _has_ended(self, login: Login, now_us: int) -> bool:
        is_idle = now_us - login.used_us > self._idle_us
        until_us = login.principal.until_us
        return is_idle or now_us - login.opened_us > self._total_us or (0 < until_us < now_us)

    def _forget_old(self, now_us: int) -> None:
        self._held = {
            k: each for k, each in self._held.items() if not self._has_ended(each, now_us)
        }
        while len(self._held) >= LOGINS_MAX:
            del self._held[min(self._held, key=lambda key: self._held[key].used_us)]


def _digest(id: str) -> bytes:
    """Looked up by digest: how long that takes says nothing about the values there are."""
    return hashlib.sha256(id.encode()).digest()
