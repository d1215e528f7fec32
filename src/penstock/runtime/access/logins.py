"""Sign-ins of browsers: a session in a cookie, and a token against forged requests."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from msgspec import Struct

from penstock.core.access.rights import Principal
from penstock.core.vocabulary.errors import AccessDenied
from penstock.core.vocabulary.ports import Clock

LOGINS_MAX = 10_000
"""Most browser sessions; beyond it, the user with the most loses the one that is idle longest."""
OF_USER_MAX = 100
"""Likewise of one user."""
CSRF_HEADER = "X-CSRF-Token"


class BrowserLogin(Struct):
    """A browser session. Its values are secret, so its text has none of them."""

    id: str
    """The cookie's value."""
    csrf: str
    """The token that requests which change something carry in :data:`CSRF_HEADER`."""
    principal: Principal
    opened_us: int
    used_us: int

    def __repr__(self) -> str:
        return f"BrowserLogin({self.principal.name})"


class Logins:
    """Kept in memory: a restart of the realm has everybody sign in again."""

    def __init__(
        self,
        clock: Clock,
        *,
        idle_s: float = 3_600,
        total_s: float = 43_200,
        of_user_max: int = OF_USER_MAX,
    ) -> None:
        """They end ``idle_s`` after their last use, and ``total_s`` after they were opened; a user
        has ``of_user_max``, and loses the one that was idle longest to the next."""
        self._clock = clock
        self._idle_us = int(idle_s * 1_000_000)
        self._total_us = int(total_s * 1_000_000)
        self._of_user_max = of_user_max
        self._of_user: dict[str, dict[bytes, BrowserLogin]] = {}
        self._held: dict[bytes, BrowserLogin] = {}

    def open(self, principal: Principal) -> BrowserLogin:
        """Open a new session for somebody who has just signed in."""
        now_us = self._clock.now_us()
        own = self._of_user.get(principal.user, {})
        if len(own) >= self._of_user_max:
            self._forget(min(own, key=lambda key: own[key].used_us))
        if len(self._held) >= LOGINS_MAX:
            self._forget_old(now_us)
        login = BrowserLogin(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), principal, now_us, now_us
        )
        key = _digest(login.id)
        self._held[key] = login
        self._of_user.setdefault(principal.user, {})[key] = login
        return login

    def __len__(self) -> int:
        """The number of sessions, including some that may have expired."""
        return len(self._held)

    def find(self, id: str, *, use: bool = True) -> BrowserLogin | None:
        """The session of a cookie; None: there is none, or it has ended. Using it prolongs it."""
        key = _digest(id)
        login = self._held.get(key)
        if login is None:
            return None
        now_us = self._clock.now_us()
        if self._has_ended(login, now_us):
            self._forget(key)
            return None
        if use:
            login.used_us = now_us
        return login

    def check_csrf(self, login: BrowserLogin, given: str) -> None:
        """Raises ``AccessDenied`` unless the request comes from the console's own pages."""
        if not hmac.compare_digest(login.csrf.encode(), given.encode()):
            raise AccessDenied(
                f"the header {CSRF_HEADER} does not match this session: another web site may have "
                f"sent the request; sign in again"
            )

    def close(self, id: str) -> None:
        """Sign out."""
        self._forget(_digest(id))

    def close_of(self, user: str) -> None:
        """Sign a user out everywhere."""
        for key in list(self._of_user.get(user, {})):
            self._forget(key)

    def _has_ended(self, login: BrowserLogin, now_us: int) -> bool:
        is_idle = now_us - login.used_us > self._idle_us
        until_us = login.principal.until_us
        return is_idle or now_us - login.opened_us > self._total_us or (0 < until_us < now_us)

    def _forget(self, key: bytes) -> None:
        login = self._held.pop(key, None)
        if login is None:
            return
        own = self._of_user[login.principal.user]
        del own[key]
        if not own:
            del self._of_user[login.principal.user]

    def _forget_old(self, now_us: int) -> None:
        for key in [k for k, each in self._held.items() if self._has_ended(each, now_us)]:
            self._forget(key)
        while len(self._held) >= LOGINS_MAX:
            most = max(self._of_user.values(), key=len)
            self._forget(min(most, key=lambda key: most[key].used_us))


def _digest(id: str) -> bytes:
    """Looked up by digest: how long that takes says nothing about the values there are."""
    return hashlib.sha256(id.encode()).digest()
